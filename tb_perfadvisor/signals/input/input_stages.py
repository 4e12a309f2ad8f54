"""What the input pipeline does while the step thread fetches a batch, by stage.

A DataLoader without workers runs the dataset's code on the step thread. If Python frames were
recorded, each moment of a fetch belongs to the innermost frame with a known stage. With workers,
the step thread only waits: the workers are other processes, which this profile does not show.

A tf.data pipeline has iterators instead of frames, on threads of the same process. How long the
step waits for each iterator is known, and its name tells the stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.input.host_loading import innermost_time
from tb_perfadvisor.signals.input.tfdata import (
    READERS,
    file_reads,
    python_functions,
    stall_parts,
    tfdata,
)
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
)
from tb_perfadvisor.trace.nesting import nearest
from tb_perfadvisor.trace.tables import Int32, Int64


class Stage(Enum):
    """A stage of the input pipeline."""

    WORKERS = "workers"
    """Waiting for the loader's workers and receiving their batches."""
    READING = "reading"
    """Opening and reading files, sockets and stores."""
    PREPROCESSING = "preprocessing"
    """The dataset's own code: decoding, transforming, augmenting."""
    COLLATE = "collate"
    """Assembling samples into a batch."""
    TRANSFER = "transfer"
    """Pinning the batch or enqueueing it to the device."""


WORK = (Stage.READING, Stage.PREPROCESSING, Stage.COLLATE, Stage.TRANSFER)
"""Stages in which this process works; it only waits for the loader's workers."""


class InputStages(Struct, frozen=True):
    """The fetches of one rank's step thread, split by stage."""

    intervals: Mapping[Stage, Intervals]
    """Disjoint, over the whole trace; without time of unknown stage."""
    rows: Int32
    """Frames and operators inside the fetches, in order of start."""
    self_ns: Int64
    """Duration of each row without its callees."""
    stage: NDArray[np.int8]
    """Index into `Stage` for each row; -1 if unknown."""

    @property
    def is_known(self) -> bool:
        """Whether any work of the pipeline is visible."""
        return any(total_ns(self.intervals[stage]) for stage in WORK)

    def rows_of(self, stage: Stage) -> tuple[Int32, Int64]:
        """The events of a stage, and their self times."""
        in_stage = self.stage == _INDEX[stage]
        return self.rows[in_stage], self.self_ns[in_stage]


_BATCHING = frozenset({"Batch", "PaddedBatch", "ParallelBatch"})
_INDEX = {stage: index for index, stage in enumerate(Stage)}


_PACKAGES = (
    r"fsspec|gcsfs|s3fs|adlfs|botocore|boto3|s3transfer|requests|urllib3|aiohttp|h5py|lmdb"
    r"|zarr|pyarrow|google/cloud/storage|smart_open"
)
_PATTERNS = (
    (
        Stage.WORKERS,
        regex(r"(?:^|/)torch/utils/data/dataloader\.py\(\d+\): (?:_get_data|_try_get_data)$"),
    ),
    (
        Stage.TRANSFER,
        regex(
            r"(?:^|/)torch/utils/data/_utils/pin_memory\.py\(|^aten::_?pin_memory$"
            r"|^<built-in method (?:pin_memory|cuda) of "
        ),
    ),
    (
        Stage.COLLATE,
        regex(r"(?:^|/)torch/utils/data/_utils/collate\.py\(|\.py\(\d+\): \w*collate\w*$"),
    ),
    (
        Stage.READING,
        regex(
            r"^<built-in function (?:open|read|pread|preadv|readv|fromfile|stat|lstat"
            r"|listdir|scandir|getxattr)>"
            r"|^<built-in method (?:read\w*|recv\w*|close|__exit__) of "
            r"(?:_io|io|_socket|socket|_ssl|mmap|zipfile|tarfile)\b"
            r"|^<built-in method get of Transaction "
            rf"|(?:^|/)(?:{_PACKAGES})/[^(]{{0,300}}\(\d+\): "
            r"|(?:^|/)(?:zipfile|tarfile|http/client|socket)(?:/\w+)?\.py\(\d+\): "
            r"|(?:^|/)torchvision/io/\w+\.py\(\d+\): read_file$"
        ),
    ),
    (
        Stage.PREPROCESSING,
        regex(r"(?:^|/)torch/utils/data/_utils/fetch\.py\(\d+\): fetch$"),
    ),
)
"""Names of Python frames and calls that belong to a stage; the first match decides.

Frames are named `file.py(line): function`, and calls into C
`<built-in method read of … object at …>`.
Sources: torch/utils/data (dataloader.py, _utils/fetch.py, _utils/collate.py,
_utils/pin_memory.py), CPython's io, os and socket modules, and the packages' own names.
"""


@memoized
def input_stages(signals: Signals) -> InputStages:
    """The step thread's fetches by stage; for tf.data, its waits for input by stage."""
    if len(tfdata(signals)):
        return _tfdata_stages(signals)
    trace, track = signals.trace, signals.step_track
    events = trace.events
    # Events of one thread nest, so whatever begins in a fetch also ends in it.
    fetching = _time_on_track(trace, trace.rows(EventKind.INPUT_WAIT), track)
    rows = trace.rows(EventKind.PYTHON, EventKind.OPERATOR, EventKind.ANNOTATION)
    rows = rows[contains(fetching, events.start_ns[rows])]
    rows = rows[events.track[rows] == track]
    named_stage = _stages_by_name(trace, rows)
    # Receiving a batch from a worker looks like reading, but it is waiting.
    is_waiting = named_stage == _INDEX[Stage.WORKERS]
    waiting = _time_on_track(trace, rows[is_waiting], track)
    named_stage[~is_waiting & contains(waiting, events.start_ns[rows])] = -1
    stage = np.full(len(events), -1, dtype=np.int8)
    stage[rows] = named_stage
    with_stage = rows[stage[rows] >= 0]
    times = innermost_time(trace, with_stage, stage[with_stage], len(Stage))
    intervals = dict(zip(Stage, times, strict=True))
    duration, parent = events.duration_ns[rows], events.parent[rows]
    # Damaged events overlap fetches without being inside them.
    nested = parent >= 0
    callees_ns = np.bincount(parent[nested], weights=duration[nested], minlength=len(events))[rows]
    return InputStages(
        intervals=MappingProxyType(intervals),
        rows=rows,
        self_ns=np.maximum(duration - callees_ns.astype(np.int64), 0),
        stage=_inherited_stages(events.parent, rows, stage),
    )


def _tfdata_stages(signals: Signals) -> InputStages:
    """The waits for tf.data, by what its iterators do meanwhile.

    The rows are calls of iterators and file reads of user functions. Their self time is the part
    that the step waits for.
    """
    trace, pipelines = signals.trace, tfdata(signals)
    events, parts = trace.events, stall_parts(signals)
    reads = file_reads(signals)
    intervals = dict.fromkeys(Stage, EMPTY)
    intervals[Stage.READING] = join(parts.reading_on_demand, parts.reading_ahead)
    waited_ns = overlap_ns(intervals[Stage.READING], *_start_and_end(trace, reads))
    groups = [(reads, waited_ns, Stage.READING)]
    has_python = len(python_functions(signals)) > 0
    for node, kind in enumerate(pipelines.kind):
        if kind in ("Prefetch", "DataService") or (kind == "Generator" and not has_python):
            # These only pass on elements. Whoever produced them is not visible.
            continue
        if kind in READERS:
            stage = Stage.READING
        else:
            stage = Stage.COLLATE if kind in _BATCHING else Stage.PREPROCESSING
            processing = minus(pipelines.stall[node], intervals[Stage.READING])
            intervals[stage] = join(intervals[stage], processing)
        rows = pipelines.call_rows[node]
        waited_ns = overlap_ns(pipelines.stall[node], *_start_and_end(trace, rows))
        groups.append((rows, waited_ns, stage))
    rows = np.concatenate([rows for rows, _, _ in groups])
    self_ns = np.concatenate([waited_ns for _, waited_ns, _ in groups])
    stages = np.repeat(
        [_INDEX[stage] for *_, stage in groups], [len(rows) for rows, _, _ in groups]
    )
    order = np.argsort(events.start_ns[rows], kind="stable")
    return InputStages(
        intervals=MappingProxyType(intervals),
        rows=rows[order],
        self_ns=self_ns[order],
        stage=stages[order].astype(np.int8),
    )


def _start_and_end(trace: Trace, rows: Int32) -> tuple[Int64, Int64]:
    return trace.events.start_ns[rows], trace.events.end_ns[rows]


def _time_on_track(trace: Trace, rows: Int32, track: int) -> Intervals:
    events = trace.events
    rows = rows[events.track[rows] == track]
    return events.spans(rows)


def stage_of(name: str) -> Stage | None:
    """The stage that the name of a frame, call or operator tells; None if it tells none."""
    return next((stage for stage, pattern in _PATTERNS if pattern.search(name)), None)


def _stages_by_name(trace: Trace, rows: Int32) -> NDArray[np.int8]:
    names, inverse = unique_inverse(trace.events.name[rows])
    stages = (stage_of(trace.strings[name]) for name in names.tolist())
    indexes = [-1 if stage is None else _INDEX[stage] for stage in stages]
    by_row: NDArray[np.int8] = np.array(indexes, dtype=np.int8)[inverse]
    return by_row


def _inherited_stages(parent: Int32, rows: Int32, stage: NDArray[np.int8]) -> NDArray[np.int8]:
    """The stage of each row, or of the innermost event around it with a known stage."""
    around = nearest(parent, stage >= 0)[rows]
    inherited: NDArray[np.int8] = np.where(around >= 0, stage[around], np.int8(-1))
    return inherited


class FileCalls(NamedTuple):
    """Calls inside fetches."""

    rows: Int32
    """Shape (n,)."""
    opened: int
    """Files that they open in the used steps."""


def file_calls(signals: Signals) -> FileCalls:
    """Calls inside fetches that open, look up or close files."""
    trace = signals.trace
    if len(tfdata(signals)):
        rows = file_reads(signals)
        return FileCalls(rows, _in_steps(signals, rows))
    rows, _ = input_stages(signals).rows_of(Stage.READING)
    rows = rows[trace.events.kind[rows] == EventKind.PYTHON]
    names, inverse = unique_inverse(trace.events.name[rows])
    texts = [trace.strings[name] for name in names.tolist()]
    is_open = np.array([bool(_OPEN_CALLS.match(text)) for text in texts], dtype=bool)[inverse]
    is_companion = np.array([bool(_COMPANION_CALLS.match(text)) for text in texts], dtype=bool)[
        inverse
    ]
    is_file_call = is_open | is_companion
    return FileCalls(rows[is_file_call], _in_steps(signals, rows[is_open]))


# Calls into CPython's io and os modules, as the profiler names them.
_OPEN_CALLS = regex(r"^<built-in function (?P<open>open)>")
# Calls that accompany each file: looking it up and closing it.
_COMPANION_CALLS = regex(
    r"^<built-in function (?:stat|lstat|getxattr)>"
    r"|^<built-in method (?:close|__exit__) of (?:_io|io)\."
)


def _in_steps(signals: Signals, rows: Int32) -> int:
    """How many of some calls belong to used steps."""
    return int((signals.steps.owner[rows] >= 0).sum())
