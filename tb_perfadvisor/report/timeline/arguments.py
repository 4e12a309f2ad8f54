"""What is recorded of an event besides its name and time: shapes, types, grid, bytes.

Events of the same operator, kernel or copy repeat from step to step, so each list of arguments is
stored once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from tb_perfadvisor.trace import CopyDirection, Trace
from tb_perfadvisor.trace.integer_groups import group_rows
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.units import format_bytes

MAX_TEXTS = 100_000
"""Lists of arguments. Programs whose shapes never repeat have more; the others show none."""
MAX_CHARACTERS = 400
"""Of a value: HLO texts may have hundreds of operands."""
_Format = Callable[[Trace, Any], str]


def _text(trace: Trace, index: Any) -> str:
    return trace.text(int(index))


def _types(trace: Trace, index: Any) -> str:
    return trace.text(int(index)).replace(";", ", ")


def _size(_: Trace, size_bytes: Any) -> str:
    return format_bytes(float(size_bytes)) if size_bytes >= 0 else ""


def _counted(of: str) -> _Format:
    return lambda _, count: f"{int(count):,} {of}" if count >= 0 else ""


def _direction(_: Trace, direction: Any) -> str:
    return CopyDirection(int(direction)).name.lower().replace("_", " ")


def _host_memory(_: Trace, pageable: Any) -> str:
    return {0: "pinned", 1: "pageable"}.get(int(pageable), "")


# By table of the trace: label, column and form. Where an event is in several, the last one counts.
_ARGUMENTS: dict[str, tuple[tuple[str, str, _Format], ...]] = {
    "operators": (
        ("Shapes", "shapes", _text),
        ("Types", "dtypes", _types),
        ("Values", "values", _text),
    ),
    "hlo_events": (
        ("Operation", "op", lambda trace, op: _text(trace, trace.hlo.category[op])),
        ("Bytes", "op", lambda trace, op: _size(trace, trace.hlo.traffic_bytes[op])),
        ("HLO", "op", lambda trace, op: _text(trace, trace.hlo.text[op])),
    ),
    "kernels": (
        ("Grid", "grid_blocks", _counted("blocks")),
        ("Block", "block_threads", _counted("threads")),
        ("Registers", "registers", _counted("per thread")),
        ("Shared memory", "shared_memory_bytes", _size),
    ),
    "copies": (
        ("Copy", "direction", _direction),
        ("Bytes", "size_bytes", _size),
        ("Host memory", "pageable", _host_memory),
    ),
    "collectives": (
        ("Collective", "operation", _text),
        ("Bytes", "size_bytes", _size),
        ("Types", "dtype", _types),
        ("Group", "group_size", _counted("ranks")),
        ("Group name", "description", _text),
        ("Ranks", "ranks", _text),
    ),
}


class Arguments:
    """Lists of arguments by index; each is stored once."""

    def __init__(self) -> None:
        self._index_of: dict[str, int] = {}

    def indices(self, trace: Trace, rows: Int64) -> Int32:
        """The index of each event's arguments; -1 for none."""
        found = np.full(len(trace.events), -1, dtype=np.int32)
        for name, arguments in _ARGUMENTS.items():
            table = getattr(trace, name)
            if not len(table.row):
                continue
            columns = [getattr(table, column) for _, column, _ in arguments]
            first, group = group_rows(*columns)
            index = np.full(len(first), -1, dtype=np.int32)
            for at, place in enumerate(first[:MAX_TEXTS].tolist()):
                values = [
                    (label, form(trace, column[place])[:MAX_CHARACTERS])
                    for (label, _, form), column in zip(arguments, columns, strict=True)
                ]
                index[at] = self._index([pair for pair in values if pair[1] not in ("", "[]")])
            is_known = index[group] >= 0
            found[table.row[is_known]] = index[group][is_known]
        indices: Int32 = found[rows]
        return indices

    def all(self) -> tuple[str, ...]:
        """The lists in order of their indices, as JSON."""
        return tuple(self._index_of)

    def _index(self, pairs: list[tuple[str, str]]) -> int:
        text = json.dumps(pairs, separators=(",", ":"))
        if not pairs or (len(self._index_of) >= MAX_TEXTS and text not in self._index_of):
            return -1
        return self._index_of.setdefault(text, len(self._index_of))
