"""The marks of timed workers in a drawn trace."""

from __future__ import annotations

from tb_perfadvisor.instrument.loader_workers import WorkerBatch
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.input.loader_workers import has_loader_workers, worker_batches
from tb_perfadvisor.testing import draw, host
from tb_perfadvisor.testing.builder import run_of
from tb_perfadvisor.trace import EventKind

FETCH = host(
    "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", kind=EventKind.INPUT_WAIT
)
MARK = WorkerBatch(0, 2, 8, wall_us=41_000, cpu_us=9_000, files=64, read_bytes=-1).mark(4)
DRAWING = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoooooo|DDDDoooooo|
    main   |...w......|...w......|
"""


def test_marks_tell_what_batches_took() -> None:
    legend = {"D": FETCH, "w": host(MARK, kind=EventKind.ANNOTATION)}
    signals = Signals(run_of(draw(DRAWING, legend=legend)))
    assert has_loader_workers(signals)
    batches = worker_batches(signals)
    assert batches is not None
    assert (len(batches), batches.workers, batches.cores, batches.threads) == (2, 2, 8, 4)
    assert batches.wall_ns.tolist() == [41_000_000] * 2
    assert batches.cpu_ns.tolist() == [9_000_000] * 2
    assert (batches.files.tolist(), batches.read_bytes.tolist()) == ([64, 64], [-1, -1])


def test_without_marks_nothing_is_known_of_the_workers() -> None:
    signals = Signals(run_of(draw(DRAWING.replace("w", "."), legend={"D": FETCH})))
    assert has_loader_workers(signals)
    assert worker_batches(signals) is None
