"""Collects decoded events into columns, slice by slice, to free the objects early."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.ingest.json_trace.numbers import Threads, thread_key, to_floats, to_integers
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace.assembler import Interned

# Fields are `Any`, because exporters write every argument as text, and damaged files may contain
# any type. The arguments have the names of the xplane's stats.

TEXTS: Final = frozenset(
    {
        *("eager_op", "tf_function_call", "hlo_op", "hlo_module", "shape", "allocator_name"),
        *("kernel_details", "memcpy_details", "memset_details"),
        *("autotune", "shapes", "types"),
    }
)
FLOATS: Final = frozenset({"occupancy_pct"})
INTEGERS: Final = frozenset(
    {
        *("correlation_id", "step_num", "group_id", "_pt", "_p", "_ct", "_c", "is_func"),
        *("program_id", "index_on_host", "bytes_allocated", "bytes_reserved"),
        *("bytes_available", "allocation_bytes", "addr"),
        *("device_offset_ps", "device_duration_ps", "run_id", "device_ordinal"),
        *("id", "parent_id", "parallelism", "batch_size", "buffer_limit", "buffer_size"),
        *("buffered_elements", "buffered_bytes_MB", "cpu_budget", "threadpool_size"),
        "ram_budget_megabytes",
    }
)
"""Together with the above, all stats of events that the xplane reader uses, but for the `name` of
an iterator's dataset: other events have arguments of that name."""

KIND_TEXTS: Final = ("hlo_category", "tf_op", "source", "shape_with_layout")
KIND_INTEGERS: Final = ("flops", "bytes_accessed")
"""With the above, the attributes of XLA operations, which an xplane has once per operation."""

# Names in metadata events and in nodes of TensorFlow 1, the complete name of events (in its new and
# old spelling), and the old label of kernels and copies.
_OTHERS: Final = ("name", "sort_index", "long_name", "old_long_name", "label")

Arguments: Any = msgspec.defstruct(
    "Arguments",
    [
        (name, Any, None)
        for name in sorted({*TEXTS, *FLOATS, *INTEGERS, *KIND_TEXTS, *KIND_INTEGERS, *_OTHERS})
    ],
    rename={"old_long_name": "long name"},
    gc=False,
    module=__name__,
)
"""`args` of an event."""


class ChromeEvent(msgspec.Struct, gc=False):
    """One entry of `traceEvents`."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Arguments | None = None


_NO_ARGUMENTS: Final = Arguments()
_MOST_EVENTS: Final = 1_000_000
# In microseconds since 1970, reached in 2043: the xplane reader treats later times as damage.
_MOST_START_US: Final = 2**61 / 1000
# Exporters write zero durations as one picosecond, so that viewers show the event.
_SHORTEST_US: Final = 1e-6
# TensorFlow 2.0 and 2.1: `void gemm(...) regs:32 shm:0 grid:4,1,1 block:256,1,1`, and for copies
# `edge_7 bytes:4096 aync`.
_LAUNCH_LABEL: Final = regex(r"(.+) (regs:\d+ .*)$", re.DOTALL)
_COPY_LABEL: Final = regex(r"(?:.* )?(bytes:\d+)\b")
_STATS: Final = {name: attrgetter(name) for name in sorted(TEXTS | FLOATS | INTEGERS)}


class StatColumn(Struct, frozen=True):
    """One stat of the events that have it; shape (m,) each, sorted by row."""

    row: NDArray[np.int64]
    value: NDArray[Any]
    """int64 (for texts, the index), or float64."""


class Kind(Struct, frozen=True):
    """The name of events, and the attributes of the XLA operation that they execute."""

    name: str
    long_name: str
    """Empty if the name is complete."""
    facts: dict[str, str | int]


class ExportColumns(Struct, frozen=True):
    """All events of the file, in columns of shape (n,)."""

    start_us: NDArray[np.float64]
    duration_us: NDArray[np.float64]
    kind: NDArray[np.int32]
    """Index of `kinds`."""
    thread: NDArray[np.int32]
    """Index of `threads`."""
    stats: dict[str, StatColumn]
    kinds: list[Kind]
    threads: list[tuple[Any, Any]]
    """(process, thread) as the file numbers them."""
    texts: list[str]
    process_names: dict[Any, str]
    thread_names: dict[tuple[Any, Any], str]
    thread_order: dict[tuple[Any, Any], int]
    malformed: int

    @property
    def is_capped(self) -> bool:
        """Whether the exporter reached its limit of events.

        It keeps the earliest ones (`TraceContainer::CapEvents` in tsl/profiler/convert).
        """
        return self.start_us.size == _MOST_EVENTS

    def select(self, keep: NDArray[np.bool_]) -> ExportColumns:
        """The events that a mask of shape (n,) selects."""
        new_row = np.cumsum(keep) - 1
        return replace(
            self,
            start_us=self.start_us[keep],
            duration_us=self.duration_us[keep],
            kind=self.kind[keep],
            thread=self.thread[keep],
            stats={
                name: StatColumn(new_row[column.row[kept]], column.value[kept])
                for name, column in self.stats.items()
                if (kept := keep[column.row]).any()
            },
        )


class ExportCollector:
    """Turns slices of events into columns.

    Attributes:
        malformed: Number of events that were repaired or left out so far.
    """

    def __init__(self) -> None:
        self.malformed = 0
        self._count = 0
        self._parts: dict[str, list[NDArray[Any]]] = {
            "start_us": [np.empty(0, dtype=np.float64)],
            "duration_us": [np.empty(0, dtype=np.float64)],
            "kind": [np.empty(0, dtype=np.int32)],
            "thread": [np.empty(0, dtype=np.int32)],
        }
        self._stats: dict[str, list[StatColumn]] = {}
        self._kinds = Interned()
        self._facts: list[dict[str, str | int]] = []
        self._threads = Threads()
        self._texts = Interned()
        self._process_names: dict[Any, str] = {}
        self._thread_names: dict[tuple[Any, Any], str] = {}
        self._thread_order: dict[tuple[Any, Any], int] = {}

    def add(self, events: list[ChromeEvent]) -> None:
        """Add a slice of events."""
        self._add_names(event for event in events if event.ph == "M")
        # XProf's trace viewer saves events without a duration as instants.
        spans = [event for event in events if event.ph in ("X", "i")]
        start = to_floats([event.ts for event in spans])
        duration = to_floats([event.dur for event in spans])
        is_named = [isinstance(event.name, str) for event in spans]
        is_instant = np.array([event.ph == "i" for event in spans], dtype=np.bool_)
        # Events that were running when recording stopped have no duration: keep their start.
        is_odd = ~((np.isfinite(duration) & (duration >= 0)) | is_instant)
        duration[is_odd | is_instant | (duration == _SHORTEST_US)] = 0
        keep = np.array(is_named, dtype=np.bool_)
        keep &= np.abs(start) < _MOST_START_US  # false for NaN
        self.malformed += int(np.count_nonzero(is_odd | ~keep))
        if not keep.all():
            spans = list(compress(spans, keep.tolist()))
            start, duration = start[keep], duration[keep]
        if spans:
            self._add_spans(spans, start, duration)

    def finish(self) -> ExportColumns:
        """Join all slices."""
        return ExportColumns(
            **{name: np.concatenate(parts) for name, parts in self._parts.items()},
            stats={
                name: StatColumn(
                    np.concatenate([part.row for part in parts]),
                    np.concatenate([part.value for part in parts]),
                )
                for name, parts in self._stats.items()
            },
            kinds=[
                Kind(name, long_name, facts)
                for (name, long_name), facts in zip(self._kinds, self._facts, strict=True)
            ],
            threads=list(self._threads.keys_in_order),
            texts=list(self._texts),
            process_names=self._process_names,
            thread_names=self._thread_names,
            thread_order=self._thread_order,
            malformed=self.malformed,
        )

    def _add_names(self, events: Iterable[ChromeEvent]) -> None:
        for event in events:
            arguments = event.args or _NO_ARGUMENTS
            key = thread_key(event.pid, event.tid)
            if event.name == "thread_sort_index":
                (order,) = to_integers([arguments.sort_index]).tolist()
                self._thread_order[key] = order
            elif event.name == "process_name" and isinstance(arguments.name, str):
                self._process_names[key[0]] = arguments.name
            elif event.name == "thread_name" and isinstance(arguments.name, str):
                self._thread_names[key] = arguments.name

    def _add_spans(
        self,
        events: list[ChromeEvent],
        start: NDArray[np.float64],
        duration: NDArray[np.float64],
    ) -> None:
        arguments = [event.args or _NO_ARGUMENTS for event in events]
        for event_arguments in arguments:
            if event_arguments.label is not None:
                _read_label(event_arguments)
        kinds, known = self._kinds, len(self._kinds)
        kind = np.array(
            [kinds[event.name, _long_name(event) if event.args else ""] for event in events],
            dtype=np.int32,
        )
        if len(kinds) > known:
            unique, first = np.unique(kind, return_index=True)
            self._facts += [_facts(arguments[row]) for row in first[unique >= known].tolist()]
        for name, column in (
            ("start_us", start),
            ("duration_us", duration),
            ("kind", kind),
            ("thread", self._threads.indices(events)),
        ):
            self._parts[name].append(column)
        # Most events have no arguments of use.
        having = [row for row, args in enumerate(arguments) if args is not _NO_ARGUMENTS]
        if having:
            rows = np.array(having, dtype=np.int64) + self._count
            self._add_stats([arguments[row] for row in having], rows)
        self._count += len(events)

    def _add_stats(self, arguments: list[Any], rows: NDArray[np.int64]) -> None:
        for name, values_of in _STATS.items():
            values = list(map(values_of, arguments))
            having = rows
            if None in values:
                places = [place for place, value in enumerate(values) if value is not None]
                if not places:
                    continue
                values, having = [values[place] for place in places], rows[places]
            value, is_given = self._converted(name, values)
            if is_given.any():
                part = StatColumn(having[is_given], value[is_given])
                self._stats.setdefault(name, []).append(part)

    def _converted(
        self, name: str, values: Sequence[Any]
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The values of a stat, and a mask of the valid ones; shape (n,) each."""
        if name in FLOATS:
            floats = to_floats(values)
            return floats, np.isfinite(floats)
        if name in INTEGERS:
            # As in an xplane, -1 means missing.
            integers = to_integers(values, missing=-1)
            return integers, integers != -1
        texts = self._texts
        indices = np.array(
            [texts[value] if isinstance(value, str) else -1 for value in values], dtype=np.int64
        )
        return indices, indices >= 0


def _read_label(arguments: Any) -> None:
    """Convert the label of a kernel or copy to the arguments of newer versions."""
    label = arguments.label
    if not isinstance(label, str):
        return
    if launch := _LAUNCH_LABEL.match(label):
        arguments.old_long_name = f"{arguments.old_long_name or ''}@@{launch[1]}"
        arguments.kernel_details = launch[2]
    elif copy := _COPY_LABEL.match(label):
        arguments.memcpy_details = copy[1]


def _long_name(event: ChromeEvent) -> str:
    arguments: Any = event.args
    for name in (arguments.long_name, arguments.old_long_name):
        if isinstance(name, str):
            return name
    if event.cat == "Op" and isinstance(arguments.name, str):
        # In TensorFlow 1 the event is named after the type of the node.
        return f"{arguments.name}:{event.name}"
    return ""


def _facts(arguments: Any) -> dict[str, str | int]:
    """The attributes of an XLA operation; empty for other events."""
    if arguments.hlo_category is None:
        return {}
    facts: dict[str, str | int] = {}
    for name in KIND_TEXTS:
        if isinstance(value := getattr(arguments, name), str):
            facts[name] = value
    for name in KIND_INTEGERS:
        (number,) = to_integers([getattr(arguments, name)]).tolist()
        if number >= 0:
            facts[name] = number
    return facts
