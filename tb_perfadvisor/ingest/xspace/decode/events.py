"""The decoded events of a plane: of each line, and of several lines at once.

What is said of each event by itself is computed for a batch of lines, because a plane may have a
hundred thousand lines of a few events. Only what depends on the order of events on their thread is
computed line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from tb_perfadvisor.ingest.xspace.decode.line_events import DecodedLines
from tb_perfadvisor.ingest.xspace.decode.metadata import (
    ITERATOR_STATS,
    USED_STATS,
    Metadata,
    StatNames,
)
from tb_perfadvisor.ingest.xspace.decode.stats import (
    EventStats,
    StatColumn,
    StatField,
    Texts,
    of_type,
)
from tb_perfadvisor.trace.id_index import IdIndex
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.tables import Int32, Int64, repeated

# Few enough that the columns of a batch stay in the processor's cache.
_BATCH_EVENTS: Final = 1 << 16
_NONE: Final = np.empty(0, dtype=np.int64)
_NO_ROWS: Final = np.empty(0, dtype=np.int32)


class Events(Struct):
    """Consecutive events of a plane as columns of shape (n,), in file order."""

    metadata: Metadata
    row: Int32
    """Row of the event kind in `metadata`."""
    start_ns: Int64
    duration_ns: Int64
    begin: int
    """The number of the first event among those of the plane."""
    _stats: EventStats
    _inline: Texts

    def __len__(self) -> int:
        """Number of events."""
        return len(self.start_ns)

    @property
    def names(self) -> list[str]:
        """The names of the event kinds, by row."""
        return self.metadata.names

    def has(self, stat: str) -> NDArray[np.bool_]:
        """Which events have a stat, either directly or through their kind."""
        by_row = np.zeros(len(self.names), dtype=bool)
        by_row[list(self.metadata.values(stat))] = True
        found = by_row[self.row]
        for part in self._column(stat):
            found[part.first :][part.owner] = True
        return found

    def named(self, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
        """Which events have a name that a pattern matches from its beginning on."""
        rows = distinct(self.row).tolist()
        return is_in(self.row, [row for row in rows if pattern.match(self.names[row])])

    def numbers(self, stat: str, default: int = -1) -> Int64:
        """An integer stat of every event; read-only."""
        if not self._is_used(stat):
            return repeated(default, len(self), np.int64)
        found = self._shared(stat, default, np.int64)
        for part in of_type(self._column(stat), StatField.INT64, StatField.UINT64):
            found[part.first :][part.owner] = part.value.view(np.int64)
        return found

    def floats(self, stat: str) -> NDArray[np.float64]:
        """A numeric stat of every event, NaN if missing; read-only."""
        if not self._is_used(stat):
            return repeated(np.nan, len(self), np.float64)
        found = self._shared(stat, np.nan, np.float64)
        for field, dtype in (
            (StatField.INT64, np.int64),
            (StatField.UINT64, np.uint64),
            (StatField.DOUBLE, np.float64),
        ):
            for part in of_type(self._column(stat), field):
                found[part.first :][part.owner] = part.value.view(dtype)
        return found

    def texts(self, stat: str) -> tuple[Int64, list[str]]:
        """A text stat: for every event the index into the distinct texts, -1 if missing."""
        if not self._is_used(stat):
            return repeated(-1, len(self), np.int64), []
        index_of: dict[str, int] = {}
        shared = {
            row: index_of.setdefault(value, len(index_of))
            for row, value in self.metadata.values(stat).items()
            if isinstance(value, str)
        }
        found = self._expanded(shared, -1, np.int64)
        stat_names = self.metadata.stat_names
        references = [
            (part, stat_names.ids.rows(part.value.view(np.int64)))
            for part in of_type(self._column(stat), StatField.REFERENCE)
        ]
        inline = [
            (part, part.value.view(np.int64))
            for part in of_type(self._column(stat), StatField.TEXT, StatField.BYTES)
        ]
        texts: StatNames | Texts
        for parts, texts in ((references, stat_names), (inline, self._inline)):
            used = distinct(np.concatenate([_NONE, *(distinct(rows) for _, rows in parts)]))
            known = np.array(
                [index_of.setdefault(texts.row(row), len(index_of)) for row in used.tolist()],
                dtype=np.int64,
            )
            slots = IdIndex(used)
            for part, rows in parts:
                found[part.first :][part.owner] = known[slots.rows(rows)]
        return found, list(index_of)

    def _is_used(self, stat: str) -> bool:
        return bool(self._column(stat) or self.metadata.values(stat))

    def _shared(self, stat: str, default: float, dtype: Any) -> NDArray[Any]:
        shared = {
            row: _fit(value, dtype, default)
            for row, value in self.metadata.values(stat).items()
            if isinstance(value, (int, float))
        }
        return self._expanded(shared, default, dtype)

    def _expanded(self, shared: dict[int, Any], default: float, dtype: Any) -> NDArray[Any]:
        """Values of event kinds, by row, expanded to a writable column of all events."""
        if not shared:
            return np.full(len(self), default, dtype=dtype)
        by_row = np.full(len(self.names), default, dtype=dtype)
        by_row[list(shared)] = list(shared.values())
        return by_row[self.row]

    def columns(self, begin: int, end: int) -> dict[str, Any]:
        """The fields of some consecutive events, counted from the first one here."""
        return {
            "metadata": self.metadata,
            "row": self.row[begin:end],
            "start_ns": self.start_ns[begin:end],
            "duration_ns": self.duration_ns[begin:end],
            "begin": self.begin + begin,
            "_stats": self._stats,
            "_inline": self._inline,
        }

    def _column(self, stat: str) -> StatColumn:
        if stat not in USED_STATS and stat not in ITERATOR_STATS:
            raise KeyError(stat)
        return self._stats.within(stat, self.begin, self.begin + len(self))


class Line(Events, kw_only=True):
    """A line of a plane: a thread, a stream, or work at another level of detail."""

    id: int
    name: str


class Lines(Events, kw_only=True):
    """Consecutive lines of a plane, with the events of all of them."""

    lines: tuple[Line, ...]

    @classmethod
    def of(cls, read: DecodedLines, metadata: Metadata, inline: Texts) -> Lines:
        """Divide decoded events into lines."""
        whole = Events(
            metadata=metadata,
            row=np.concatenate([_NO_ROWS, *map(metadata.ids.rows, read.kinds)]),
            start_ns=read.start_ns,
            duration_ns=read.duration_ns,
            begin=0,
            _stats=read.stats,
            _inline=inline,
        )
        begins = np.append(0, read.ends[:-1]).tolist()
        lines = tuple(
            Line(**whole.columns(begin, end), id=head.id, name=head.name)
            for head, begin, end in zip(read.heads, begins, read.ends.tolist(), strict=False)
        )
        return cls(**whole.columns(0, len(whole)), lines=lines)

    def in_batches(self, lines: Sequence[Line]) -> Iterator[Lines]:
        """Some lines that follow one another, as batches of few events or of a single line."""
        batch: list[Line] = []
        count = 0
        for line in lines:
            if batch and count + len(line) > _BATCH_EVENTS:
                yield self._batch(batch)
                batch, count = [], 0
            batch.append(line)
            count += len(line)
        if batch:
            yield self._batch(batch)

    def _batch(self, lines: Sequence[Line]) -> Lines:
        begin, end = lines[0].begin, lines[-1].begin + len(lines[-1])
        columns = self.columns(begin - self.begin, end - self.begin)
        return Lines(**columns, lines=tuple(lines))

    def of_lines(self, values: ArrayLike) -> NDArray[Any]:
        """Repeat a value of each line for each of its events."""
        return np.repeat(np.asarray(values), [len(line) for line in self.lines])

    def with_any(self, mask: NDArray[np.bool_]) -> Iterator[tuple[Line, slice]]:
        """The lines that have any event of a mask, each with the places of all its events.

        Args:
            mask: Shape (n,).
        """
        ends = np.cumsum([len(line) for line in self.lines])
        for index in distinct(np.searchsorted(ends, np.flatnonzero(mask), side="right")).tolist():
            line, end = self.lines[index], int(ends[index])
            yield line, slice(end - len(line), end)


def _fit(value: float, dtype: Any, default: float) -> float:
    """Convert a number to the column's type."""
    if dtype is np.int64:
        if not np.isfinite(value):
            return default
        whole = int(value)
        # As in events, identifiers above 2^63 keep their bits.
        return whole - 2**64 if 2**63 <= whole < 2**64 else max(-(2**63), min(whole, 2**63 - 1))
    return float(value)
