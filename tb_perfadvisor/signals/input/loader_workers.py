"""What a DataLoader's worker processes do, as `instrument.torch.time_workers` marks it."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.tables import Int64

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
    return any(_WAITS_FOR_WORKERS in trace.strings[name] for name in names.tolist())
