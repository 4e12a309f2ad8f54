"""What a timeline shows of a capture, stored beside its report so that it needs no second parse."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.trace.intervals import Intervals
from tb_perfadvisor.trace.tables import Int32, Int64, UInt8

_TEXTS = ("texts", "track_label", "track_process", "causes")
_SCALARS = (
    "worker",
    "start_ns_of_window",
    "end_ns_of_window",
    "whole_ns",
    "left_out",
    "ranks_left_out",
)


class TimelineEvents(Struct, frozen=True):
    """Columns of events by row and start. Times are on the clock of the reference worker.

    A row is a lane of a track, drawn below the one before it. `name`, `module` and `line` index
    `texts`; -1 is unknown.
    """

    worker: int
    """The reference worker: its index in the report's `workers`."""
    start_ns_of_window: int
    """The time that causes are given to."""
    end_ns_of_window: int
    whole_ns: int
    """End of the last event."""
    left_out: int
    """How many events of the ranks that are there are not stored."""
    ranks_left_out: int
    """How many ranks have too many events to be there."""
    start_ns: Int64
    duration_ns: Int64
    row: Int32
    kind: UInt8
    """`EventKind`."""
    name: Int32
    module: Int32
    line: Int32
    """Source line: `train.py:12 step`."""
    track_first_row: Int32
    """The first row of each track, and at the end the number of rows; shape (tracks + 1,)."""
    track_is_device: NDArray[np.bool_]
    track_device: Int32
    """Device index, -1 on the host."""
    track_worker: Int32
    worker_shift_ns: Int64
    """What each worker's own times are behind those of the reference worker; shape (workers,)."""
    cause: UInt8
    """Index into `causes`, ascending; the columns of causes are in order of time within each."""
    cause_start_ns: Int64
    cause_end_ns: Int64
    claim_finding: Int32
    """Index of the report's finding that claims the time, in ascending order."""
    claim_start_ns: Int64
    claim_end_ns: Int64
    step_number: Int64
    step_start_ns: Int64
    step_end_ns: Int64
    texts: tuple[str, ...]
    track_label: tuple[str, ...]
    track_process: tuple[str, ...]
    causes: tuple[str, ...]

    @property
    def end_ns(self) -> Int64:
        """Shape (n,)."""
        return self.start_ns + self.duration_ns

    @property
    def track(self) -> Int64:
        """The track of each event."""
        track: Int64 = np.searchsorted(self.track_first_row, self.row, side="right") - 1
        return track

    def claims_of(self, finding: int) -> Intervals:
        """The time that a finding's saving is taken from; empty without a saving."""
        first, last = np.searchsorted(self.claim_finding, (finding, finding + 1))
        return np.column_stack((self.claim_start_ns[first:last], self.claim_end_ns[first:last]))

    def intervals_of(self, cause: int) -> Intervals:
        """The time of a cause, an index into `causes`."""
        first, last = np.searchsorted(self.cause, (cause, cause + 1))
        return np.column_stack((self.cause_start_ns[first:last], self.cause_end_ns[first:last]))


_COLUMNS = tuple(
    name for name in TimelineEvents.__struct_fields__ if name not in (*_TEXTS, *_SCALARS)
)


def encode_events(stored: TimelineEvents) -> bytes:
    """Encode as a compressed npz without pickles."""
    arrays: dict[str, NDArray[Any]] = {name: getattr(stored, name) for name in _COLUMNS}
    for name in _TEXTS:
        text = json.dumps(list(getattr(stored, name)))
        arrays[name] = np.frombuffer(text.encode("ascii"), dtype=np.uint8)
    arrays["scalars"] = np.array([getattr(stored, name) for name in _SCALARS], dtype=np.int64)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def decode_events(content: bytes) -> TimelineEvents:
    """Decode what `encode_events` wrote.

    Raises:
        PerfAdvisorError: When the content is damaged or something else.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            columns: dict[str, Any] = {name: archive[name] for name in _COLUMNS}
            for name in _TEXTS:
                columns[name] = tuple(json.loads(archive[name].tobytes()))
            scalars = dict(zip(_SCALARS, archive["scalars"].tolist(), strict=True))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise PerfAdvisorError(
            "the stored events cannot be read", hint="Analyze the capture again."
        ) from error
    return TimelineEvents(**scalars, **columns)
