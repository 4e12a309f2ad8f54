"""Decodes the event kinds of a plane and the names of its stats."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.ingest.xspace.decode import wire
from tb_perfadvisor.ingest.xspace.decode.stats import (
    StatColumn,
    StatDecoder,
    StatField,
    Texts,
)
from tb_perfadvisor.trace.id_index import IdIndex
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.tables import Int64

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
_KEY, _VALUE = 1, 2


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
        is_key = (part.number == _KEY) & (part.wire_type == wire.VARINT)
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
        """Find the names in the buffer.

        Args:
            entries: XStatMetadata by id.
        """
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

        Args:
            entries: XEventMetadata by id.
            stat_names: The names of the plane's stats.
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

    Args:
        spans: XStat messages.
        stat_names: The names of the plane's stats.
    """
    keys = np.zeros(len(spans), dtype=np.int64)
    for part in wire.walk(spans):
        is_key = (part.number == _KEY) & (part.wire_type == wire.VARINT)
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
