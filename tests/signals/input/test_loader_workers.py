"""The marks of timed workers in a drawn trace."""

from __future__ import annotations

from tb_perfadvisor.instrument.loader_workers import WorkerBatch
from tb_perfadvisor.report.views.input import LoaderWorkers, make_input_view
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


def test_older_marks_tell_less() -> None:
    old = MARK.partition(", -1 samples")[0]
    assert old.endswith("64 files, -1 bytes")
    legend = {"D": FETCH, "w": host(old, kind=EventKind.ANNOTATION)}
    batches = worker_batches(Signals(run_of(draw(DRAWING, legend=legend))))
    assert batches is not None
    assert batches.files.tolist() == [64, 64]
    for unknown in (batches.samples, batches.system_ns, batches.collate_ns):
        assert unknown.tolist() == [-1, -1]
    assert (batches.mean_samples, batches.mean_file_bytes) == (None, None)


def test_newer_marks_tell_samples_and_stages() -> None:
    mark = WorkerBatch(0, 2, 8, 60_000, 10_000, 32, 64_000, 16, 4_000, 2_000).mark(4)
    legend = {"D": FETCH, "w": host(mark, kind=EventKind.ANNOTATION)}
    signals = Signals(run_of(draw(DRAWING, legend=legend)))
    batches = worker_batches(signals)
    assert batches is not None
    # 64,000 bytes in 32 files.
    assert (batches.mean_samples, batches.mean_file_bytes) == (16, 2_000)
    workers = make_input_view(signals).workers
    # 60 ms: 50 waiting, 4 in the operating system, and 6 of 10 computing.
    assert workers == LoaderWorkers(
        workers=2,
        cores=8,
        batches=2,
        wall_ns=60_000_000,
        waiting_ns=50_000_000,
        system_ns=4_000_000,
        computing_ns=6_000_000,
        collate_ns=2_000_000,
        samples=16,
        files=32,
        read_bytes=64_000,
    )


def test_without_marks_nothing_is_known_of_the_workers() -> None:
    signals = Signals(run_of(draw(DRAWING.replace("w", "."), legend={"D": FETCH})))
    assert has_loader_workers(signals)
    assert worker_batches(signals) is None
