"""Builds a valid `Trace` from a reader's columns.

A reader adds tracks, events and attributes in any order and in any number of chunks. It refers to
events by the provisional ids that `add_events` returns. `finish` sorts the events, maps ids to
rows, links device events to their launches by correlation, finds enclosing events, and rejects
invalid columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from tb_perfadvisor.errors import InvalidTraceError
from tb_perfadvisor.note import Note
from tb_perfadvisor.trace.columns import IdIndex, column_of, joined, unknown_values
from tb_perfadvisor.trace.integer_groups import distinct, row_mask
from tb_perfadvisor.trace.kinds import FIRST_DEVICE_KIND, EventKind, TrackKind
from tb_perfadvisor.trace.nesting import MAX_DEPTH, enclosing_rows, start_order, too_deep
from tb_perfadvisor.trace.recorded_totals import Totals
from tb_perfadvisor.trace.retimed import with_events
from tb_perfadvisor.trace.tables import (
    CollectiveTable,
    CopyTable,
    CounterTable,
    EventTable,
    HloEventTable,
    HloTable,
    Int32,
    Int64,
    IteratorTable,
    KernelTable,
    LaunchTable,
    MemoryTable,
    OperatorTable,
    Table,
    TrackTable,
    column_types,
    empty_table,
    is_repeated,
    make_table,
    repeated,
)
from tb_perfadvisor.trace.trace import Device, Source, Trace

FARTHEST_NS = 2**51
"""26 days. No recording is longer, and times from its start stay below 2^53, which JavaScript and
floats represent exactly."""
LONGEST_NS = 2**52
MOST_TOGETHER_NS = 2**62
"""146 years: events of all threads and levels, for hours, add up to less. Sums of any events fit
into 64 bits then."""
_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_FAR = 2 * FARTHEST_NS


class Interned(dict[Any, int]):
    """Maps values to indices in order of appearance; a lookup adds a missing value."""

    def __missing__(self, value: Any) -> int:
        """Assign the next index."""
        index = self[value] = len(self)
        return index


class Assembler:
    """Collects the columns of one rank or host and builds a `Trace` from them."""

    def __init__(self) -> None:
        self._strings = Interned()
        self._tracks: dict[tuple[int, str, int, int, str], int] = {}
        self._events: list[dict[str, NDArray[Any]]] = []
        self._event_count = 0
        self._hlo_count = 0
        self._attributes: dict[type[Any], list[dict[str, NDArray[Any]]]] = {}
        self._forward: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []

    def intern(self, text: str) -> int:
        """The index of a string, the same for equal strings."""
        return self._strings[text]

    def intern_all(self, texts: list[str]) -> Int32:
        """Indices of many strings; shape (n,)."""
        strings = self._strings
        return np.array([strings[text] for text in texts], dtype=np.int32)

    @property
    def strings(self) -> list[str]:
        """All strings interned so far, in order of index."""
        return list(self._strings)

    def add_track(
        self, kind: TrackKind, *, process: str = "", thread: int = 0, device: int = -1, label: str
    ) -> int:
        """The row of a track, the same for equal arguments."""
        key = (int(kind), process, thread, device, label)
        return self._tracks.setdefault(key, len(self._tracks))

    def add_events(
        self,
        start_ns: ArrayLike,
        duration_ns: ArrayLike,
        *,
        kind: ArrayLike,
        name: ArrayLike,
        track: ArrayLike,
        step: ArrayLike = -1,
        correlation: ArrayLike = -1,
    ) -> Int32:
        """Add events and return their provisional ids; scalars apply to all of them.

        Times have shape (n,) and are on any clock: the earliest start becomes 0. Durations are not
        negative. `kind` is an `EventKind`, `name` comes from `intern`, and `track` from
        `add_track`. `step` is the number of a step marker, and `correlation` links runtime calls to
        the device events that they launched.
        """
        start = np.atleast_1d(np.asarray(start_ns, dtype=np.int64))
        columns = {"start_ns": start}
        for key, value, dtype in (
            ("duration_ns", duration_ns, np.int64),
            ("kind", kind, np.uint8),
            ("name", name, np.int32),
            ("track", track, np.int32),
            ("step", step, np.int32),
            ("correlation", correlation, np.int64),
        ):
            columns[key] = column_of(key, value, start.size, dtype)
        self._events.append(columns)
        first = self._event_count
        self._event_count += start.size
        return np.arange(first, self._event_count, dtype=np.int32)

    def add_kernels(self, event: ArrayLike, **columns: ArrayLike) -> None:
        """Add attributes of kernels: columns of `KernelTable`; missing ones are unknown."""
        self._add(KernelTable, {"row": event, **columns})

    def add_launches(self, event: ArrayLike, kernel: ArrayLike) -> None:
        """State the kernel that runtime calls launch, an index from `intern`."""
        self._add(LaunchTable, {"row": event, "kernel": kernel})

    def add_copies(self, event: ArrayLike, **columns: ArrayLike) -> None:
        """Add attributes of copies: columns of `CopyTable`."""
        self._add(CopyTable, {"row": event, **columns})

    def add_collectives(self, event: ArrayLike, **columns: ArrayLike) -> None:
        """Add attributes of collectives: columns of `CollectiveTable`."""
        self._add(CollectiveTable, {"row": event, **columns})

    def add_operators(self, event: ArrayLike, **columns: ArrayLike) -> None:
        """Add attributes of operators: columns of `OperatorTable`."""
        self._add(OperatorTable, {"row": event, **columns})

    def add_iterators(self, event: ArrayLike, **columns: ArrayLike) -> None:
        """Add attributes of tf.data iterator calls: columns of `IteratorTable`."""
        self._add(IteratorTable, {"row": event, **columns})

    def add_memory(self, at_ns: ArrayLike, **columns: ArrayLike) -> None:
        """Add allocations and frees: columns of `MemoryTable`, on the clock of the events."""
        self._add(MemoryTable, {"at_ns": at_ns, **columns})

    def add_counters(self, at_ns: ArrayLike, **columns: ArrayLike) -> None:
        """Add samples of counters: columns of `CounterTable`, on the clock of the events."""
        self._add(CounterTable, {"at_ns": at_ns, **columns})

    def add_hlo(self, name: ArrayLike, **columns: ArrayLike) -> Int32:
        """Add distinct XLA operations: columns of `HloTable`; returns their rows."""
        first = self._hlo_count
        self._hlo_count += self._add(HloTable, {"name": name, **columns})
        return np.arange(first, self._hlo_count, dtype=np.int32)

    def add_hlo_events(self, event: ArrayLike, op: ArrayLike) -> None:
        """State which XLA operation (a row from `add_hlo`) each event executes."""
        self._add(HloEventTable, {"row": event, "op": op})

    def link_forward(self, backward: ArrayLike, forward: ArrayLike) -> None:
        """Link backward nodes to their forward operators, both by provisional id."""
        pair = (np.asarray(backward, dtype=np.int64), np.asarray(forward, dtype=np.int64))
        if pair[0].size:
            self._forward.append(pair)

    def finish(
        self,
        source: Source,
        *,
        devices: tuple[Device, ...] = (),
        notes: tuple[Note, ...] = (),
        totals: Totals | None = None,
        clock_unix_ns: int | None = None,
    ) -> Trace:
        """Build the trace. Consumes what was added, so call it once.

        `origin_unix_ns` of the source is filled in here. `totals` are the recorder's own sums, if
        the events were made from them. `clock_unix_ns` is the wall-clock time at 0 of the clock
        that events were added on.

        Raises:
            InvalidTraceError: If a name or track is unknown, or a duration is negative.
        """
        raw = joined(
            self._events,
            {
                "start_ns": np.int64,
                "duration_ns": np.int64,
                "kind": np.uint8,
                "name": np.int32,
                "track": np.int32,
                "step": np.int32,
                "correlation": np.int64,
            },
        )
        self._check(raw, source)
        impossible = is_impossible(raw["start_ns"], raw["duration_ns"])
        if impossible.any():
            # They go when the trace is complete; until then they lie where others do.
            possible_ns = raw["start_ns"][~impossible]
            first_ns = possible_ns.min() if possible_ns.size else 0
            raw["start_ns"] = np.where(impossible, first_ns, raw["start_ns"])
            raw["duration_ns"] = np.where(impossible, 0, raw["duration_ns"])
        start, duration = raw["start_ns"], raw["duration_ns"]
        order = start_order(start, duration)
        row_of = np.empty(order.size, dtype=np.int32)
        row_of[order] = np.arange(order.size, dtype=np.int32)
        origin = int(start[order[0]]) if order.size else 0
        del start, duration
        # Reorder one column at a time, so that a large trace is never in memory twice.
        columns = {name: _ordered(raw.pop(name), order) for name in tuple(raw)}
        del order
        columns["start_ns"] -= origin
        columns["parent"] = enclosing_rows(
            columns["start_ns"], columns["start_ns"] + columns["duration_ns"], columns["track"]
        )
        columns["launched_by"] = _launches(columns["kind"], columns.pop("correlation"))
        columns["forward"] = self._forward_rows(row_of)
        tables = {table: self._table(table, row_of, origin) for table in _ATTRIBUTE_TABLES}
        # Interns the labels, so this must precede the string table below.
        tracks = self._track_table()
        trace = Trace(
            source=replace(
                source,
                origin_unix_ns=None if clock_unix_ns is None else clock_unix_ns + origin,
            ),
            strings=tuple(self._strings),
            events=make_table(EventTable, columns),
            tracks=tracks,
            kernels=tables[KernelTable],
            copies=tables[CopyTable],
            collectives=tables[CollectiveTable],
            memory=tables[MemoryTable],
            operators=tables[OperatorTable],
            hlo=tables[HloTable],
            hlo_events=tables[HloEventTable],
            iterators=tables[IteratorTable],
            launches=tables[LaunchTable],
            counters=tables[CounterTable],
            devices=devices,
            notes=notes,
            totals=totals,
        )
        if impossible.any():
            trace = _without_impossible(trace, row_of[impossible])
        return _without_deepest(trace)

    def _add(self, table: type[Struct], columns: dict[str, ArrayLike]) -> int:
        types = column_types(table)
        unexpected = columns.keys() - types.keys()
        if unexpected:
            raise TypeError(f"{table.__name__} has no column {sorted(unexpected)}")
        first = next(iter(columns.values()))
        count = np.atleast_1d(np.asarray(first)).size
        if count:
            chunk = {
                name: column_of(name, columns.get(name, unknown_values(table)[name]), count, dtype)
                for name, dtype in types.items()
            }
            self._attributes.setdefault(table, []).append(chunk)
        return count

    def _check(self, raw: dict[str, NDArray[Any]], source: Source) -> None:
        for problem, is_bad in (
            ("a negative duration", raw["duration_ns"] < 0),
            ("an unknown name", (raw["name"] < 0) | (raw["name"] >= len(self._strings))),
            ("an unknown track", (raw["track"] < 0) | (raw["track"] >= len(self._tracks))),
        ):
            if is_bad.any():
                index = int(np.flatnonzero(is_bad)[0])
                raise InvalidTraceError(
                    f"event {index} has {problem}.",
                    where=source.path,
                    hint="The file is damaged: record it again.",
                )

    def _table(self, table: type[Table], row_of: Int32, origin: int) -> Table:
        chunks = self._attributes.get(table)
        if chunks is None:
            return empty_table(table)
        types = column_types(table)
        columns = joined(chunks, types)
        if "row" in types:
            row = columns["row"] = row_of[columns["row"]]
            if (row[1:] < row[:-1]).any():
                order = np.argsort(row, kind="stable")
                columns = {name: _ordered(column, order) for name, column in columns.items()}
        if "at_ns" in types:
            at_ns = columns["at_ns"]
            if at_ns.size and max(abs(int(at_ns.min()) - origin), int(at_ns.max()) - origin) > _FAR:
                near = (at_ns > max(origin - _FAR, _LEAST)) & (at_ns < min(origin + _FAR, _MOST))
                columns = {name: column[near] for name, column in columns.items()}
            order = np.argsort(columns["at_ns"], kind="stable")
            columns = {name: _ordered(column, order) for name, column in columns.items()}
            columns["at_ns"] = columns["at_ns"] - origin
        return make_table(table, columns)

    def _track_table(self) -> TrackTable:
        rows = list(self._tracks)
        columns = {
            "kind": [kind for kind, *_ in rows],
            "process": [self.intern(process) for _, process, *_ in rows],
            "thread": [thread for _, _, thread, *_ in rows],
            "device": [device for *_, device, _ in rows],
            "label": [self.intern(label) for *_, label in rows],
        }
        types = column_types(TrackTable)
        return make_table(
            TrackTable,
            {
                name: column_of(name, column, len(rows), types[name])
                for name, column in columns.items()
            },
        )

    def _forward_rows(self, row_of: Int32) -> Int32:
        if not self._forward:
            return repeated(-1, row_of.size, np.int32)
        forward = np.full(row_of.size, -1, dtype=np.int32)
        for backward, target in self._forward:
            forward[row_of[backward]] = row_of[target]
        return forward


_ATTRIBUTE_TABLES: tuple[Any, ...] = (
    KernelTable,
    LaunchTable,
    CopyTable,
    CollectiveTable,
    CounterTable,
    MemoryTable,
    OperatorTable,
    IteratorTable,
    HloTable,
    HloEventTable,
)


def _without_impossible(trace: Trace, rows: Int32) -> Trace:
    """The trace without events whose times are impossible, with a note."""
    note = Note(
        "impossible-times",
        "warning",
        f"{len(rows):,} events were left out: they begin weeks before or after most others, or "
        "last longer than any recording. The file may be damaged.",
        "Record again, and compare the sizes of copies of the file.",
    )
    kept = with_events(trace, ~row_mask(len(trace.events), rows))
    return replace(kept, notes=(*trace.notes, note))


def _without_deepest(trace: Trace) -> Trace:
    """The trace without events that are nested too deeply, with a note."""
    # A step marker is never lost, however deep the code around it is.
    is_deep = too_deep(trace.events.parent) & (trace.events.kind != EventKind.STEP)
    if not is_deep.any():
        return trace
    note = Note(
        "too-deeply-nested",
        "warning",
        f"{int(is_deep.sum()):,} events inside more than {MAX_DEPTH:,} others were left out. Their "
        "time counts as that of the events around them.",
        "Record without Python stacks (`with_stack=False`).",
    )
    return replace(with_events(trace, ~is_deep), notes=(*trace.notes, note))


def _ordered(column: NDArray[Any], order: NDArray[Any]) -> NDArray[Any]:
    return column if is_repeated(column) else column.take(order)


def _launches(kind: NDArray[np.uint8], correlation: NDArray[np.int64]) -> Int32:
    """For each device event, the row of the runtime call with its correlation; -1 for none."""
    launched_by = np.full(kind.size, -1, dtype=np.int32)
    known = correlation >= 0
    host = np.flatnonzero(known & (kind < FIRST_DEVICE_KIND))
    device = np.flatnonzero(known & (kind >= FIRST_DEVICE_KIND))
    if host.size == 0 or device.size == 0:
        return launched_by
    ids = IdIndex(distinct(correlation[host]))
    call = np.full(len(ids) + 1, -1, dtype=np.int32)
    # If several calls share a correlation (a driver call inside a runtime call), the first
    # launching call wins, then the first call. The last assignment to an entry stands.
    is_launching = kind[host] == EventKind.LAUNCH
    for rows in (host[~is_launching][::-1], host[is_launching][::-1]):
        call[ids.rows(correlation[rows])] = rows
    launched_by[device] = call[ids.rows(correlation[device])]
    return launched_by


def is_impossible(start_ns: Int64, duration_ns: Int64) -> NDArray[np.bool_]:
    """A mask of the events that begin too far from most others, or last too long; shape (n,).

    Starts come in any order; durations are not negative.
    """
    impossible = np.zeros(start_ns.size, dtype=np.bool_)
    if not start_ns.size:
        return impossible
    if int(start_ns.max()) - int(start_ns.min()) > FARTHEST_NS:
        middle = int(np.partition(start_ns, start_ns.size // 2)[start_ns.size // 2])
        limits = np.iinfo(np.int64)
        impossible |= start_ns < max(middle - FARTHEST_NS, limits.min)
        impossible |= start_ns > min(middle + FARTHEST_NS, limits.max)
    longest_ns = int(duration_ns.max())
    if longest_ns > LONGEST_NS or longest_ns * start_ns.size > MOST_TOGETHER_NS:
        limit_ns = LONGEST_NS
        if float(duration_ns[duration_ns <= limit_ns].sum(dtype=np.float64)) > MOST_TOGETHER_NS:
            limit_ns = MOST_TOGETHER_NS // start_ns.size
        impossible |= duration_ns > limit_ns
    return impossible
