"""What one rank says of its run: enough to compare ranks, small enough to hold thousands."""

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
"""Per rank, 3 MB of them. A step of a large model has hundreds to thousands."""
_COLLECTIVES_IN_ALL = 8_000_000
"""Over all ranks: half a gigabyte, and seconds to match."""
_MIN_COLLECTIVES = 1_024
MAX_STEPS = 128
"""Profiles hold a few; beyond that only totals count."""

Stream = tuple[str, str, int]
"""Group, operation, and the number of collectives where these carry no numbers of their own:
positions only match where the counts do. -1 where they are numbered."""


class RankCollectives(Struct, frozen=True):
    """A rank's collectives, in order of start; columns of shape (n,).

    Those of the whole recording, not of the used steps alone: what ranks use may differ.
    """

    streams: tuple[Stream, ...]
    stream: Int32
    """Index of `streams`."""
    number: Int64
    """Names one collective of its stream on every rank: its sequence number, or its position."""
    row: Int32
    """Of the rank's own trace."""
    start_ns: Int64
    """On the rank's own clock, from its trace's start."""
    duration_ns: Int64
    exposed_ns: Int64
    """What of each, within the used steps, no compute covers."""
    sent_bytes: Int64
    """What this rank put into each; -1 when unknown."""
    group_size: Int32
    left_out: int
    """Collectives that are not here: the last ones."""

    def __len__(self) -> int:
        """Number of collectives."""
        return len(self.row)


class RankSummary(Struct, frozen=True):
    """One rank; `cause_ns` sums exactly to its used window."""

    device: DeviceFacts | None
    """Without its peaks, which do not travel between processes."""
    visible_devices: int
    used_devices: int
    events: int
    duration_ns: int
    is_summed: bool
    """Whether the recorder had added everything up (`Trace.totals`)."""
    step_source: str
    step_number: Int64
    """Shape (steps,): the used steps, `MAX_STEPS` at most, as in the other step columns."""
    step_start_ns: Int64
    step_end_ns: Int64
    step_count: int
    """What totals are divided by: the used steps, 1 when none are known."""
    window_start_ns: int
    window_ns: int
    cause_ns: Int64
    """Shape (causes, steps): of each step, in the order of `Cause`."""
    cause_total_ns: Int64
    """Shape (causes,): of the whole used window."""
    matrix_flop: float | None
    """Of its matrix products in each step; None when not recorded."""
    collectives: RankCollectives
    notes: tuple[Note, ...]
    """Of the reader on what is wrong with this rank's file."""


def collectives_kept(workers: int) -> int:
    """How many collectives each of so many workers may keep, so that all fit into memory."""
    return max(min(_COLLECTIVES_IN_ALL // max(workers, 1), MAX_COLLECTIVES), _MIN_COLLECTIVES)


def summarize(signals: Signals, max_collectives: int = MAX_COLLECTIVES) -> RankSummary:
    """Sum up one worker.

    Args:
        signals: The worker.
        max_collectives: How many to keep, the first ones: the same number on all ranks.
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
    own = collective_rows_of(trace, signals.device.index)
    kept = own[:max_collectives]
    row = table.row[kept]
    streams, stream, number = _streams(trace, own)
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
        left_out=len(own) - len(kept),
    )


def _streams(trace: Trace, own: NDArray[np.intp]) -> tuple[tuple[Stream, ...], Int32, Int64]:
    """The stream of some collectives, by their rows of the table, and each one's number in it."""
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
