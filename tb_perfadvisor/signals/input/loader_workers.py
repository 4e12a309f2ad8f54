"""Worker processes of loaders, and fetches that wait for them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec import Struct

from tb_perfadvisor.machine.facts import Made
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.core.idle_gaps import first_copies, rhythm
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct, unique_inverse
from tb_perfadvisor.trace.intervals import Intervals, intersect, overlap_ns, total_ns
from tb_perfadvisor.trace.names import BLOCKING_CALL, named
from tb_perfadvisor.trace.tables import Int32, Int64

_WAITS_FOR_WORKERS = "_MultiProcessingDataLoaderIter"
# At least one, and numbers whose sums fit into 64 bits. Names of events can be made up.
_COUNT, _SIZE = r"[1-9]\d{0,5}", r"\d{1,12}"
# Written by tb_perfadvisor.instrument.loader_workers.
_MARK = regex(
    rf"^DataLoader worker \d+ of (?P<workers>{_COUNT}) on (?P<cores>{_COUNT}) cores"
    rf" beside (?P<threads>{_COUNT}) threads: (?P<wall>{_SIZE}) us, CPU (?P<cpu>{_SIZE}) us,"
    rf" (?P<files>{_SIZE}) files, (?P<bytes>-?{_SIZE}) bytes(?:, (?P<samples>-?{_SIZE}) samples,"
    rf" system (?P<system>-?{_SIZE}) us, collate (?P<collate>-?{_SIZE}) us)?$"
)


_UNKNOWN = -1


class WorkerBatches(Struct, frozen=True):
    """Batches that workers made; columns are (batches,)."""

    wall_ns: Int64
    cpu_ns: Int64
    files: Int64
    """Files that Python code opened."""
    read_bytes: Int64
    """-1 if unknown, as in the next three."""
    samples: Int64
    system_ns: Int64
    """Part of the processor time that the operating system took, among others to read."""
    collate_ns: Int64
    """Part of the wall time."""
    workers: int
    cores: int
    """How many processors a worker may use."""
    threads: int
    """How many threads an operator of the training process may use."""

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.wall_ns)

    @property
    def mean_samples(self) -> float | None:
        """Samples per batch; None if unknown."""
        return mean_of_known(self.samples)

    @property
    def mean_file_bytes(self) -> float | None:
        """Bytes that were read for each file; None if unknown, or without files."""
        read_bytes, files = mean_of_known(self.read_bytes), float(self.files.mean())
        return None if read_bytes is None or not files else read_bytes / files


def mean_of_known(column: Int64) -> float | None:
    """The mean of a column of `WorkerBatches`; None if some of it is unknown."""
    return None if (column == _UNKNOWN).any() else float(column.mean())


@memoized
def worker_batches(signals: Signals) -> WorkerBatches | None:
    """The batches that the used steps took from timed workers; None without such marks."""
    trace = signals.trace
    events, rows = trace.events, trace.rows(EventKind.ANNOTATION)
    rows = signals.steps.own(rows)
    found = [_MARK.match(trace.strings[name]) for name in events.name[rows].tolist()]
    marks = [match for match in found if match is not None]
    if not marks:
        return None

    def column(field: str, factor: int = 1) -> Int64:
        values = np.array([int(match[field] or _UNKNOWN) for match in marks], dtype=np.int64)
        return np.where(values == _UNKNOWN, _UNKNOWN, values * factor)

    return WorkerBatches(
        wall_ns=column("wall", 1000),
        cpu_ns=column("cpu", 1000),
        files=column("files"),
        read_bytes=column("bytes"),
        samples=column("samples"),
        system_ns=column("system", 1000),
        collate_ns=column("collate", 1000),
        workers=int(marks[-1]["workers"]),
        cores=int(marks[-1]["cores"]),
        threads=int(marks[-1]["threads"]),
    )


@memoized
def has_loader_workers(signals: Signals) -> bool:
    """Whether worker processes of a DataLoader make the batches."""
    trace = signals.trace
    names = distinct(trace.events.name[trace.rows(EventKind.INPUT_WAIT)])
    is_named = any(_WAITS_FOR_WORKERS in trace.strings[name] for name in names.tolist())
    return is_named or awaited_workers(signals) is not None


@memoized
def awaited_workers(signals: Signals) -> int | None:
    """How many workers make the batches that the loop waits for, by the rhythm of the waits.

    None if a fetch is recorded, which says so itself, or if there is no rhythm.
    """
    trace, events = signals.trace, signals.trace.events
    if signals.device.is_host_only or len(trace.rows(EventKind.INPUT_WAIT, EventKind.INFEED_WAIT)):
        return None
    batches = first_copies(trace, signals.device.rows)
    waits = signals.attribution.intervals[Cause.INPUT]
    waited = np.zeros(len(batches) + 1, dtype=np.int64)
    place = np.searchsorted(events.start_ns[batches], waits[:, 1])
    np.add.at(waited, place, waits[:, 1] - waits[:, 0])
    return rhythm(waited[:-1])


def blocking_calls(signals: Signals, waits: Intervals) -> Int32:
    """Calls of the operating system in which the loop waits for other threads or processes."""
    trace = signals.trace
    rows = trace.rows(EventKind.PYTHON)
    rows = rows[named(trace, rows, BLOCKING_CALL)]
    return rows[overlap_ns(waits, trace.events.start_ns[rows], trace.events.end_ns[rows]) > 0]


class MoreWorkers(NamedTuple):
    """What more workers bring to a loop that waits for those that it has."""

    now: int
    enough: int
    """As many as keep up, as far as there are cores for them."""
    saved_ns: int
    """Over the used steps."""


@memoized
def more_workers(signals: Signals) -> MoreWorkers | None:
    """What more workers bring; None if it is unknown how many there are.

    A loop that waits keeps its workers busy. So `n` of them would make the same batches in
    `now / n` of the time, and the loop takes as long, or as long as all but its waits.
    """
    now = awaited_workers(signals)
    if now is None:
        return None
    attribution = signals.attribution
    window_ns, stall_ns = attribution.window_ns, attribution.total_ns(Cause.INPUT)
    most = max(int(signals.trace.facts.machine.usable_cores or _MOST_WORKERS), now)
    enough = min(-(-now * window_ns // max(window_ns - stall_ns, 1)), most)
    return MoreWorkers(now, enough, min(stall_ns, window_ns - window_ns * now // enough))


def number_of_workers(signals: Signals) -> str:
    """How many workers to use if there are too few, as code."""
    more = more_workers(signals)
    return "2 * num_workers" if more is None else f"{more.enough}"


_BATCH_NS = 60_000
"""What the loader does for a batch: indices of its samples, and a tensor for each part of it."""
_TENSOR_NS = (3_000, 7_000, 12_000)
"""To take a sample from tensors, and its part of stacking them: least, expected, most. Batches of
32 to 128 samples took 0.15 to 0.9 ms without workers, with PyTorch 2.13."""
_OTHER_NS = (5_000, 40_000, 150_000)
"""The same of other datasets that hold arrays, which may prepare each sample."""
_PER_BYTE_NS = 0.4
"""To copy a sample into its batch: 2.5 GB/s."""


class NeedlessWorkers(Struct, frozen=True):
    """A loader whose worker processes cost more than they bring."""

    loader: Made
    fetch_ns: int
    """What a batch is expected to take without them."""
    low_ns: int
    """What is saved over the used steps."""
    expected_ns: int
    high_ns: int


@memoized
def needless_workers(signals: Signals) -> NeedlessWorkers | None:
    """The loader, in a program on the CPU; None unless all loaders with workers are in memory."""
    if not signals.device.is_host_only or not has_loader_workers(signals):
        return None
    loaders = [
        made
        for made in signals.trace.facts.program.all_made("loader")
        if made.number("num_workers") > 0
    ]
    if not loaders or not all(made.number("dataset_bytes") for made in loaders):
        return None
    loader = max(loaders, key=lambda made: made.number("samples"))
    samples, batch = loader.number("samples"), loader.number("batch_size")
    if not samples or not batch:
        return None
    stall_ns = total_ns(signals.attribution.intervals[Cause.INPUT])
    copy_ns = _PER_BYTE_NS * loader.number("dataset_bytes") / samples
    prices = _TENSOR_NS if loader.facts.get("dataset") == "TensorDataset" else _OTHER_NS
    least_ns, usual_ns, most_ns = (
        int(_BATCH_NS + batch * (sample_ns + copy_ns)) for sample_ns in prices
    )
    timed = worker_batches(signals)
    if timed is not None:
        least_ns = usual_ns = most_ns = int(timed.cpu_ns.mean())
    steps = max(signals.steps.count, 1)
    return NeedlessWorkers(
        loader,
        usual_ns,
        stall_ns - steps * most_ns,
        stall_ns - steps * usual_ns,
        stall_ns - steps * least_ns,
    )


# An iterator's name lists the chain from the last transformation; tf.data adds a root.
_LAST_PREFETCH = regex(r"Iterator::(?:Root|Model)::Prefetch$")
_SINGLE_PROCESS = "_SingleProcessDataLoaderIter"
"""torch/utils/data/dataloader.py: the iterator that `num_workers=0` makes."""
_FEWEST_WORKERS = 4
"""Two to four for each device are usual, and batches take unequal time."""
_MOST_WORKERS = 16
"""More than this seldom pays: each takes memory and a share of the cores."""


class WaitingFetches(NamedTuple):
    """Fetches during which the device waits for input; columns of shape (n,)."""

    rows: Int32
    idle_ns: Int64
    has_workers: bool
    """Whether any of them fetches from worker processes of PyTorch's DataLoader."""
    is_in_process: bool
    """Whether all of them load in the process that fetches."""


def waiting_fetches(signals: Signals) -> WaitingFetches:
    """The fetches of a rank during which its device waits."""
    trace, claims = signals.trace, signals.attribution.intervals[Cause.INPUT]
    rows = trace.rows(EventKind.INPUT_WAIT, EventKind.INFEED_WAIT)
    idle_ns = overlap_ns(claims, trace.events.start_ns[rows], trace.events.end_ns[rows])
    rows, idle_ns = rows[idle_ns > 0], idle_ns[idle_ns > 0]
    names = {trace.text(name) for name in distinct(trace.events.name[rows]).tolist()}
    return WaitingFetches(
        rows,
        idle_ns,
        has_workers=any("MultiProcessing" in name for name in names)
        or awaited_workers(signals) is not None,
        is_in_process=bool(names) and all("SingleProcess" in name for name in names),
    )


def fetches_without_workers(signals: Signals) -> Int32:
    """Fetches of the steps' thread from a DataLoader that loads in the same process; rows."""
    trace, rows = signals.trace, signals.trace.rows(EventKind.INPUT_WAIT)
    rows = rows[trace.events.track[rows] == signals.step_track]
    names, place = unique_inverse(trace.events.name[rows])
    is_single = [_SINGLE_PROCESS in trace.strings[name] for name in names.tolist()]
    single: Int32 = rows[np.array(is_single, dtype=bool)[place]]
    return single


def workers_to_keep_up(signals: Signals) -> int:
    """As many workers as load in the time of everything else what the steps' thread loads now.

    Of a loader that has workers, as many as keep up.
    """
    if (more := more_workers(signals)) is not None:
        return more.enough
    events, rows = signals.trace.events, fetches_without_workers(signals)
    fetches = events.spans(rows)
    waiting = intersect(signals.attribution.intervals[Cause.INPUT], fetches)
    others_ns = signals.attribution.window_ns - total_ns(waiting)
    needed = -(-total_ns(fetches) // max(others_ns, 1))
    return min(max(needed, _FEWEST_WORKERS), _MOST_WORKERS)


def ends_in_prefetch(signals: Signals) -> bool:
    """Whether a pipeline in the recorder's list of stages ends in a prefetch."""
    totals = signals.trace.totals
    stages = totals.input_stages if totals is not None else ()
    return any(_LAST_PREFETCH.match(stage.name) for stage in stages)
