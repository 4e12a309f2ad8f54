"""What processes that do one job share."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from tb_perfadvisor.execution import execution

# Arrays of 40 MB, one after the other, which glibc keeps apart from its heap if nothing is said.
_ARRAYS = """
import resource
import numpy as np
from tb_perfadvisor.execution.execution import keep_freed_memory
SETTINGS
np.ones(10_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    first, second = np.ones(5_000_000), np.ones(5_000_000)
    del first, second
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _page_faults(settings: str) -> int:
    command = [sys.executable, "-c", _ARRAYS.replace("SETTINGS", settings)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are glibc's")
def test_arrays_are_made_where_others_were() -> None:
    assert 10 * _page_faults("keep_freed_memory()") < _page_faults("")


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
