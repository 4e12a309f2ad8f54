"""Summary of one rank: enough to compare ranks, small enough for thousands of them."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.attribution import Cause
from tb_perfadvisor.signals.core.collectives import collective_rows_of
from tb_perfadvisor.signals.core.device import DeviceFacts
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.matrix_flop import matrix_flop
from tb_perfadvisor.trace import Note, Trace
from tb_perfadvisor.trace.integer_groups import distinct, group_rows
from tb_perfadvisor.trace.intervals import overlap_ns
from tb_perfadvisor.trace.tables import Int32, Int64

CAUSES = tuple(Cause)
"""The rows of `RankSummary.cause_ns`."""
MAX_COLLECTIVES = 65_536
"""Per rank: 3 MB. A step of a large model has hundreds to thousands."""
_COLLECTIVES_IN_ALL = 8_000_000
"""Over all ranks: half a gigabyte, and seconds to match them."""
_MIN_COLLECTIVES = 1_024
MAX_STEPS = 128
"""Most profiles have a few. Of longer profiles, only the totals cover all steps."""

Stream = tuple[str, str, int]
"""Group, operation, and count. The count is -1 if the collectives have sequence numbers. Otherwise
they
are matched by position, which is valid only if the counts agree."""


class RankCollectives(Struct, frozen=True):
    """A rank's collectives in order of start; columns of shape (n,).

    They cover the whole recording, because ranks may use different steps.
    """

    streams: tuple[Stream, ...]
    stream: Int32
    """Index into `streams`."""
    number: Int64
    """Identifies a collective of a stream on all ranks: its sequence number, or its position."""
    row: Int32
    """Row of the rank's own trace."""
    start_ns: Int64
    """On the rank's own clock, from the start of its trace."""
    duration_ns: Int64
    exposed_ns: Int64
    """The part within the used steps that no compute covers."""
    sent_bytes: Int64
    """Bytes that this rank sends; -1 if unknown."""
    group_size: Int32
    left_out: int
    """Number of collectives at the end that are not included."""

    def __len__(self) -> int:
        """Number of collectives."""
        return len(self.row)


class RankSummary(Struct, frozen=True):
    """One rank; `cause_total_ns` sums exactly to its used window."""

    device: DeviceFacts | None
    """Without peaks, so that it can be sent to another process."""
    visible_devices: int
    used_devices: int
    events: int
    duration_ns: int
    is_summed: bool
    """Whether the recorder summed everything up (`Trace.totals`)."""
    step_source: str
    step_number: Int64
    """Shape (steps,): the used steps, at most `MAX_STEPS`, as in the other step columns."""
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
    matrix_flop: float | None
    """FLOP of its matrix products per step; None if not recorded."""
    collectives: RankCollectives
    notes: tuple[Note, ...]
    """Notes of the reader about problems with this rank's file."""


def collectives_kept(workers: int) -> int:
    """How many collectives each worker may keep so that all fit into memory."""
    return max(min(_COLLECTIVES_IN_ALL // max(workers, 1), MAX_COLLECTIVES), _MIN_COLLECTIVES)


def summarize(signals: Signals, max_collectives: int = MAX_COLLECTIVES) -> RankSummary:
    """Summarize one rank.

    Args:
        signals: The rank.
        max_collectives: How many collectives to keep from the start; the same on all ranks.
    """
    trace, steps, attribution = signals.trace, signals.steps, signals.attribution
    device, facts = signals.device, signals.device_facts
    kept = slice(0, MAX_STEPS)
    return RankSummary(
        device=replace(facts, peaks=None) if facts is not None else None,
        visible_devices=max(len(trace.devices), device.used),
        used_devices=device.used,
        events=len(trace.events),
        duration_ns=trace.duration_ns,
        is_summed=trace.totals is not None,
        step_source=steps.source,
        step_number=steps.number[kept],
        step_start_ns=steps.start_ns[kept],
        step_end_ns=steps.end_ns[kept],
        step_count=steps.count,
        window_start_ns=attribution.window_start_ns,
        window_ns=attribution.window_ns,
        cause_ns=np.stack([attribution.step_total_ns[cause][kept] for cause in CAUSES]),
        cause_total_ns=np.array([attribution.total_ns(cause) for cause in CAUSES]),
        matrix_flop=matrix_flop(signals),
        collectives=_collectives(signals, max_collectives),
        notes=tuple(note for note in trace.notes if note.severity != "info"),
    )


def _collectives(signals: Signals, max_collectives: int) -> RankCollectives:
    trace = signals.trace
    table = trace.collectives
    on_rank = collective_rows_of(trace, signals.device.index)
    kept = on_rank[:max_collectives]
    row = table.row[kept]
    streams, stream, number = _streams(trace, on_rank)
    start, duration = trace.events.start_ns[row], trace.events.duration_ns[row]
    exposed = signals.attribution.intervals[Cause.COMMUNICATION]
    return RankCollectives(
        streams=streams,
        stream=stream[: len(kept)],
        number=number[: len(kept)],
        row=row,
        start_ns=start,
        duration_ns=duration,
        exposed_ns=overlap_ns(exposed, start, start + duration),
        sent_bytes=table.sent_bytes[kept],
        group_size=table.group_size[kept],
        left_out=len(on_rank) - len(kept),
    )


def _streams(trace: Trace, own: NDArray[np.intp]) -> tuple[tuple[Stream, ...], Int32, Int64]:
    """Streams of some rows of the table of collectives, and each row's number in its stream."""
    groups, operations = trace.collectives.group[own], trace.collectives.operation[own]
    first, of_row = group_rows(groups, operations)
    stream_of: Int32 = of_row.astype(np.int32)
    number: Int64 = trace.collectives.sequence[own]
    streams: list[Stream] = []
    for index, row in enumerate(first.tolist()):
        group, operation = int(groups[row]), int(operations[row])
        is_own = stream_of == index
        numbers = number[is_own]
        is_numbered = numbers.min() >= 0 and len(distinct(numbers)) == len(numbers)
        if not is_numbered:
            number[is_own] = np.arange(len(numbers))
        count = -1 if is_numbered else len(numbers)
        streams.append((trace.text(group), trace.text(operation), count))
    return tuple(streams), stream_of, number
