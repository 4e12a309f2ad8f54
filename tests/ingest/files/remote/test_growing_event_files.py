"""Of a remote event file that grows, only the new part is requested."""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.event_files.run_scalars import ScalarCache, read_run
from tb_perfadvisor.ingest.event_files.runs import event_runs
from tb_perfadvisor.ingest.files.remote.store import Store
from tests.support.event_files import Value, event, framed
from tests.support.object_stores import ObjectStore

KEY = "logs/run/events.out.tfevents.1.host"


def logged(first: int, last: int) -> bytes:
    """Records of 500 bytes, more or less."""
    tag = Value(tag="loss" + "s" * 470, simple_value=1.0)
    return framed(*(event(step, float(step), tag) for step in range(first, last + 1)))


class Transfers:
    """What was requested of the store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.downloads = 0
        read_range, download = Store.read_range, Store.download

        def watched_range(store: Store, path: str, start: int, end: int) -> bytes:
            self.ranges.append((start, end))
            return read_range(store, path, start, end)

        def watched_download(store: Store, path: str, target: str) -> None:
            self.downloads += 1
            download(store, path, target)

        monkeypatch.setattr(Store, "read_range", watched_range)
        monkeypatch.setattr(Store, "download", watched_download)

    def since_last(self) -> tuple[list[tuple[int, int]], int]:
        """Ranges and whole files since the last call."""
        found = self.ranges, self.downloads
        self.ranges, self.downloads = [], 0
        return found


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> Transfers:
    return Transfers(monkeypatch)


def last_step(store: ObjectStore, cache: ScalarCache) -> int:
    (run,) = event_runs(discover(f"{store.scheme}://bucket/logs")).values()
    (series,) = read_run(run, cache).series.values()
    return int(series.step[-1])


def test_only_the_new_part_is_requested(
    store: ObjectStore, transfers: Transfers, tmp_path: Path
) -> None:
    cache = ScalarCache(tmp_path / "scalars")
    first = logged(1, 100)
    store.put("bucket", KEY, first)
    assert last_step(store, cache) == 100
    assert transfers.since_last() == ([], 1)
    second = logged(101, 110)
    store.put("bucket", KEY, first + second[:-6])  # the last record is not finished
    assert last_step(store, cache) == 109
    end, size = len(first), len(first + second) - 6
    begin_of_last = len(first + logged(101, 109))
    # The first and the last 4,096 bytes that were read before show that it is the same file.
    assert transfers.since_last() == ([(0, 4_096), (end - 4_096, end), (end, size)], 0)
    store.put("bucket", KEY, first + second)
    assert last_step(store, cache) == 110
    ranges, downloads = transfers.since_last()
    assert (begin_of_last, size + 6) in ranges
    assert all(stop - start <= 4_096 for start, stop in ranges)
    assert downloads == 0
    # Unchanged, nothing is requested.
    assert last_step(store, cache) == 110
    assert transfers.since_last() == ([], 0)


def test_other_file_of_the_same_name_is_fetched_whole(
    store: ObjectStore, transfers: Transfers, tmp_path: Path
) -> None:
    cache = ScalarCache(tmp_path / "scalars")
    store.put("bucket", KEY, logged(1, 100))
    last_step(store, cache)
    transfers.since_last()
    store.put("bucket", KEY, logged(500, 620))
    assert last_step(store, cache) == 620
    assert transfers.since_last()[1] == 1
    store.put("bucket", KEY, logged(1, 5))  # shorter
    assert last_step(store, cache) == 5
    assert transfers.since_last()[1] == 1


def test_store_that_ignores_ranges_is_read_whole(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = ScalarCache(tmp_path / "scalars")
    first, second = logged(1, 100), logged(101, 110)
    store.put("bucket", KEY, first)
    last_step(store, cache)
    store.put("bucket", KEY, first + second)
    monkeypatch.setattr(Store, "read_range", lambda *_: first + second)
    assert last_step(store, cache) == 110


def test_files_of_other_file_systems_are_read_on(transfers: Transfers, tmp_path: Path) -> None:
    import fsspec

    memory, cache = fsspec.filesystem("memory"), ScalarCache(tmp_path / "scalars")
    path = f"/growing-{tmp_path.name}/events.out.tfevents.1.host"
    for last, downloads in ((100, 1), (110, 0)):
        memory.pipe(path, logged(1, last))
        (run,) = event_runs(discover(f"memory:/{path.rpartition('/')[0]}")).values()
        (series,) = read_run(run, cache).series.values()
        assert series.step[-1] == last
        assert transfers.since_last()[1] == downloads
