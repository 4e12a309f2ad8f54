"""Scans of the log directories."""

import threading
from pathlib import Path

import pytest

import tb_perfadvisor.ingest.discovery as discovery
from tb_perfadvisor.errors import NothingFoundError, PerfAdvisorError, StoreError
from tb_perfadvisor.plugin import catalog
from tb_perfadvisor.plugin.catalog import Catalog
from tb_perfadvisor.plugin.doctor import diagnose
from tb_perfadvisor.plugin.log_directories import Root, Surroundings
from tests.support.waiting import eventually

KINETO = '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::add", '
KINETO += '"pid": 1, "tid": 1, "ts": 10, "dur": 5, "args": {"External id": 1}}]}'


def put(directory: Path, name: str = "w0.1700000000000000000.pt.trace.json") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(KINETO)
    return path


def test_cache_keys_change_with_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "LOCAL_INTERVAL_S", 0.0)
    monkeypatch.setattr(catalog, "_REST_FACTOR", 0.0)
    path = put(tmp_path / "run")
    scanned = Catalog((Root(str(tmp_path), ""),))
    assert not scanned.is_active
    scanned.refresh(wait_s=10)
    assert scanned.is_active
    (before,) = scanned.snapshot.entries.values()
    assert (before.run, before.capture.format) == ("run", "kineto")
    path.write_text(KINETO + " ")
    scanned.refresh(wait_s=10)
    (after,) = scanned.snapshot.entries.values()
    assert after.id == before.id
    assert after.key != before.key
    path.unlink()
    scanned.refresh(wait_s=10)
    assert not scanned.is_active


def test_equal_paths_in_two_groups_are_two_captures(tmp_path: Path) -> None:
    put(tmp_path / "x" / "train")
    put(tmp_path / "y" / "train")
    roots = tuple(Root(str(tmp_path / name), f"g{name}") for name in "xy")
    scanned = Catalog(roots)
    scanned.refresh(wait_s=10)
    entries = scanned.snapshot.entries
    assert sorted(entry.run for entry in entries.values()) == ["gx/train", "gy/train"]
    assert len({entry.key for entry in entries.values()}) == 2


def test_missing_log_directory_does_not_hide_another(tmp_path: Path) -> None:
    put(tmp_path / "good" / "run")
    roots = (Root(str(tmp_path / "missing"), ""), Root(str(tmp_path / "good"), ""))
    scanned = Catalog(roots)
    scanned.refresh(wait_s=10)
    assert len(scanned.snapshot.entries) == 1
    (problem,) = scanned.snapshot.problems
    assert problem.where == "missing"
    assert str(tmp_path) not in problem.message
    assert not scanned.snapshot.is_complete


def test_slow_scan_does_not_block_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, scans = threading.Event(), []

    def slow(root: str, boundary: str) -> discovery.Listing:
        scans.append(root)
        gate.wait(60)
        return discovery.Listing(root, (), (), 7, True)

    monkeypatch.setattr(discovery, "discover", slow)
    monkeypatch.setattr(catalog, "_PATIENCE_S", 600)
    scanned = Catalog((Root(str(tmp_path), ""),))
    for _ in range(100):
        scanned.refresh()
        assert not scanned.is_active
    assert scanned.is_scanning  # still at the gate
    # During a slow first scan the tab appears.
    monkeypatch.setattr(catalog, "_PATIENCE_S", 0)
    assert scanned.is_active
    gate.set()
    eventually(lambda: not scanned.is_scanning)
    assert not scanned.is_active
    assert len(scans) == 1
    assert scanned.snapshot.scanned_files == 7


@pytest.mark.parametrize(("path", "scans"), [("/local", 3), ("gs://bucket/logs", 2)])
def test_burst_of_requests_causes_one_scan(
    monkeypatch: pytest.MonkeyPatch, path: str, scans: int
) -> None:
    # Local directories may be scanned again after 2 s, remote ones after 10 s.
    now, seen = [1000.0], []

    def listed(root: str, boundary: str) -> discovery.Listing:
        seen.append(root)
        return discovery.Listing(root, (), (), 0, True)

    monkeypatch.setattr(discovery, "discover", listed)
    monkeypatch.setattr(catalog.time, "monotonic", lambda: now[0])
    scanned = Catalog((Root(path, ""),))
    for later_s in (0, 0.5, 1.0, 3.0, 9.9, 10.1):
        now[0] = 1000.0 + later_s
        scanned.refresh()
        while scanned.is_scanning:
            threading.Event().wait(0.005)
    assert len(seen) == scans


def test_failing_scan_is_reported_as_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(root: str, boundary: str) -> discovery.Listing:
        raise PermissionError(13, "token expired for someone@example.org")

    monkeypatch.setattr(discovery, "discover", broken)
    scanned = Catalog((Root(str(tmp_path), ""),))
    scanned.refresh(wait_s=10)
    (problem,) = scanned.snapshot.problems
    assert problem.message == "it could not be listed (PermissionError)."
    assert "someone" not in problem.message + problem.hint


def test_stores_are_listed_only_for_requests_of_the_tab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "run")
    seen: list[str] = []
    discover = discovery.discover

    def recorded(root: str, boundary: str) -> discovery.Listing:
        seen.append(root)
        if "://" in root:
            return discovery.Listing(root, (), (), 5, True)
        return discover(root, boundary)

    monkeypatch.setattr(discovery, "discover", recorded)
    monkeypatch.setattr(catalog, "LOCAL_INTERVAL_S", 0.0)
    monkeypatch.setattr(catalog, "_REST_FACTOR", 0.0)
    remote = Catalog((Root("gs://bucket/logs", ""),))
    both = Catalog((Root("gs://bucket/logs", "far"), Root(str(tmp_path), "near")))
    for scanned in (remote, both):
        for _ in range(3):
            scanned.refresh_local()
            # The tab is shown before the store is listed.
            assert scanned.is_active
    eventually(lambda: not both._local._is_scanning)
    assert set(seen) == {str(tmp_path)}
    both.refresh(wait_s=10)
    assert seen.count("gs://bucket/logs") == 1
    assert [entry.run for entry in both.snapshot.entries.values()] == ["near/run"]
    # One local and five remote files.
    assert both.snapshot.scanned_files == 6
    assert not both.is_scanning


def test_captures_stay_while_a_store_is_unreachable(
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

    def answer(root: str, boundary: str) -> discovery.Listing:
        outcome = answers.pop(0)
        if isinstance(outcome, PerfAdvisorError):
            raise outcome
        return outcome

    monkeypatch.setattr(discovery, "discover", answer)
    monkeypatch.setattr(catalog, "REMOTE_INTERVAL_S", 0.0)
    monkeypatch.setattr(catalog, "_REST_FACTOR", 0.0)
    scanned = Catalog((Root("gs://bucket/logs", ""),))
    seen = []
    for _ in range(4):
        scanned.refresh(wait_s=10)
        seen.append((len(scanned.snapshot.entries), len(scanned.snapshot.problems)))
    assert seen == [(0, 1), (1, 0), (1, 1), (0, 1)]


def test_gaps_name_their_group(monkeypatch: pytest.MonkeyPatch) -> None:
    gap = "there are more than 7 files"

    def crowded(root: str, boundary: str) -> discovery.Listing:
        return discovery.Listing(root, (), (), 7, False, (gap,))

    monkeypatch.setattr(discovery, "discover", crowded)
    scanned = Catalog((Root("/a", "first"), Root("/b", "")))
    scanned.refresh(wait_s=10)
    assert scanned.snapshot.gaps == (f"first: {gap}", gap)
    (note, *_) = diagnose(scanned.snapshot, Surroundings("", scanned.roots, True))
    assert note.id == "scan-incomplete"
    assert f"after 14 files: first: {gap}; {gap}." in note.message


def test_a_scan_that_hangs_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, now = threading.Event(), [0.0]
    find = discovery.discover

    def hanging(path: str, boundary: str) -> discovery.Listing:
        answers.wait()
        return find(path, boundary)

    monkeypatch.setattr(discovery, "discover", hanging)
    monkeypatch.setattr(catalog.time, "monotonic", lambda: now[0])
    scanned = Catalog((Root(str(tmp_path), ""),))
    scanned.refresh()
    now[0] = 600.0
    scanned.refresh()
    assert scanned.is_scanning
    now[0] = 601.0
    scanned.refresh()
    assert not scanned.is_scanning
    (problem,) = scanned.snapshot.problems
    assert problem.message == "it does not answer: listing it takes longer than 10 minutes."
    assert not scanned.snapshot.is_complete
    # The mount is back: the thread that waited for it ends, and what it found counts.
    answers.set()
    for thread in threading.enumerate():
        if thread.name == "perf-advisor-scan":
            thread.join()
    assert scanned.snapshot.problems == ()
    assert scanned.snapshot.is_complete


@pytest.mark.parametrize(("hurries_s", "expected"), [(3600.0, ["asked"]), (-1.0, [])])
def test_after_a_request_to_record_scans_are_more_frequent_for_a_while(
    hurries_s: float, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "LOCAL_INTERVAL_S", 3600.0)
    monkeypatch.setattr(catalog, "ASKED_INTERVAL_S", 0.0)
    monkeypatch.setattr(catalog, "_REST_FACTOR", 0.0)
    monkeypatch.setattr(catalog, "ASKED_S", hurries_s)
    scanned = Catalog((Root(str(tmp_path), ""),))
    scanned.expect_recording()
    scanned.refresh(wait_s=10)  # nothing yet
    put(tmp_path / "asked")
    scanned.refresh(wait_s=10)
    assert [entry.run for entry in scanned.snapshot.entries.values()] == expected
