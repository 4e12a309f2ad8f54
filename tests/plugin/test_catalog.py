import threading
import time
from pathlib import Path

import pytest

import tb_perfadvisor.ingest.discovery as discovery
from tb_perfadvisor.errors import NothingFoundError, PerfAdvisorError, StoreError
from tb_perfadvisor.plugin import catalog
from tb_perfadvisor.plugin.catalog import Catalog
from tb_perfadvisor.plugin.doctor import Surroundings, diagnose
from tb_perfadvisor.plugin.naming import Root
from tests.support.waiting import eventually

KINETO = '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::add", '
KINETO += '"pid": 1, "tid": 1, "ts": 10, "dur": 5, "args": {"External id": 1}}]}'


def put(directory: Path, name: str = "w0.1700000000000000000.pt.trace.json") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(KINETO)
    return path


def test_finds_captures_and_keys_follow_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "LOCAL_INTERVAL_S", 0.0)
    monkeypatch.setattr(catalog, "_REST_FACTOR", 0.0)
    path = put(tmp_path / "run")
    found = Catalog((Root(str(tmp_path), ""),))
    assert not found.is_active
    found.refresh(wait_s=10)
    assert found.is_active
    (before,) = found.snapshot.entries.values()
    assert (before.run, before.capture.format) == ("run", "kineto")
    path.write_text(KINETO + " ")
    found.refresh(wait_s=10)
    (after,) = found.snapshot.entries.values()
    assert after.id == before.id
    assert after.key != before.key
    path.unlink()
    found.refresh(wait_s=10)
    assert not found.is_active


def test_groups_with_equal_paths_are_two_captures(tmp_path: Path) -> None:
    put(tmp_path / "x" / "train")
    put(tmp_path / "y" / "train")
    roots = tuple(Root(str(tmp_path / name), f"g{name}") for name in "xy")
    found = Catalog(roots)
    found.refresh(wait_s=10)
    entries = found.snapshot.entries
    assert sorted(entry.run for entry in entries.values()) == ["gx/train", "gy/train"]
    assert len({entry.key for entry in entries.values()}) == 2


def test_one_bad_root_does_not_hide_the_other(tmp_path: Path) -> None:
    put(tmp_path / "good" / "run")
    roots = (Root(str(tmp_path / "missing"), ""), Root(str(tmp_path / "good"), ""))
    found = Catalog(roots)
    found.refresh(wait_s=10)
    assert len(found.snapshot.entries) == 1
    (problem,) = found.snapshot.problems
    assert problem.where == "missing"
    assert str(tmp_path) not in problem.message
    assert not found.snapshot.is_complete


def test_slow_scan_blocks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, scans = threading.Event(), []

    def slow(root: str) -> discovery.Listing:
        scans.append(root)
        gate.wait(30)
        return discovery.Listing(root, (), (), 7, True)

    monkeypatch.setattr(discovery, "discover", slow)
    monkeypatch.setattr(catalog, "_PATIENCE_S", 0.3)
    found = Catalog((Root(str(tmp_path), ""),))
    began = time.monotonic()
    for _ in range(100):
        found.refresh()
        _ = found.is_active
    assert time.monotonic() - began < 0.25
    assert not found.is_active
    assert found.is_scanning
    # Still at it after a while: the tab shows, and says so.
    eventually(lambda: found.is_active)
    gate.set()
    eventually(lambda: not found.is_scanning)
    assert not found.is_active
    assert len(scans) == 1
    assert found.snapshot.scanned_files == 7


@pytest.mark.parametrize(("path", "scans"), [("/local", 3), ("gs://bucket/logs", 2)])
def test_requests_in_a_burst_are_one_scan(
    monkeypatch: pytest.MonkeyPatch, path: str, scans: int
) -> None:
    # Local directories may be looked at again after 2 s, remote ones after 10 s.
    now, seen = [1000.0], []

    def listed(root: str) -> discovery.Listing:
        seen.append(root)
        return discovery.Listing(root, (), (), 0, True)

    monkeypatch.setattr(discovery, "discover", listed)
    monkeypatch.setattr(catalog.time, "monotonic", lambda: now[0])
    found = Catalog((Root(path, ""),))
    for later_s in (0, 0.5, 1.0, 3.0, 9.9, 10.1):
        now[0] = 1000.0 + later_s
        found.refresh()
        while found.is_scanning:
            threading.Event().wait(0.005)
    assert len(seen) == scans


def test_reader_that_raises_is_a_problem_and_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(root: str) -> discovery.Listing:
        raise PermissionError(13, "token expired for someone@example.org")

    monkeypatch.setattr(discovery, "discover", broken)
    found = Catalog((Root(str(tmp_path), ""),))
    found.refresh(wait_s=10)
    (problem,) = found.snapshot.problems
    assert problem.message == "it could not be listed (PermissionError)."
    assert "someone" not in problem.message + problem.hint


def test_stores_are_listed_for_people_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "run")
    seen: list[str] = []
    discover = discovery.discover

    def recorded(root: str) -> discovery.Listing:
        seen.append(root)
        return discovery.Listing(root, (), (), 5, True) if "://" in root else discover(root)

    monkeypatch.setattr(discovery, "discover", recorded)
    monkeypatch.setattr(catalog, "LOCAL_INTERVAL_S", 0.0)
    monkeypatch.setattr(catalog, "_REST_FACTOR", 0.0)
    remote = Catalog((Root("gs://bucket/logs", ""),))
    both = Catalog((Root("gs://bucket/logs", "far"), Root(str(tmp_path), "near")))
    for found in (remote, both):
        for _ in range(3):
            found.refresh_local()
            # Unknown is not no: the tab is there, and looks when it is opened.
            assert found.is_active
    eventually(lambda: not both._local._is_scanning)
    assert set(seen) == {str(tmp_path)}
    both.refresh(wait_s=10)
    assert seen.count("gs://bucket/logs") == 1
    assert [entry.run for entry in both.snapshot.entries.values()] == ["near/run"]
    # One file here, five there.
    assert both.snapshot.scanned_files == 6
    assert not both.is_scanning


def test_a_store_that_is_down_for_a_moment_takes_nothing_from_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "run")
    listing = discovery.discover(tmp_path)
    answers: list[discovery.Listing | PerfAdvisorError] = [
        StoreError("the store cannot be reached.", hint="Check the network."),
        listing,
        StoreError("the store cannot be reached.", hint="Check the network."),
        NothingFoundError("there is no such file or directory."),
    ]

    def answer(root: str) -> discovery.Listing:
        next_one = answers.pop(0)
        if isinstance(next_one, PerfAdvisorError):
            raise next_one
        return next_one

    monkeypatch.setattr(discovery, "discover", answer)
    monkeypatch.setattr(catalog, "REMOTE_INTERVAL_S", 0.0)
    monkeypatch.setattr(catalog, "_REST_FACTOR", 0.0)
    found = Catalog((Root("gs://bucket/logs", ""),))
    seen = []
    for _ in range(4):
        found.refresh(wait_s=10)
        seen.append((len(found.snapshot.entries), len(found.snapshot.problems)))
    assert seen == [(0, 1), (1, 0), (1, 1), (0, 1)]


def test_what_was_not_looked_at_is_named_by_group(monkeypatch: pytest.MonkeyPatch) -> None:
    gap = "there are more than 7 files"
    monkeypatch.setattr(
        discovery, "discover", lambda root: discovery.Listing(root, (), (), 7, False, (gap,))
    )
    found = Catalog((Root("/a", "first"), Root("/b", "")))
    found.refresh(wait_s=10)
    assert found.snapshot.gaps == (f"first: {gap}", gap)
    (note, *_) = diagnose(found.snapshot, Surroundings("", found.roots, True))
    assert note.id == "scan-incomplete"
    assert f"(14 files were): first: {gap}; {gap}." in note.message
