"""Change a trace in one respect, to see what a rule's result depends on."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.machine.facts import UNKNOWN
from tb_perfadvisor.signals import Need
from tb_perfadvisor.trace import (
    EventKind,
    EventTable,
    MemoryTable,
    Totals,
    Trace,
    TrackKind,
)
from tb_perfadvisor.trace.kinds import FIRST_DEVICE_KIND
from tb_perfadvisor.trace.tables import HloEventTable, empty_table, make_table

_ROW_TABLES = ("kernels", "copies", "collectives", "operators", "iterators", "hlo_events")
_LINKS = ("parent", "launched_by", "forward")
_RENAMED = (TrackKind.HOST_THREAD, TrackKind.DEVICE_STREAM)


def stretched(trace: Trace, factor: int) -> Trace:
    """Multiply every time and duration."""
    events, memory = trace.events, trace.memory
    return replace(
        trace,
        events=_changed(
            events,
            start_ns=events.start_ns * factor,
            duration_ns=events.duration_ns * factor,
        ),
        memory=_changed(memory, at_ns=memory.at_ns * factor),
    )


def shifted(trace: Trace, by_ns: int) -> Trace:
    """Move everything later, on the trace's clock and on the wall clock."""
    origin = trace.source.origin_unix_ns
    return replace(
        trace,
        source=replace(trace.source, origin_unix_ns=None if origin is None else origin + by_ns),
        events=_changed(trace.events, start_ns=trace.events.start_ns + by_ns),
        memory=_changed(trace.memory, at_ns=trace.memory.at_ns + by_ns),
    )


def renamed(trace: Trace) -> Trace:
    """Give threads and streams other labels and numbers; derived lines keep theirs."""
    tracks = trace.tracks
    is_renamed = np.isin(tracks.kind, _RENAMED)
    first = len(trace.strings)
    order = np.arange(len(tracks), dtype=np.int64)
    return replace(
        trace,
        strings=(*trace.strings, *(f"renamed {index}" for index in order.tolist())),
        tracks=_changed(
            tracks,
            label=np.where(is_renamed, first + order, tracks.label),
            thread=np.where(is_renamed, 9_000 + order, tracks.thread),
        ),
    )


def without(trace: Trace, need: Need) -> Trace | None:
    """Remove what a rule needs; None if removing it makes no sense."""
    kind = trace.events.kind
    if need in (Need.WORK, Need.DEVICE_EVENTS):
        is_device = kind >= FIRST_DEVICE_KIND
        return keep_events(trace, ~is_device) if is_device.any() else None
    if need in (Need.RUN_LINES, Need.EXAMINED_STEPS):
        return replace(trace, facts=UNKNOWN)
    if need is Need.HOST_EVENTS:
        return keep_events(trace, kind >= FIRST_DEVICE_KIND)
    if need is Need.INPUT:
        feeding = (EventKind.INPUT_WAIT, EventKind.INPUT_WORK, EventKind.INFEED_WAIT)
        return keep_events(trace, ~np.isin(kind, feeding))
    if need is Need.FILE_READS:
        reading = (EventKind.PYTHON, EventKind.INPUT_WORK, EventKind.INPUT_WAIT)
        return keep_events(trace, ~np.isin(kind, reading))
    if need is Need.INPUT_STAGES:
        return keep_events(trace, ~np.isin(kind, (EventKind.PYTHON, EventKind.INPUT_WORK)))
    if need is Need.ITERATORS:
        return keep_events(trace, kind != EventKind.INPUT_WORK)
    if need is Need.INFEED:
        return keep_events(trace, kind != EventKind.INFEED_WAIT)
    if need is Need.BARRIERS:
        return keep_events(trace, kind != EventKind.DEVICE_ANNOTATION)
    if need is Need.COLLECTIVES:
        return keep_events(trace, ~np.isin(kind, (EventKind.COLLECTIVE, EventKind.HOST_COLLECTIVE)))
    if need is Need.EVERY_LAUNCH:
        return replace(trace, source=replace(trace.source, recorded_calls_share=0.001))
    if need in (Need.LAUNCH_LINKS, Need.LAUNCHED_WORK, Need.ORIGINS):
        none = np.full(len(trace.events), -1)
        unlinked = replace(trace, events=_changed(trace.events, launched_by=none))
        if need is not Need.ORIGINS:
            return unlinked
        return replace(unlinked, hlo_events=empty_table(HloEventTable))
    if need in (Need.MEMORY, Need.MEMORY_CHANGES):
        return replace(trace, memory=empty_table(MemoryTable))
    if need in (Need.MEMORY_SNAPSHOT, Need.MEMORY_HISTORY):
        return replace(trace, snapshot=None)
    if need in (Need.PEAKS, Need.MEMORY_CAPACITY, Need.LINK_BANDWIDTH):
        return replace(trace, devices=())
    if need is Need.KERNEL_PRECISION:
        unknown = np.zeros(len(trace.kernels.row))
        types = np.full(len(trace.operators.row), -1)
        return replace(
            trace,
            kernels=_changed(trace.kernels, precision=unknown),
            operators=_changed(trace.operators, dtypes=types),
        )
    if need is Need.HOST_MEMORY:
        unknown = np.full(len(trace.copies.row), -1)
        return replace(trace, copies=_changed(trace.copies, pageable=unknown))
    if need is Need.SHAPES:
        shapes = np.full(len(trace.operators.row), -1)
        text = np.full(len(trace.hlo.name), -1)
        unknown = np.full(len(trace.hlo.name), np.nan)
        return replace(
            trace,
            operators=_changed(trace.operators, shapes=shapes),
            hlo=_changed(trace.hlo, text=text, flop=unknown, traffic_bytes=unknown),
        )
    if need is Need.COLLECTIVE_SIZES:
        sizes = np.full(len(trace.collectives.row), -1)
        return replace(trace, collectives=_changed(trace.collectives, size_bytes=sizes))
    if need is Need.SENT_SIZES:
        sizes = np.full(len(trace.collectives.row), -1)
        return replace(trace, collectives=_changed(trace.collectives, sent_bytes=sizes))
    if need in (Need.COPIES, Need.KERNELS):
        return replace(trace, totals=Totals(shows=frozenset()))
    if need is Need.PYTORCH:
        return replace(trace, source=replace(trace.source, framework="jax"))
    if need is Need.COMPILED_REGIONS:
        is_region = np.array([text.startswith("Torch-Compiled") for text in trace.strings])
        return keep_events(trace, ~is_region[trace.events.name])
    if need in (Need.TILED_LAYOUTS, Need.XLA_OPERATIONS):
        return replace(trace, hlo=_changed(trace.hlo, text=np.full(len(trace.hlo.name), -1)))
    if need is Need.PROGRAMS:
        return replace(trace, programs=())
    return None  # steps can be inferred in many ways


def keep_events(trace: Trace, keep: NDArray[np.bool_]) -> Trace:
    """Keep some of the events, and their rows in other tables."""
    new_row = np.cumsum(keep) - 1
    columns = {name: getattr(trace.events, name)[keep] for name in EventTable.__struct_fields__}
    for name in _LINKS:
        old = columns[name]
        points_to_kept = (old >= 0) & keep[np.maximum(old, 0)]
        columns[name] = np.where(points_to_kept, new_row[np.maximum(old, 0)], -1)
    tables: dict[str, Any] = {}
    for name in _ROW_TABLES:
        table = getattr(trace, name)
        chosen = keep[table.row]
        changed = {name: getattr(table, name)[chosen] for name in table.__struct_fields__}
        changed["row"] = new_row[changed["row"]]
        tables[name] = make_table(type(table), changed)
    return replace(trace, events=make_table(EventTable, columns), **tables)


def _changed(table: Any, **columns: Any) -> Any:
    unchanged = {name: getattr(table, name) for name in table.__struct_fields__}
    return make_table(type(table), unchanged | columns)
