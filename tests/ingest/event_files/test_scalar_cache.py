"""What was read of event files is kept, and growing files are read on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.event_files.reader import ScalarReader
from tb_perfadvisor.ingest.event_files.run_scalars import ScalarCache, read_run
from tb_perfadvisor.ingest.event_files.runs import event_runs
from tests.support.event_files import Value, event, framed

NAME = "events.out.tfevents.1.host"


@pytest.fixture
def cache(tmp_path: Path) -> ScalarCache:
    return ScalarCache(tmp_path / "cache")


@pytest.fixture
def begins(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The position at which each reading of a file began."""
    positions: list[int] = []

    class Reader(ScalarReader):
        def read(self, stream: object, where: str = "") -> None:
            positions.append(self.end)
            super().read(stream, where)  # type: ignore[arg-type]

    monkeypatch.setattr("tb_perfadvisor.ingest.event_files.reader.ScalarReader", Reader)
    return positions


def logged(step: int, tag: str = "loss") -> bytes:
    return framed(event(step, float(step), Value(tag=tag, simple_value=step / 2)))


def values(logdir: Path, cache: ScalarCache) -> dict[str, list[float]]:
    (run,) = event_runs(discover(logdir)).values()
    scalars = read_run(run, cache)
    return {tag: series.value.tolist() for tag, series in scalars.series.items()}


def test_growing_file_is_read_on(tmp_path: Path, cache: ScalarCache, begins: list[int]) -> None:
    file = tmp_path / "run" / NAME
    file.parent.mkdir()
    file.write_bytes(logged(1) + logged(2)[:-3])  # the second record is not finished
    assert values(file.parent, cache) == {"loss": [0.5]}
    assert values(file.parent, cache) == {"loss": [0.5]}
    file.write_bytes(logged(1) + logged(2) + logged(3, "lr"))
    assert values(file.parent, cache) == {"loss": [0.5, 1.0], "lr": [1.5]}
    assert begins == [0, len(logged(1))]  # unchanged, it is not read at all


def test_other_file_of_the_same_name_is_read_anew(
    tmp_path: Path, cache: ScalarCache, begins: list[int]
) -> None:
    file = tmp_path / "run" / NAME
    file.parent.mkdir()
    file.write_bytes(logged(1) + logged(2))
    values(file.parent, cache)
    file.write_bytes(logged(4) + logged(6) + logged(8))
    assert values(file.parent, cache) == {"loss": [2.0, 3.0, 4.0]}
    assert begins == [0, 0]


def test_damaged_entry_is_read_anew(tmp_path: Path, cache: ScalarCache) -> None:
    file = tmp_path / "run" / NAME
    file.parent.mkdir()
    file.write_bytes(logged(1))
    values(file.parent, cache)
    (stored,) = cache.directory.glob("entries/*/points.npz")
    stored.write_bytes(stored.read_bytes()[:50])
    assert values(file.parent, cache) == {"loss": [0.5]}


def test_file_without_scalars_is_kept_too(
    tmp_path: Path, cache: ScalarCache, begins: list[int]
) -> None:
    file = tmp_path / "run" / NAME
    file.parent.mkdir()
    file.write_bytes(framed(event(1, 1.0)))
    assert values(file.parent, cache) == values(file.parent, cache) == {}
    assert begins == [0]


def test_cache_is_bounded(tmp_path: Path) -> None:
    cache = ScalarCache(tmp_path / "cache", max_bytes=3_000)
    for name in "abcdef":
        file = tmp_path / name / NAME
        file.parent.mkdir()
        file.write_bytes(logged(1))
        values(file.parent, cache)
    stored = list(cache.directory.glob("entries/*/points.npz"))
    assert 0 < sum(path.stat().st_size for path in stored) <= 3_000
