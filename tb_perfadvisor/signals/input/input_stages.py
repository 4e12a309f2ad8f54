"""What the input pipeline does while the step's thread is in it, by stage.

A DataLoader without workers runs the dataset's code on the thread that runs the steps: with Python
frames recorded, each moment of a fetch belongs to the innermost frame that tells its stage. A
loader with workers only waits on that thread; what they do happens in processes that no profile
of this one shows.

A tf.data pipeline has iterators in place of frames, on threads of the same process: the time that
the step waits for each is known, and what each does by its name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from functools import cache
from types import MappingProxyType

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.input.tfdata import READERS, tfdata
from tb_perfadvisor.signals.input.tfdata_functions import file_reads, python_functions, stall_parts
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    contains,
    join,
    minus,
    overlap_ns,
    total_ns,
    union,
)
from tb_perfadvisor.trace.tables import Int32, Int64


class Stage(Enum):
    """What a moment of a fetch goes into."""

    WORKERS = "workers"
    """Waiting for the loader's workers and taking over what they made."""
    READING = "reading"
    """Opening and reading files, sockets and stores."""
    PREPROCESSING = "preprocessing"
    """The dataset's own code: decoding, transforming, augmenting."""
    COLLATE = "collate"
    """Making one batch of samples."""
    TRANSFER = "transfer"
    """Pinning the batch or enqueueing it to the device."""


WORK = (Stage.READING, Stage.PREPROCESSING, Stage.COLLATE, Stage.TRANSFER)
"""What takes the host's time; waiting for others does not."""


class InputStages(Struct, frozen=True):
    """The fetches of a worker's step thread, split by stage."""

    intervals: Mapping[Stage, Intervals]
    """Disjoint, over the whole trace; what no frame tells is in none."""
    rows: Int32
    """The frames and operators inside the fetches, in order of start."""
    own_ns: Int64
    """Of each: its time without what it calls."""
    stage: NDArray[np.int8]
    """Of each: the place of its stage in `Stage`, -1 where none is told."""

    @property
    def is_known(self) -> bool:
        """Whether any work of the pipeline itself shows."""
        return any(total_ns(self.intervals[stage]) for stage in WORK)

    def rows_of(self, stage: Stage) -> tuple[Int32, Int64]:
        """The events of one stage, and their own time."""
        is_own = self.stage == _PLACE[stage]
        return self.rows[is_own], self.own_ns[is_own]


_BATCHING = frozenset({"Batch", "PaddedBatch", "ParallelBatch"})
_PLACE = {stage: place for place, stage in enumerate(Stage)}


@cache
def _patterns() -> tuple[tuple[Stage, re.Pattern[str]], ...]:
    """What a Python frame or call that holds a stage is called, the first match deciding.

    Frames are `file.py(line): function`, calls into C `<built-in method read of … object at …>`.
    Sources: torch/utils/data (dataloader.py, _utils/fetch.py, _utils/collate.py,
    _utils/pin_memory.py), CPython's io, os and socket modules, and the packages' own names.
    """
    package = (
        r"fsspec|gcsfs|s3fs|adlfs|botocore|boto3|s3transfer|requests|urllib3|aiohttp|h5py|lmdb"
        r"|zarr|pyarrow|google/cloud/storage|smart_open"
    )
    return (
        (
            Stage.WORKERS,
            re.compile(
                r"(?:^|/)torch/utils/data/dataloader\.py\(\d+\): (?:_get_data|_try_get_data)$"
            ),
        ),
        (
            Stage.TRANSFER,
            re.compile(
                r"(?:^|/)torch/utils/data/_utils/pin_memory\.py\(|^aten::_?pin_memory$"
                r"|^<built-in method (?:pin_memory|cuda) of "
            ),
        ),
        (
            Stage.COLLATE,
            re.compile(r"(?:^|/)torch/utils/data/_utils/collate\.py\(|\.py\(\d+\): \w*collate\w*$"),
        ),
        (
            Stage.READING,
            re.compile(
                r"^<built-in function (?:open|read|pread|preadv|readv|fromfile|stat|lstat"
                r"|listdir|scandir|getxattr)>"
                r"|^<built-in method (?:read\w*|recv\w*|close|__exit__) of "
                r"(?:_io|io|_socket|socket|_ssl|mmap|zipfile|tarfile)\b"
                r"|^<built-in method get of Transaction "
                rf"|(?:^|/)(?:{package})/[^(]*\(\d+\): "
                r"|(?:^|/)(?:zipfile|tarfile|http/client|socket)(?:/\w+)?\.py\(\d+\): "
                r"|(?:^|/)torchvision/io/\w+\.py\(\d+\): read_file$"
            ),
        ),
        (
            Stage.PREPROCESSING,
            re.compile(r"(?:^|/)torch/utils/data/_utils/fetch\.py\(\d+\): fetch$"),
        ),
    )


@memoized
def input_stages(signals: Signals) -> InputStages:
    """The fetches of the thread that runs the steps, by stage; of tf.data the waits for them."""
    if len(tfdata(signals)):
        return _of_tfdata(signals)
    trace, track = signals.trace, signals.step_track
    events = trace.events
    # On one thread what begins in a fetch lies in it.
    fetching = _time_of(trace, trace.rows(EventKind.INPUT_WAIT), track)
    rows = trace.rows(EventKind.PYTHON, EventKind.OPERATOR, EventKind.ANNOTATION)
    rows = rows[contains(fetching, events.start_ns[rows])]
    rows = rows[events.track[rows] == track]
    told = _told_stages(trace, rows)
    # What a loader does to receive a batch looks like reading, and is waiting for its workers.
    is_waiting = told == _PLACE[Stage.WORKERS]
    waiting = _time_of(trace, rows[is_waiting], track)
    told[~is_waiting & contains(waiting, events.start_ns[rows])] = -1
    stage = np.full(len(events), -1, dtype=np.int8)
    stage[rows] = told
    intervals = _innermost(trace, rows[stage[rows] >= 0], stage)
    duration, parent = events.duration_ns[rows], events.parent[rows]
    inside = np.bincount(parent, weights=duration, minlength=len(events))[rows]
    return InputStages(
        intervals=MappingProxyType(intervals),
        rows=rows,
        own_ns=np.maximum(duration - inside.astype(np.int64), 0),
        stage=_inherited(events.parent, rows, stage),
    )


def _of_tfdata(signals: Signals) -> InputStages:
    """The waits for tf.data, by what its iterators do meanwhile.

    The events are the iterators' calls and the files that functions read; their own time is what
    of it is waited for.
    """
    trace, pipelines = signals.trace, tfdata(signals)
    events, parts = trace.events, stall_parts(signals)
    reads = file_reads(signals)
    intervals = dict.fromkeys(Stage, EMPTY)
    intervals[Stage.READING] = join(parts.reading_on_demand, parts.reading_ahead)
    found = [(reads, overlap_ns(intervals[Stage.READING], *_ends(trace, reads)), Stage.READING)]
    has_python = len(python_functions(signals)) > 0
    for node, kind in enumerate(pipelines.kind):
        if kind == "Prefetch" or (kind == "Generator" and not has_python):
            # They hand on what others make, out of sight: between devices, or before the profile.
            continue
        if kind in READERS:
            stage = Stage.READING
        else:
            stage = Stage.COLLATE if kind in _BATCHING else Stage.PREPROCESSING
            own = minus(pipelines.stall[node], intervals[Stage.READING])
            intervals[stage] = join(intervals[stage], own)
        rows = pipelines.call_rows[node]
        found.append((rows, overlap_ns(pipelines.stall[node], *_ends(trace, rows)), stage))
    rows = np.concatenate([rows for rows, _, _ in found])
    own_ns = np.concatenate([own for _, own, _ in found])
    places = np.repeat([_PLACE[stage] for *_, stage in found], [len(own) for _, own, _ in found])
    order = np.argsort(events.start_ns[rows], kind="stable")
    return InputStages(
        intervals=MappingProxyType(intervals),
        rows=rows[order],
        own_ns=own_ns[order],
        stage=places[order].astype(np.int8),
    )


def _ends(trace: Trace, rows: Int32) -> tuple[Int64, Int64]:
    return trace.events.start_ns[rows], trace.events.end_ns[rows]


def _time_of(trace: Trace, rows: Int32, track: int) -> Intervals:
    events = trace.events
    rows = rows[events.track[rows] == track]
    return union(events.start_ns[rows], events.end_ns[rows])


def stage_of(name: str) -> Stage | None:
    """The stage that a frame, a call or an operator is known to hold; None where none is."""
    return next((stage for stage, pattern in _patterns() if pattern.search(name)), None)


def _told_stages(trace: Trace, rows: Int32) -> NDArray[np.int8]:
    names, inverse = unique_inverse(trace.events.name[rows])
    stages = (stage_of(trace.strings[name]) for name in names.tolist())
    places = [-1 if stage is None else _PLACE[stage] for stage in stages]
    found: NDArray[np.int8] = np.array(places, dtype=np.int8)[inverse]
    return found


def _innermost(trace: Trace, rows: Int32, stage: NDArray[np.int8]) -> dict[Stage, Intervals]:
    """The time of each stage: where events nest, the innermost has it.

    Args:
        trace: The trace.
        rows: Events of one thread that tell a stage, in order of start.
        stage: Of every event; shape (events,).
    """
    events = trace.events
    depth = np.zeros(len(rows), dtype=np.int64)
    is_telling = np.zeros(len(events), dtype=bool)
    is_telling[rows] = True
    at = events.parent[rows]
    while (at >= 0).any():
        depth += (at >= 0) & is_telling[at]
        at = np.where(at >= 0, events.parent[at], -1)
    parts: dict[Stage, list[Intervals]] = {one: [EMPTY] for one in Stage}
    taken = EMPTY
    for level in range(int(depth.max(initial=-1)), -1, -1):
        here = rows[depth == level]
        for one in Stage:
            own = here[stage[here] == _PLACE[one]]
            parts[one].append(minus(union(events.start_ns[own], events.end_ns[own]), taken))
        taken = join(taken, union(events.start_ns[here], events.end_ns[here]))
    return {one: join(*pieces) for one, pieces in parts.items()}


def _inherited(parent: Int32, rows: Int32, stage: NDArray[np.int8]) -> NDArray[np.int8]:
    """Each row's own stage, or that of the innermost event around it which tells one."""
    found = stage[rows]
    at = parent[rows]
    while ((found < 0) & (at >= 0)).any():
        is_open = (found < 0) & (at >= 0)
        found = np.where(is_open, stage[at], found)
        at = np.where(at >= 0, parent[at], -1)
    return found
