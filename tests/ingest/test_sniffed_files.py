"""Which files are opened to detect their format, and how often."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor.errors import PerfAdvisorError, UnreadableProfileError
from tb_perfadvisor.ingest import discovery
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.files.access import read_heads
from tb_perfadvisor.ingest.files.tree import FileEntry


def trace(**header: Any) -> bytes:
    event = {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    return json.dumps({"schemaVersion": 1, **header, "traceEvents": [event]}).encode()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are read, in order."""
    seen: list[str] = []

    def recorded(
        root: str, entries: Sequence[FileEntry], head_bytes: int
    ) -> Iterator[bytes | PerfAdvisorError]:
        for entry, head in zip(entries, read_heads(root, entries, head_bytes), strict=True):
            seen.append(entry.path)
            yield head

    monkeypatch.setattr(discovery, "read_heads", recorded)
    monkeypatch.setattr(discovery, "_remembered", discovery._remembered.__class__())
    return seen


def test_unchanged_files_are_not_read_again(tmp_path: Path, read: list[str]) -> None:
    (tmp_path / "a.pt.trace.json").write_bytes(trace())
    (tmp_path / "b.json").write_bytes(b"{}")
    (tmp_path / "c.pt.trace.json").write_bytes(b"<html>")
    first = discover(tmp_path)
    assert sorted(read) == ["a.pt.trace.json", "b.json", "c.pt.trace.json"]
    read.clear()
    assert discover(tmp_path) == first
    assert read == []


def test_changed_files_are_read_again_and_deleted_ones_forgotten(
    tmp_path: Path, read: list[str]
) -> None:
    changing, stable = tmp_path / "a.pt.trace.json", tmp_path / "b.pt.trace.json"
    changing.write_bytes(b"<html>")
    stable.write_bytes(trace())
    assert len(discover(tmp_path).captures) == 1
    read.clear()
    changing.write_bytes(trace())
    assert len(discover(tmp_path).captures) == 2
    assert read == ["a.pt.trace.json"]
    stable.unlink()
    discover(tmp_path)
    (known,) = discovery._remembered.values()
    assert [entry.path for entry, _ in known] == ["a.pt.trace.json"]


def test_unreadable_files_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.pt.trace.json").write_bytes(trace())
    monkeypatch.setattr(discovery, "_remembered", discovery._remembered.__class__())
    refused = UnreadableProfileError("it is locked.", hint="Unlock it.")
    with monkeypatch.context() as patch:
        patch.setattr(discovery, "read_heads", lambda *_: iter([refused]))
        (rejected,) = discover(tmp_path).rejected
        assert rejected.reason == "it is locked. Unlock it."
    assert len(discover(tmp_path).captures) == 1


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_remembered", discovery._remembered.__class__())
    monkeypatch.setattr(discovery, "_MAX_ROOTS", 2)
    for name in "abc":
        (tmp_path / name).mkdir()
        discover(tmp_path / name)
    assert [Path(root).name for root in discovery._remembered] == ["b", "c"]


def test_data_files_do_not_use_up_the_budget(
    tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # 40 files of data come before the run by name; three files may be read.
    (tmp_path / "data").mkdir()
    for i in range(40):
        (tmp_path / "data" / f"{i}.json").write_bytes(b"{}")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.json").write_bytes(trace())
    monkeypatch.setattr(discovery, "MAX_UNCLAIMED", 3)
    listing = discover(tmp_path)
    assert [capture.run for capture in listing.captures] == ["run"]
    assert len(read) == 3
    assert listing.gaps == (
        "of 41 files that may be profiles, but whose names do not say so, 3 were looked into",
    )
