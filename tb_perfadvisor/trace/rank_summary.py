"""The summary of a rank, which takes the place of its trace where ranks are compared."""

from __future__ import annotations

from msgspec import Struct

from tb_perfadvisor.note import Note
from tb_perfadvisor.trace.tables import Int32, Int64, UInt8

Stream = tuple[str, str, bool]
"""Group with its ranks, operation, and whether the collectives have sequence numbers. If not, the
lists of the ranks are aligned by when the collectives end."""

NO_STEP = -(2**63)
"""Stands for no step; the numbers of steps may be anything else."""


class RankCollectives(Struct, frozen=True):
    """A rank's collectives in order of start; columns of shape (n,).

    They cover the whole recording, because ranks may use different steps.
    """

    streams: tuple[Stream, ...]
    stream: Int32
    """Index into `streams`."""
    number: Int64
    """Its sequence number, which identifies a collective of a stream on all ranks; its position in
    the stream where none were recorded."""
    row: Int32
    """Row of the rank's own trace."""
    start_ns: Int64
    """On the rank's own clock, from the start of its trace."""
    duration_ns: Int64
    exposed_ns: Int64
    """The part within the used steps that no compute covers."""
    size_bytes: Int64
    """Size of the full buffer; -1 if unknown."""
    sent_bytes: Int64
    """Bytes that this rank sends; -1 if unknown."""
    group_size: Int32
    step: Int64
    """Number of the used step that launched it; `NO_STEP` for none."""
    role: UInt8
    """What each is for: an index into `Role` of the signals."""
    left_out: int
    """Number of collectives at the end that are not included."""

    def __len__(self) -> int:
        """Number of collectives."""
        return len(self.row)


class RankSummary(Struct, frozen=True):
    """One rank; `cause_total_ns` sums exactly to its used window."""

    device_kind: str | None
    """As `Device.kind`; None for a program on the CPU."""
    device_name: str
    """As the profile says, or as recognized by what `device_evidence` says."""
    device_evidence: str
    visible_devices: int
    """Devices that exist."""
    used_devices: int | None
    """Those that ran kernels or collectives; None if the events of the device are missing."""
    events: int
    duration_ns: int
    is_summed: bool
    """Whether the recorder summed everything up (`Trace.totals`)."""
    step_source: str
    step_number: Int64
    """Shape (steps,): the first used steps, as in the other step columns."""
    step_start_ns: Int64
    step_end_ns: Int64
    step_count: int
    """Divisor for per-step numbers: the number of used steps, or 1 if none are known."""
    window_start_ns: int
    window_ns: int
    cause_ns: Int64
    """Time of each cause in each step, in the order of `Cause`; shape (causes, steps)."""
    cause_total_ns: Int64
    """Time of each cause in the whole used window; shape (causes,)."""
    preempted_ns: int
    """Idle time in the whole used window during host calls that lost their core."""
    once_ns: int
    """Idle time in the whole used window of what happens only once, such as loading code."""
    matrix_flop: float | None
    """FLOP of its matrix products per step; None if not recorded."""
    collectives: RankCollectives
    notes: tuple[Note, ...]
    """Notes of the reader about problems with this rank's file."""
    snapshot_peaks: tuple[tuple[int, int, int], ...] = ()
    """Of the rank's memory snapshot: device, peak of allocated and of reserved bytes."""
    host_operators: int = 0
    """Operators that the thread of the steps ran in the whole used window; 0 if not recorded."""
