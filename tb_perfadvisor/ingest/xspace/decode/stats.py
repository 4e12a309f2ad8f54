"""Metadata and stats of planes."""

from __future__ import annotations

import secrets
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from enum import IntEnum
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.ingest.xspace.decode import wire
from tb_perfadvisor.trace.columns import IdIndex
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.tables import Int32, Int64

_KEY: Final = 1  # field of XStat with the id of the name

_KEY_TAG: Final = _KEY << 3 | wire.VARINT
_ONE, _THREE, _EIGHT, _NINE, _FIFTEEN, _SIXTEEN, _TWENTY_THREE = map(
    np.uint64, (1, 3, 8, 9, 15, 16, 23)
)
_LOW_SEVEN, _HIGH_SEVEN = np.uint64(0x7F), np.uint64(0x7F << 7)


class StatField(IntEnum):
    """The fields of XStat with values of different types."""

    DOUBLE = 2
    UINT64 = 3
    INT64 = 4
    TEXT = 5
    BYTES = 6
    REFERENCE = 7
    """The id of a stat whose name is the value."""


_WIRE_TYPE_OF_VALUE: Final = np.full(256, 255, dtype=np.uint8)
_WIRE_TYPE_OF_VALUE[[StatField.UINT64, StatField.INT64, StatField.REFERENCE]] = wire.VARINT
_WIRE_TYPE_OF_VALUE[[StatField.TEXT, StatField.BYTES]] = wire.DELIMITED
_WIRE_TYPE_OF_VALUE[StatField.DOUBLE] = wire.FIXED64
# Texts stored directly in stats.
_INLINE: Final = (StatField.TEXT, StatField.BYTES)


class StatPart(Struct, frozen=True):
    """The values of a stat of one type in a chunk of events or event kinds; shape (n,) each."""

    first: int
    """The first event of the chunk, from which owners are counted."""
    owner: Int32
    """The event that has the value."""
    field: StatField
    value: NDArray[np.uint64]
    """The bits of a number, the id of a reference or the index of a text."""


StatColumn = Sequence[StatPart]
"""One stat of many events, in parts as decoded. The last value of an event counts."""


def of_type(column: StatColumn, *fields: StatField) -> list[StatPart]:
    """The parts with values of the given types."""
    return [part for part in column if part.field in fields]


class Texts:
    """The distinct texts and bytes stored directly in stats."""

    def __init__(self) -> None:
        self.raw: list[bytes] = []
        self._index: dict[bytes, int] = {}

    def row(self, index: int) -> str:
        """The text at an index."""
        return self.raw[index].decode("utf-8", "replace")

    def index(self, raw: bytes) -> int:
        """The index of a text; adds new texts."""
        index = self._index.get(raw)
        if index is None:
            index = self._index[raw] = len(self.raw)
            self.raw.append(raw)
        return index

    def add(self, buffer: wire.Bytes, begin: Int64, size: Int64) -> Int64:
        """The index of each text in a buffer."""
        hashes = _hashes(buffer, begin, size)
        _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
        data = buffer.data
        index_of_group = np.empty(first.size, dtype=np.int64)
        for slot in np.argsort(first).tolist():  # in order of appearance
            at = int(begin[first[slot]])
            raw = data[at : at + int(size[first[slot]])].tobytes()
            index_of_group[slot] = self.index(raw)
        indices: Int64 = index_of_group[group.reshape(-1)]
        return indices


# A random odd factor, so that nobody can craft a file in which two texts have the same hash.
_FACTOR: Final = np.uint64(secrets.randbits(64) | 1)
_MAX_HASHED_BYTES: Final = 256


def _hashes(buffer: wire.Bytes, begin: Int64, size: Int64) -> NDArray[np.uint64]:
    """A hash of each piece of the buffer; long pieces have distinct hashes even if equal."""
    hashes: NDArray[np.uint64] = size.astype(np.uint64) * _FACTOR
    is_long = size > _MAX_HASHED_BYTES
    hashes[is_long] = begin[is_long].view(np.uint64)
    rows = np.flatnonzero((size > 0) & ~is_long)
    at, left = begin[rows], size[rows]
    while rows.size:
        word = wire.words_at(buffer, at, left)
        hashes[rows] = (hashes[rows] ^ word ^ (hashes[rows] >> np.uint64(32))) * _FACTOR
        has_more = left > 8
        rows, at, left = rows[has_more], at[has_more] + 8, left[has_more] - 8
    return hashes


def _lengths(word: NDArray[np.uint64], at: Int64) -> tuple[Int64, Int64, NDArray[np.uint64]]:
    """Decode lengths of up to two bytes.

    `word` has the eight bytes from each field's tag on, and `at` the positions of the tags. Returns
    the length, the position of the payload, and the payload's first bytes. A length of more than
    two bytes is returned as a number beyond any buffer.
    """
    is_long = (word >> _FIFTEEN) & _ONE
    size = (word >> _EIGHT) & _LOW_SEVEN
    begin = at + 2
    if not is_long.any():
        return size.view(np.int64), begin, word >> _SIXTEEN
    size |= ((word >> _NINE) & _HIGH_SEVEN) * is_long
    size |= (word & is_long << _TWENTY_THREE) << _TWENTY_THREE
    begin += is_long.view(np.int64)
    return size.view(np.int64), begin, word >> _SIXTEEN + (is_long << _THREE)


def _keys(payload: NDArray[np.uint64]) -> tuple[Int32, NDArray[np.uint32]]:
    """The varint of up to three bytes at the start of each word, and its size; 0 if it is longer.

    This is all that is decoded of unused stats, which are the majority.
    """
    one = np.uint32(1)
    word = payload.astype(np.uint32)
    first, second = (word >> np.uint32(7)) & one, (word >> np.uint32(15)) & one
    second &= first
    third = (word >> np.uint32(23)) & second
    key = word & np.uint32(0x7F)
    key |= ((word >> one) & np.uint32(0x3F80)) * first
    key |= ((word >> np.uint32(2)) & np.uint32(0x1FC000)) * second
    return key.view(np.int32), (one + first + second) * (one - third)


class StatDecoder:
    """Collects the used stats of many messages, part by part."""

    def __init__(self, ids: IdIndex, names: Sequence[str], texts: Texts) -> None:
        """Create a decoder of the stats with these ids; `texts` receives the texts in them."""
        self._ids = ids
        self._names = names
        places = {name: place for place, name in enumerate(dict.fromkeys(names))}
        # NumPy sorts 16-bit integers by radix, in a tenth of the time.
        dtype = np.uint16 if len(places) < 1 << 13 else np.uint32
        self._place = np.array([places[name] for name in names], dtype=dtype)
        """Of the name of each stat; several may have the same one."""
        self._texts = texts
        self._parts: dict[str, list[StatPart]] = {}

    def part(self) -> StatDecoder:
        """A decoder of the same stats, whose results another thread can make: see `take`."""
        made = copy(self)
        made._texts, made._parts = Texts(), {}
        return made

    def take(self, other: StatDecoder) -> None:
        """Add what a part has decoded, after all that was decoded before."""
        index = np.array([self._texts.index(raw) for raw in other._texts.raw], dtype=np.uint64)
        for name, parts in other._parts.items():
            self._parts.setdefault(name, []).extend(
                replace(part, value=index[part.value]) if part.field in _INLINE else part
                for part in parts
            )

    def walk(self, spans: wire.Slices, tag: int, first: int = 0) -> tuple[Int64, Int64]:
        """Decode the plain stats at the start of messages.

        A plain stat has a key, followed by a single value if the stat is used. Nearly all are.

        `spans` has messages from their first stat on, and `tag` is that of stats, of one byte.
        Owners are counted from `first`, the number of the first message. Returns the messages with
        remaining fields, and where these start.
        """
        every = wire.words(spans.buffer)
        row = np.flatnonzero(spans.begin < spans.end)
        at, end = spans.begin[row], spans.end[row]
        odd_rows, odd_places = [], []
        for _ in range(wire.MAX_FIELDS):
            if not row.size:
                break
            # The stat's tag, its length in a byte or two, the key's tag, the key.
            word = every[at]
            size, begin, payload = _lengths(word, at)
            rest = begin + size
            is_plain = word.astype(np.uint8) == tag
            is_plain &= payload.astype(np.uint8) == _KEY_TAG
            key, key_size = _keys(payload >> _EIGHT)
            is_plain &= rest <= end
            is_plain &= key_size > 0
            slot = self._ids.rows(key)
            wanted = np.flatnonzero(is_plain & (slot < len(self._ids)))
            if wanted.size:
                value_at = begin[wanted] + key_size[wanted]
                value_at += 1
                value = wire.fields_at(spans.buffer, wanted, value_at)
                is_whole = value.rest == rest[wanted]
                if not is_whole.all():
                    is_plain[wanted[~is_whole]] = False
                    value, wanted = value.select(is_whole), wanted[is_whole]
                self._keep(spans.buffer, first, row[wanted], slot[wanted], value)
            if not is_plain.all():
                odd_rows.append(row[~is_plain])
                odd_places.append(at[~is_plain])
            continues = is_plain & (rest < end)
            if continues.all():
                at = rest
            else:
                row, at, end = row[continues], rest[continues], end[continues]
        none = np.empty(0, dtype=np.int64)
        return np.concatenate([none, *odd_rows]), np.concatenate([none, *odd_places])

    def add(self, owner: Int64, spans: wire.Slices, first: int = 0) -> None:
        """Decode stats of any form; the last key and value of each count.

        `owner` has the event of each stat, counted from `first`, and `spans` the XStat messages.
        """
        key = np.zeros(len(spans), dtype=np.int64)
        values = []
        for part in wire.walk(spans):
            is_key = (part.number == _KEY) & (part.wire_type == wire.VARINT)
            key[part.row[is_key]] = part.value[is_key].view(np.int64)
            values.append(part.select(part.number != _KEY))
        slot = self._ids.rows(key)
        for part in values:
            wanted = part.select(slot[part.row] < len(self._ids))
            self._keep(spans.buffer, first, owner[wanted.row], slot[wanted.row], wanted)

    def _keep(
        self, buffer: wire.Bytes, first: int, owner: Int64, slot: Int32, values: wire.Fields
    ) -> None:
        # Ignore values of another wire type than in the schema.
        rows = np.flatnonzero(_WIRE_TYPE_OF_VALUE[values.number] == values.wire_type)
        # A file may have as many stats as values, so they are sorted instead of searched for each.
        group = self._place[slot[rows]] << 3 | values.number[rows]
        order = np.argsort(group, kind="stable")
        group, rows = group[order], rows[order]
        edges = np.flatnonzero(group[1:] != group[:-1]) + 1
        for of_group in np.split(rows, edges) if rows.size else ():
            field = StatField(values.number[of_group[0]])
            value = values.value[of_group]
            if field in _INLINE:
                length = value.view(np.int64)
                value = self._texts.add(buffer, values.begin[of_group], length).view(np.uint64)
            part = StatPart(first, owner[of_group].astype(np.int32), field, value)
            name = self._names[slot[of_group[0]]]
            self._parts.setdefault(name, []).append(part)

    def finish(self, kept: NDArray[np.bool_] | None = None) -> dict[str, StatColumn]:
        """The columns of the decoded stats, by name.

        `kept` is a mask of the owners to keep, which are renumbered.
        """
        columns: dict[str, StatColumn] = dict(self._parts)
        self._parts = {}
        if kept is None:
            return columns
        number = np.append(0, np.cumsum(kept)).astype(np.int32)
        return {
            name: [_renumbered(part, kept, number) for part in column]
            for name, column in columns.items()
        }


def _renumbered(part: StatPart, kept: NDArray[np.bool_], number: Int32) -> StatPart:
    """The values of the kept owners; `number` has the kept owners before each one."""
    is_kept = kept[part.first :][part.owner]
    first = number[part.first]
    owner = number[part.first :][part.owner[is_kept]] - first
    return StatPart(int(first), owner, part.field, part.value[is_kept])


class EventStats:
    """The stats of the events of a plane, by name."""

    def __init__(self, decoded: Iterable[Mapping[str, StatColumn]]) -> None:
        """Join what several decoders found, each in other events.

        Columns are by name; their owners are sorted within each part.
        """
        columns: dict[str, list[StatPart]] = {}
        for found in decoded:
            for name, column in found.items():
                columns.setdefault(name, []).extend(column)
        for column in columns.values():
            column.sort(key=_first)
        self._columns = columns

    def within(self, stat: str, begin: int, end: int) -> StatColumn:
        """A stat of the events from `begin` to `end`, with owners counted from `begin`."""
        column = self._columns.get(stat)
        if not column:
            return ()
        # The parts of a chunk have the same first event; the chunk may begin before `begin`.
        before = max(bisect_right(column, begin, key=_first) - 1, 0)
        least = bisect_left(column, column[before].first, key=_first)
        most = bisect_left(column, end, key=_first)
        parts = [_cut(part, begin, end) for part in column[least:most]]
        return [part for part in parts if part.owner.size]


def _first(part: StatPart) -> int:
    return part.first


def _cut(part: StatPart, begin: int, end: int) -> StatPart:
    # In the type of the owners, because others would be converted for each search.
    edges = np.array([begin - part.first, end - part.first]).astype(part.owner.dtype)
    low, high = np.searchsorted(part.owner, edges).tolist()
    owner, value = part.owner[low:high], part.value[low:high]
    if part.first >= begin:
        return StatPart(part.first - begin, owner, part.field, value)
    return StatPart(0, owner - np.int32(begin - part.first), part.field, value)


Value = int | float | str | bytes

UNNAMED: Final = "(unnamed)"

# The stats of events that the reader uses; others are not decoded. Lines that cover or repeat the
# work of a device only need their place, counters their value.
PLACING_STATS: Final = frozenset({"step_num", "group_id", "_ct", "_c", "run_id", "% util"})
WORK_STATS: Final = frozenset(
    {
        *("correlation_id", "hlo_op", "hlo_module", "program_id"),
        *("kernel_details", "occupancy_pct", "memcpy_details", "memset_details"),
        *("device_offset_ps", "device_duration_ps"),
    }
)
HOST_STATS: Final = frozenset(
    {
        *("correlation_id", "hlo_op", "hlo_module", "program_id"),
        *("run_id", "device_ordinal", "_ct", "_c"),
        *("step_num", "_pt", "_p", "eager_op", "is_func", "tf_function_call", "shape"),
        *("allocator_name", "index_on_host", "bytes_allocated", "bytes_reserved"),
        *("bytes_available", "allocation_bytes", "addr"),
    }
)
USED_STATS: Final = PLACING_STATS | WORK_STATS | HOST_STATS
# The stats of tf.data iterators on host threads.
ITERATOR_STATS: Final = frozenset(
    {
        *("id", "parent_id", "name", "shapes", "types", "parallelism", "autotune"),
        *("batch_size", "buffer_limit", "buffer_size", "buffered_elements", "buffered_bytes_MB"),
        *("cpu_budget", "threadpool_size", "ram_budget_megabytes"),
    }
)
# Stats that may be on the event kind instead of each event.
USED_OF_KINDS: Final = USED_STATS | {
    *ITERATOR_STATS,
    *("hlo_category", "tf_op", "flops", "bytes_accessed", "source", "long_name"),
    *("shape_with_layout", "Hlo Proto", "memory_access_breakdown"),
}

# Fields of XEventMetadata, of XStatMetadata and of a map's entries.
_ID, _NAME, _BYTES, _DISPLAY, _STATS = 1, 2, 3, 4, 5
_BEFORE_STATS: Final = (
    _ID << 3 | wire.VARINT,
    *(number << 3 | wire.DELIMITED for number in (_NAME, _BYTES, _DISPLAY)),
)
_METADATA_KEY, _VALUE = 1, 2


class Entries(Struct, frozen=True):
    """The entries of a map from integers to messages."""

    ids: Int64
    """Sorted and distinct; the last entry with an id counts."""
    spans: wire.Slices

    def select(self, ids: Int64) -> Entries:
        """The entries with the given ids."""
        rows = np.flatnonzero(np.isin(self.ids, ids, assume_unique=True))
        return Entries(self.ids[rows], self.spans.select(rows))


def map_entries(spans: wire.Slices) -> Entries:
    """Decode the keys of a map and find its values."""
    key, begin, end = (np.zeros(len(spans), dtype=np.int64) for _ in range(3))
    for part in wire.walk(spans):
        is_key = (part.number == _METADATA_KEY) & (part.wire_type == wire.VARINT)
        key[part.row[is_key]] = part.value[is_key].view(np.int64)
        is_value = (part.number == _VALUE) & (part.wire_type == wire.DELIMITED)
        begin[part.row[is_value]] = part.begin[is_value]
        end[part.row[is_value]] = part.rest[is_value]
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    is_last = np.append(ordered[1:] != ordered[:-1], True)[: ordered.size]
    last = order[is_last]
    return Entries(key[last], wire.Slices(spans.buffer, begin[last], end[last]))


class StatNames:
    """The names of a plane's stats, including texts that stats refer to.

    There may be hundreds of thousands of texts, so each is decoded on access.
    """

    def __init__(self, entries: Entries) -> None:
        """Find the names in the buffer; `entries` has XStatMetadata by id."""
        self.ids = IdIndex(entries.ids)
        self._buffer = entries.spans.buffer
        self._begin, self._end = (np.zeros(len(self.ids), dtype=np.int64) for _ in range(2))
        for part in wire.walk(entries.spans):
            chosen = (part.number == _NAME) & (part.wire_type == wire.DELIMITED)
            self._begin[part.row[chosen]] = part.begin[chosen]
            self._end[part.row[chosen]] = part.rest[chosen]

    def __getitem__(self, id_: int) -> str:
        """The name of an id; empty if missing."""
        return self.row(int(self.ids.rows(np.array([id_ % 2**64], np.uint64).view(np.int64))[0]))

    def texts(self, ids: NDArray[np.uint64]) -> list[str]:
        """The names of many ids."""
        rows = self.ids.rows(ids.view(np.int64))
        used = distinct(rows)
        text_of = dict(zip(used.tolist(), map(self.row, used.tolist()), strict=True))
        return [text_of[row] for row in rows.tolist()]

    def __contains__(self, name: str) -> bool:
        """Whether a stat has the name."""
        return bool(self._rows_of(frozenset({name})))

    def row(self, row: int) -> str:
        """The name in a row of `ids`; empty for the row after the last."""
        if row >= len(self.ids):
            return ""
        return str(self._buffer.data[self._begin[row] : self._end[row]], "utf-8", "replace")

    def decoder(self, wanted: frozenset[str], texts: Texts) -> StatDecoder:
        """A decoder for the wanted stats."""
        rows = self._rows_of(wanted)
        return StatDecoder(IdIndex(self.ids.ids[rows]), [self.row(row) for row in rows], texts)

    def _rows_of(self, wanted: frozenset[str]) -> list[int]:
        sizes = np.array(sorted({len(name) for name in wanted}))
        rows = np.flatnonzero(np.isin(self._end - self._begin, sizes))
        return [row for row in rows.tolist() if self.row(row) in wanted]


class Metadata:
    """The event kinds of a plane, by row."""

    def __init__(self, entries: Entries, stat_names: StatNames) -> None:
        """Decode the names; stats are decoded on access.

        `entries` has XEventMetadata by id.
        """
        self.ids = IdIndex(entries.ids)
        self.stat_names = stat_names
        names, displays = _texts(entries.spans, _NAME, _DISPLAY)
        # An additional row for events whose kind is missing.
        self.displays = [*displays, ""]
        self.names = [n or d or UNNAMED for n, d in zip(names, displays, strict=True)] + [UNNAMED]
        self._inline = Texts()
        self._stats = _stats(entries.spans, stat_names, self._inline)
        self._values: dict[str, dict[int, Value]] = {}

    def values(self, stat: str) -> dict[int, Value]:
        """The values of a stat of event kinds, by row."""
        known = self._values.get(stat)
        if known is None:
            if stat not in USED_OF_KINDS:
                raise KeyError(stat)
            column = self._stats.get(stat, ())
            known = self._values[stat] = _values(column, self._inline, self.stat_names)
        return known


def _texts(spans: wire.Slices, *numbers: int) -> list[list[str]]:
    """The texts in the given fields of messages; empty if missing."""
    texts_of_fields = [[""] * len(spans) for _ in numbers]
    data = spans.buffer.data
    for part in wire.walk(spans):
        for number, texts in zip(numbers, texts_of_fields, strict=True):
            chosen = (part.number == number) & (part.wire_type == wire.DELIMITED)
            rows, begins, ends = part.row[chosen], part.begin[chosen], part.rest[chosen]
            for row, begin, end in zip(rows.tolist(), begins.tolist(), ends.tolist(), strict=True):
                texts[row] = str(data[begin:end], "utf-8", "replace")
    return texts_of_fields


def _stats(spans: wire.Slices, stat_names: StatNames, texts: Texts) -> dict[str, StatColumn]:
    decoder = stat_names.decoder(USED_OF_KINDS, texts)
    _, at = wire.leading(spans, _BEFORE_STATS)
    rest = wire.Slices(spans.buffer, at, spans.end)
    odd, at = decoder.walk(rest, _STATS << 3 | wire.DELIMITED)
    for part in wire.walk(wire.Slices(spans.buffer, at, spans.end[odd])):
        is_stat = (part.number == _STATS) & (part.wire_type == wire.DELIMITED)
        stats = wire.Slices(spans.buffer, part.begin[is_stat], part.rest[is_stat])
        decoder.add(odd[part.row[is_stat]], stats)
    return decoder.finish()


def plane_stats(spans: wire.Slices, stat_names: StatNames) -> dict[str, Value]:
    """The stats of the plane itself, by name.

    `spans` has XStat messages.
    """
    keys = np.zeros(len(spans), dtype=np.int64)
    for part in wire.walk(spans):
        is_key = (part.number == _METADATA_KEY) & (part.wire_type == wire.VARINT)
        keys[part.row[is_key]] = part.value[is_key].view(np.int64)
    inline = Texts()
    wanted = frozenset(stat_names.texts(keys.view(np.uint64))) - {""}
    decoder = stat_names.decoder(wanted, inline)
    decoder.add(np.zeros(len(spans), dtype=np.int64), spans)
    columns = decoder.finish()
    # The last stat with a name counts.
    return {name: _values(column, inline, stat_names)[0] for name, column in columns.items()}


def _values(column: StatColumn, inline: Texts, stat_names: StatNames) -> dict[int, Value]:
    by_row: dict[int, Value] = {}
    for part in column:
        field = part.field
        values: list[Value]
        if field is StatField.REFERENCE:
            values = [*stat_names.texts(part.value)]
        elif field is StatField.TEXT:
            values = [inline.row(value) for value in part.value.tolist()]
        elif field is StatField.BYTES:
            values = [inline.raw[value] for value in part.value.tolist()]
        else:
            values = part.value.view(_NUMBERS[field]).tolist()
        by_row.update(zip((part.owner + part.first).tolist(), values, strict=True))
    return by_row


_NUMBERS: Final = {
    StatField.DOUBLE: np.float64,
    StatField.UINT64: np.uint64,
    StatField.INT64: np.int64,
}
