"""What processes that do one job share."""

from __future__ import annotations

import pytest

from tb_perfadvisor.execution import execution


def test_progress_is_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    now, lines = [100.0], []
    monkeypatch.setattr(execution.time, "monotonic", lambda: now[0])
    tell = execution.throttled(lines.append)
    for share in (0.0, 0.1, 0.2):  # at one time: one line
        tell("reading a", share)
    now[0] += 0.2
    tell("reading a", 0.5)
    tell("checking rules", 0.5)
    assert [line["stage"] for line in lines] == ["reading a", "reading a", "checking rules"]
    # Reading is 0.7 of the whole. Half of it is 0.35, and half of the rest ends at 0.85.
    assert [line["progress"] for line in lines] == [0.0, 0.35, 0.85]
