"""The large traces that readers are measured with are what they claim to be."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import msgspec
import numpy as np
import pytest

import big_kineto
from tb_perfadvisor.ingest.kineto.reader import read_kineto
from tb_perfadvisor.trace import EventKind, Source, Trace

DEMO_LOGS = Path(__file__).parents[2] / "demo_logs"
# On a device, with launches to join, two collectives a step and a rank.
(ON_GPU,) = DEMO_LOGS.glob("synthetic_gpu_allreduce_8rank/rank0.*.json.gz")
# Recorded by PyTorch itself.
(RECORDED,) = DEMO_LOGS.glob("pytorch_input_slow/*.json.gz")


def read(path: Path) -> Trace:
    data = path.read_bytes()
    return next(read_kineto(io.BytesIO(data), Source(path=path.name, format="")))


@pytest.mark.parametrize("source", [ON_GPU, RECORDED])
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_a_repeated_trace_has_so_many_times_everything(
    source: Path, suffix: str, tmp_path: Path
) -> None:
    target = tmp_path / f"big.pt.trace{suffix}"
    size_bytes = 2 * len(gzip.decompress(source.read_bytes())) + 1
    count = big_kineto.repeat(source, target, size_bytes=size_bytes)
    assert count == 3
    original, multiplied = read(source), read(target)
    assert multiplied.notes == original.notes
    assert Counts.of(multiplied) == Counts.of(original) * 3
    # Step numbers continue from copy to copy.
    numbers = multiplied.events.step[multiplied.rows(EventKind.STEP)]
    first = int(original.events.step[original.rows(EventKind.STEP)].min())
    assert numbers.tolist() == list(range(first, first + numbers.size))


class Counts(tuple[int, ...]):
    """How much there is of what readers find and join."""

    @classmethod
    def of(cls, trace: Trace) -> Counts:
        events = trace.events
        return cls(
            (
                len(events),
                trace.rows(EventKind.STEP).size,
                int((events.launched_by >= 0).sum()),
                int((events.forward >= 0).sum()),
                len(trace.memory.at_ns),
                len(trace.collectives.row),
                int(events.duration_ns.sum()),
            )
        )

    def __mul__(self, count: object) -> Counts:
        assert isinstance(count, int)
        return Counts(value * count for value in self)


def test_nothing_joins_across_copies(tmp_path: Path) -> None:
    target = tmp_path / "big.pt.trace.json"
    big_kineto.repeat(ON_GPU, target, size_bytes=300_000)  # the source has 126 kB
    original, multiplied = read(ON_GPU), read(target)

    def delays_ns(trace: Trace) -> list[int]:
        device = np.flatnonzero(trace.events.launched_by >= 0)
        launched = trace.events.launched_by[device]
        return sorted((trace.events.start_ns[device] - trace.events.start_ns[launched]).tolist())

    assert len(delays_ns(original)) > 100
    assert delays_ns(multiplied) == sorted(delays_ns(original) * 3)


def test_the_text_between_numbers_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "big.pt.trace.json"
    big_kineto.repeat(RECORDED, target, size_bytes=1)  # one copy
    assert _events(target.read_bytes()) == _events(gzip.decompress(RECORDED.read_bytes()))


def _events(data: bytes) -> bytes:
    top = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    return bytes(top["traceEvents"]).strip(b"[]").strip()


def test_ranks_are_those_of_one_run(tmp_path: Path) -> None:
    files = big_kineto.ranks(ON_GPU, tmp_path, 3)
    assert sorted(tmp_path.iterdir()) == files
    sources = [read(file).source for file in files]
    assert [source.rank for source in sources] == [0, 1, 2]
    assert {source.world_size for source in sources} == {3}
