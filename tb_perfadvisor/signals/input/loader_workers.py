"""Worker processes of loaders, and fetches that wait for them."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from tb_perfadvisor.machine.facts import Made
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import CopyDirection, EventKind
from tb_perfadvisor.trace.integer_groups import distinct, unique_inverse
from tb_perfadvisor.trace.intervals import intersect, overlap_ns, total_ns, union
from tb_perfadvisor.trace.names import blocks_for_others
from tb_perfadvisor.trace.tables import Int32, Int64

_WAITS_FOR_WORKERS = "_MultiProcessingDataLoaderIter"
# At least one, and numbers whose sums fit into 64 bits. Names of events can be made up.
_COUNT, _SIZE = r"[1-9]\d{0,5}", r"\d{1,12}"
# Written by tb_perfadvisor.instrument.loader_workers.
_MARK = re.compile(
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


_LATE_SHARE = 0.5
"""Of the mean of the longest tenth of waits: a batch that is late for its workers, and not one that
only takes its time to unpack."""


@memoized
def awaited_workers(signals: Signals) -> int | None:
    """How many workers make the batches that the launching thread waits for in system calls.

    A loader with k workers hands out k batches at once, and the next are not there yet. So every
    k-th batch is late. A batch is the first of the copies to the device between two kernels.

    None if no such call waits for a batch. 1 if each is late, as one worker makes them.
    """
    trace, events = signals.trace, signals.trace.events
    waits = trace.rows(EventKind.INPUT_WAIT)
    names = distinct(events.name[waits]).tolist()
    calls = [name for name in names if blocks_for_others(trace.strings[name])]
    waits = waits[np.isin(events.name[waits], calls)]
    if not len(waits):
        return None
    work = signals.device.rows
    to_device = trace.copies.row[trace.copies.direction == CopyDirection.HOST_TO_DEVICE]
    is_copy = np.isin(work, to_device)
    begins = is_copy & ~np.concatenate(([False], is_copy[:-1]))
    batches = events.start_ns[work[begins]]
    place = np.searchsorted(batches, events.end_ns[waits])
    waited = np.zeros(len(batches) + 1)
    np.add.at(waited, place, events.duration_ns[waits])
    longest = np.sort(waited)[-max(len(waits) // 10, 1) :].mean()
    late = np.flatnonzero(waited[:-1] >= min(_LATE_SHARE * longest, np.median(waited[waited > 0])))
    return int(np.median(np.diff(late))) if len(late) > 1 else 1


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
_LAST_PREFETCH = re.compile(r"Iterator::(?:Root|Model)::Prefetch$")
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
    """As many workers as load in the time of everything else what the steps' thread loads now."""
    events, rows = signals.trace.events, fetches_without_workers(signals)
    fetches = union(events.start_ns[rows], events.end_ns[rows])
    waiting = intersect(signals.attribution.intervals[Cause.INPUT], fetches)
    others_ns = signals.attribution.window_ns - total_ns(waiting)
    needed = -(-total_ns(fetches) // max(others_ns, 1))
    return min(max(needed, _FEWEST_WORKERS), _MOST_WORKERS)


def ends_in_prefetch(signals: Signals) -> bool:
    """Whether a pipeline in the recorder's list of stages ends in a prefetch."""
    totals = signals.trace.totals
    stages = totals.input_stages if totals is not None else ()
    return any(_LAST_PREFETCH.match(stage.name) for stage in stages)
