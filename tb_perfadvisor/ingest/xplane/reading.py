"""From the bytes of planes to lines and columns of events; no meaning yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from tb_perfadvisor.ingest.xplane import wire
from tb_perfadvisor.ingest.xplane.schema import READING
from tb_perfadvisor.ingest.xplane.space import Space

Int64s = NDArray[np.int64]
Value = int | float | str | bytes

UNNAMED: Final = "(unnamed)"
# Times beyond this (73 years in picoseconds; in nanoseconds 73 000) come from broken bytes, and
# sums of a few of them still fit 64 bits.
_TIME_LIMIT: Final = 2**61

# The stats of events that any part of the reader asks for: the others are never decoded.
USED_STATS: Final = frozenset(
    {
        *("correlation_id", "step_num", "group_id", "_pt", "_p", "_ct", "_c"),
        *("eager_op", "is_func", "tf_function_call"),
        *("hlo_op", "hlo_module", "program_id", "shape"),
        *("kernel_details", "occupancy_pct", "memcpy_details", "memset_details"),
        *("allocator_name", "index_on_host", "bytes_allocated", "bytes_reserved"),
        *("bytes_available", "allocation_bytes", "addr"),
        *("device_offset_ps", "device_duration_ps"),
    }
)
# Stats decoded at a time: bounds what decoding holds beside its result.
_CHUNK: Final = 1 << 18

# Fields of XEvent and XStat.
_METADATA_ID, _OFFSET, _DURATION, _STATS, _OCCURRENCES = 1, 2, 3, 4, 5
_DOUBLE, _UINT64, _INT64, _STR, _BYTES, _REF = 2, 3, 4, 5, 6, 7


@dataclass(slots=True)
class Metadata:
    """The kinds of event of one plane, by row."""

    ids: Int64s
    """Sorted."""
    names: list[str]
    displays: list[str]
    messages: list[Any]
    stat_names: dict[int, str]
    _values: dict[str, dict[int, Value]] | None = None

    def rows(self, ids: Int64s) -> Int64s:
        """The row of each id; the last row, which has no name, where there is none."""
        if self.ids.size == 0:
            return np.zeros(ids.shape, dtype=np.int64)
        slot = np.minimum(np.searchsorted(self.ids, ids), self.ids.size - 1)
        return np.where(self.ids[slot] == ids, slot, self.ids.size)

    def values(self, stat: str) -> dict[int, Value]:
        """The stats of one name that lie on kinds of event rather than on events, by row."""
        if self._values is None:
            found: dict[str, dict[int, Value]] = {}
            for row, message in enumerate(self.messages):
                for item in message.stats:
                    name = self.stat_names.get(item.metadata_id)
                    value = stat_value(item, self.stat_names)
                    if name is not None and value is not None:
                        found.setdefault(name, {})[row] = value
            self._values = found
        return self._values.get(stat, {})


@dataclass(slots=True)
class Line:
    """One line of a plane: its events as columns of shape (n,), in file order."""

    id: int
    name: str
    metadata: Metadata
    row: Int64s
    """Of the `metadata`."""
    start_ns: Int64s
    duration_ns: Int64s
    broken_events: int
    _stat_event: Int64s
    _stats: wire.Spans
    _decoded: dict[str, _StatColumn] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of events."""
        return len(self.start_ns)

    @property
    def names(self) -> list[str]:
        """What the rows mean."""
        return self.metadata.names

    def has(self, stat: str) -> NDArray[np.bool_]:
        """Which events carry a stat, themselves or through their kind."""
        found = np.zeros(len(self), dtype=bool)
        column = self._column(stat)
        found[column.event] = True
        shared = self.metadata.values(stat)
        if shared:
            found |= np.isin(self.row, np.fromiter(shared, dtype=np.int64))
        return found

    def numbers(self, stat: str, default: int = -1) -> Int64s:
        """A whole-number stat of every event."""
        found = self._shared(stat, default, np.int64)
        column = self._column(stat)
        is_whole = (column.number == _INT64) | (column.number == _UINT64)
        found[column.event[is_whole]] = column.value[is_whole].view(np.int64)
        return found

    def floats(self, stat: str) -> NDArray[np.float64]:
        """A numeric stat of every event; NaN where it has none."""
        found = self._shared(stat, np.nan, np.float64)
        column = self._column(stat)
        for number, view in ((_INT64, np.int64), (_UINT64, np.uint64), (_DOUBLE, np.float64)):
            chosen = column.number == number
            found[column.event[chosen]] = column.value[chosen].view(view)
        return found

    def texts(self, stat: str) -> tuple[Int64s, list[str]]:
        """A text stat: for every event an index into the distinct texts, -1 for none."""
        index_of: dict[str, int] = {}
        found = np.full(len(self), -1, dtype=np.int64)
        for row, value in self.metadata.values(stat).items():
            if isinstance(value, str):
                found[self.row == row] = index_of.setdefault(value, len(index_of))
        column = self._column(stat)
        is_reference = column.number == _REF
        if is_reference.any():
            targets = np.array(sorted(self.metadata.stat_names), dtype=np.int64)
            wanted = column.value[is_reference].view(np.int64)
            slot = np.minimum(np.searchsorted(targets, wanted), targets.size - 1)
            slot[targets[slot] != wanted] = targets.size
            text_of = np.full(targets.size + 1, -1, dtype=np.int64)
            for used in np.flatnonzero(np.bincount(slot, minlength=targets.size + 1)).tolist():
                is_known = used < targets.size
                text = self.metadata.stat_names[int(targets[used])] if is_known else ""
                text_of[used] = index_of.setdefault(text, len(index_of))
            found[column.event[is_reference]] = text_of[slot]
        is_inline = (column.number == _STR) | (column.number == _BYTES)
        buffer = self._stats.buffer
        for event, begin, size in zip(
            column.event[is_inline].tolist(),
            column.begin[is_inline].tolist(),
            column.value[is_inline].tolist(),
            strict=True,
        ):
            text = buffer[begin : begin + size].tobytes().decode("utf-8", "replace")
            found[event] = index_of.setdefault(text, len(index_of))
        return found, list(index_of)

    def _shared(self, stat: str, default: float, dtype: Any) -> NDArray[Any]:
        shared = self.metadata.values(stat)
        if not shared:
            return np.full(len(self), default, dtype=dtype)
        by_row = np.full(len(self.names), default, dtype=dtype)
        for row, value in shared.items():
            if isinstance(value, (int, float)):
                by_row[row] = _fit(value, dtype, default)
        return by_row[self.row]

    def _column(self, stat: str) -> _StatColumn:
        column = self._decoded.get(stat)
        if column is None:
            column = self._decoded[stat] = self._decode(stat)
        return column

    def _decode(self, stat: str) -> _StatColumn:
        if stat not in USED_STATS:
            raise KeyError(stat)
        wanted = [id_ for id_, name in self.metadata.stat_names.items() if name == stat]
        if not wanted or not len(self._stats):
            return _NO_STATS
        if "" not in self._decoded:
            used = [id_ for id_, name in self.metadata.stat_names.items() if name in USED_STATS]
            self._decoded[""] = _decode_stats(self._stat_event, self._stats, used)
        every = self._decoded[""]
        return every.select(np.isin(every.key, np.array(wanted, dtype=np.int64)))


@dataclass(frozen=True, slots=True)
class _StatColumn:
    event: Int64s
    key: Int64s
    number: NDArray[np.uint8]
    value: NDArray[np.uint64]
    begin: Int64s

    def select(self, keep: NDArray[np.bool_]) -> _StatColumn:
        return _StatColumn(
            self.event[keep],
            self.key[keep],
            self.number[keep],
            self.value[keep],
            self.begin[keep],
        )


_EMPTY: Final = np.empty(0, dtype=np.int64)
_NO_STATS: Final = _StatColumn(
    _EMPTY, _EMPTY, np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.uint64), _EMPTY
)


@dataclass(slots=True)
class Plane:
    """One plane: a host, a device, or a table of facts."""

    name: str
    lines: tuple[Line, ...]
    stats: dict[str, Value]
    metadata: Metadata


def read_planes(data: bytes, space: Space, broken: list[str]) -> Iterator[Plane]:
    """Decode one plane after the other; the numbers of those that cannot be go to `broken`."""
    for index, (begin, end) in enumerate(space.planes):
        message = READING.XPlane()
        try:
            message.ParseFromString(data[begin:end])
        except DecodeError:
            broken.append(str(index))
            continue
        yield _plane(message)


def stat_value(stat: Any, stat_names: dict[int, str]) -> Value | None:
    """The value of one XStat message; a reference becomes the text it refers to."""
    kind = stat.WhichOneof("value")
    if kind is None:
        return None
    value = getattr(stat, kind)
    if kind == "ref_value":
        return stat_names.get(value, "")
    if kind == "str_value":
        return _text(value)
    result: Value = value
    return result


def _plane(message: Any) -> Plane:
    stat_names = {int(id_): _text(item.name) for id_, item in message.stat_metadata.items()}
    kinds = sorted(message.event_metadata.items(), key=lambda item: int(item[0]))
    metadata = Metadata(
        ids=np.array([id_ for id_, _ in kinds], dtype=np.int64),
        # One row more, for events whose kind the file does not describe.
        names=[_text(item.name) or _text(item.display_name) or UNNAMED for _, item in kinds]
        + [UNNAMED],
        displays=[_text(item.display_name) for _, item in kinds] + [""],
        messages=[item for _, item in kinds],
        stat_names=stat_names,
    )
    stats: dict[str, Value] = {}
    for item in message.stats:
        value = stat_value(item, stat_names)
        if value is not None and item.metadata_id in stat_names:
            stats[stat_names[item.metadata_id]] = value
    lines = tuple(_line(item, metadata) for item in message.lines)
    return Plane(_text(message.name), lines, stats, metadata)


def _line(message: Any, metadata: Metadata) -> Line:
    spans = wire.join(list(message.events))
    count = len(spans)
    id_, offset, duration = (np.zeros(count, dtype=np.int64) for _ in range(3))
    is_timed = np.ones(count, dtype=bool)
    stat_event: list[Int64s] = [_EMPTY]
    stat_begin: list[Int64s] = [_EMPTY]
    stat_end: list[Int64s] = [_EMPTY]
    for part in wire.walk(spans):
        is_varint = part.wire_type == wire.VARINT
        for number, column in ((_METADATA_ID, id_), (_OFFSET, offset), (_DURATION, duration)):
            chosen = is_varint & (part.number == number)
            column[part.row[chosen]] = part.value[chosen].view(np.int64)
        # An event with a count in place of an offset sums up many: it has no time of its own.
        is_timed[part.row[is_varint & (part.number == _OCCURRENCES)]] = False
        is_stat = (part.wire_type == wire.DELIMITED) & (part.number == _STATS)
        if is_stat.any():
            stat_event.append(part.row[is_stat])
            stat_begin.append(part.begin[is_stat])
            stat_end.append(part.rest[is_stat])
    timestamp = int(message.timestamp_ns)
    is_sound = (np.abs(offset) < _TIME_LIMIT) & (duration >= 0) & (duration < _TIME_LIMIT)
    is_sound &= abs(timestamp) < _TIME_LIMIT
    keep = is_sound & is_timed
    event_stats = np.concatenate(stat_event)
    is_kept = keep[event_stats]
    new_row = np.cumsum(keep) - 1
    stats = wire.Spans(spans.buffer, np.concatenate(stat_begin), np.concatenate(stat_end))
    start_ps, duration_ps = offset[keep], duration[keep]
    # Floor of start and end alike keeps nesting: an order of picoseconds is one of nanoseconds.
    start_ns = start_ps // 1000
    end_ns = (start_ps + duration_ps) // 1000
    return Line(
        id=int(message.id),
        name=_text(message.display_name) or _text(message.name),
        metadata=metadata,
        row=metadata.rows(id_[keep]),
        start_ns=start_ns + (timestamp if abs(timestamp) < _TIME_LIMIT else 0),
        duration_ns=end_ns - start_ns,
        broken_events=int((~is_sound).sum()),
        _stat_event=new_row[event_stats[is_kept]],
        _stats=stats.select(is_kept),
    )


def _decode_stats(event: Int64s, spans: wire.Spans, used: list[int]) -> _StatColumn:
    ids = np.array(sorted(used), dtype=np.int64)
    chunks = [_NO_STATS]
    for first in range(0, len(spans), _CHUNK):
        part = slice(first, first + _CHUNK)
        chunk = wire.Spans(spans.buffer, spans.begin[part], spans.end[part])
        chunks.append(_decode_chunk(event[part], chunk, ids))
    return _StatColumn(
        *(
            np.concatenate([getattr(chunk, column.name) for chunk in chunks])
            for column in fields(_StatColumn)
        )
    )


def _decode_chunk(event: Int64s, spans: wire.Spans, ids: Int64s) -> _StatColumn:
    count = len(spans)
    key, begin = (np.zeros(count, dtype=np.int64) for _ in range(2))
    number = np.zeros(count, dtype=np.uint8)
    value = np.zeros(count, dtype=np.uint64)
    for step in wire.walk(spans):
        is_key = (step.number == _METADATA_ID) & (step.wire_type == wire.VARINT)
        key[step.row[is_key]] = step.value[is_key].view(np.int64)
        is_value = _is_value(step)
        rows = step.row[is_value]
        number[rows] = step.number[is_value]
        value[rows] = step.value[is_value]
        begin[rows] = step.begin[is_value]
    every = _StatColumn(event, key, number, value, begin)
    return every.select(np.isin(key, ids))


def _is_value(step: wire.Fields) -> NDArray[np.bool_]:
    """Which fields hold a value of the wire type that the schema gives them."""
    number, wire_type = step.number, step.wire_type
    is_varint = (number == _UINT64) | (number == _INT64) | (number == _REF)
    is_bytes = (number == _STR) | (number == _BYTES)
    is_value: NDArray[np.bool_] = is_varint & (wire_type == wire.VARINT)
    is_value |= is_bytes & (wire_type == wire.DELIMITED)
    is_value |= (number == _DOUBLE) & (wire_type == wire.FIXED64)
    return is_value


def _fit(value: float, dtype: Any, default: float) -> float:
    """A number that the column's type can hold."""
    if dtype is np.int64:
        if not np.isfinite(value):
            return default
        whole = int(value)
        # As for events: identifiers above 2^63 keep their bits.
        return whole - 2**64 if 2**63 <= whole < 2**64 else max(-(2**63), min(whole, 2**63 - 1))
    return float(value)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
