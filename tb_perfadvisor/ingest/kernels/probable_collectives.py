"""Kernels whose names nobody knows, on streams that otherwise only communicate.

Libraries of collectives come and go faster than tables of their kernels' names. What runs beside
known collectives on a stream of their own, while another stream computes, is one of them rather
than compute that somebody put there; it is counted so, and said to be a guess.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.trace import EventKind, KernelFamily, Note, Trace, TrackKind
from tb_perfadvisor.trace.integer_groups import distinct, unique_inverse
from tb_perfadvisor.trace.tables import CollectiveTable, Float64, Int32
from tb_perfadvisor.units import format_duration

_COMMUNICATES: Final = 0.9
"""Of the time of a stream's known kernels: what packs and unpacks buffers runs there, too."""
_MIN_KNOWN: Final = 2
"""One collective may stand on any stream."""
_NAMED: Final = 3


def with_probable_collectives(trace: Trace) -> Trace:
    """Count as collectives what probably is one, with a note that names the kernels.

    Args:
        trace: Of GPUs, whose kernels run on streams.
    """
    rows = _probable(trace)
    if not rows.size:
        return trace
    events, kernels = trace.events, trace.kernels
    kind, family = events.kind.copy(), kernels.family.copy()
    kind[rows] = EventKind.COLLECTIVE
    family[np.isin(kernels.row, rows)] = KernelFamily.COLLECTIVE
    for column in (kind, family):
        column.setflags(write=False)
    return replace(
        trace,
        events=replace(events, kind=kind),
        kernels=replace(kernels, family=family),
        collectives=_with_rows(trace.collectives, rows),
        notes=(*trace.notes, _note(trace, rows)),
    )


def _probable(trace: Trace) -> Int32:
    """The rows of such kernels."""
    none: Int32 = np.empty(0, dtype=np.int32)
    events, kernels = trace.events, trace.kernels
    collectives = trace.rows(EventKind.COLLECTIVE)
    if not collectives.size:
        return none
    is_compute = events.kind[kernels.row] == EventKind.KERNEL
    known = kernels.row[is_compute & (kernels.family != KernelFamily.OTHER)]
    unknown = kernels.row[is_compute & (kernels.family == KernelFamily.OTHER)]
    if not unknown.size:
        return none

    def time_of(rows: Int32) -> Float64:
        time_ns = np.zeros(len(trace.tracks))
        np.add.at(time_ns, events.track[rows], events.duration_ns[rows])
        return time_ns

    communicating, computing = time_of(collectives), time_of(known)
    count = np.bincount(events.track[collectives], minlength=len(trace.tracks))
    chosen = (trace.tracks.kind == TrackKind.DEVICE_STREAM) & (count >= _MIN_KNOWN)
    chosen &= communicating >= _COMMUNICATES * (communicating + computing)
    chosen &= time_of(unknown) <= communicating
    # A device on which nothing else computes may compute here.
    elsewhere = distinct(trace.tracks.device[(computing > 0) & ~chosen])
    chosen &= np.isin(trace.tracks.device, elsewhere)
    found: Int32 = unknown[chosen[events.track[unknown]]]
    return found


def _with_rows(table: CollectiveTable, rows: Int32) -> CollectiveTable:
    """The table with collectives of which nothing but their time is known."""
    merged = np.concatenate([table.row, rows])
    order = np.argsort(merged, kind="stable")
    columns: dict[str, NDArray[Any]] = {}
    for name in table.__struct_fields__:
        column = getattr(table, name)
        more = rows if name == "row" else np.full(len(rows), -1, dtype=column.dtype)
        columns[name] = np.concatenate([column, more])[order].astype(column.dtype)
        columns[name].setflags(write=False)
    return CollectiveTable(**columns)


def _note(trace: Trace, rows: Int32) -> Note:
    events = trace.events
    names, of_row = unique_inverse(events.name[rows])
    time_ns = np.bincount(of_row, weights=events.duration_ns[rows])
    longest = names[np.argsort(-time_ns, kind="stable")]
    named = ", ".join(trace.text(int(name))[:80] for name in longest[:_NAMED])
    more = f" and {len(longest) - _NAMED} more" if len(longest) > _NAMED else ""
    kernels = "1 kernel" if len(rows) == 1 else f"{len(rows):,} kernels"
    return Note(
        "probable-communication",
        "info",
        f"{kernels} of unknown name ({named}{more}) on streams that otherwise only communicate"
        f" probably communicate too: their {format_duration(float(time_ns.sum()))} count as"
        " communication.",
        "Tell the maintainers which library they belong to.",
    )
