"""The columns of a Kineto trace.

Each map is a dictionary that adds missing values, so that a known value costs one lookup per event.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import compress
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.ingest.json_trace.document import ABSENT, decoded
from tb_perfadvisor.ingest.json_trace.numbers import (
    Threads,
    thread_key,
    to_floats,
    to_integers,
    to_nanoseconds,
)
from tb_perfadvisor.ingest.kineto.decode.event_roles import (
    COUNTERS,
    LEGACY_PROCESSES,
    OpenEvents,
    Role,
    is_known,
    role_of,
)
from tb_perfadvisor.ingest.kineto.decode.schema import Arguments, Event
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace.assembler import Interned
from tb_perfadvisor.trace.names import is_generated


def indices(lookup: dict[Any, int], values: list[Any]) -> NDArray[np.int32]:
    """The index of each value; shape (n,). Lists and objects count as missing."""
    if values and values[0] is None and values.count(None) == len(values):  # of most files
        return np.full(len(values), lookup[None], dtype=np.int32)
    try:
        return np.fromiter(map(lookup.__getitem__, values), np.int32, len(values))
    except TypeError:
        hashable = (None if isinstance(v, list | dict) else v for v in values)
        return np.fromiter(map(lookup.__getitem__, hashable), np.int32, len(values))


def raw_indices(lookup: Texts | Products, values: list[msgspec.Raw]) -> NDArray[Any]:
    """The index or product of each undecoded JSON value; shape (n,)."""
    dtype = np.int64 if isinstance(lookup, Products) else np.int32
    if values and values[0] is ABSENT and values.count(ABSENT) == len(values):
        return np.full(len(values), lookup[b""], dtype=dtype)
    # JSON holds no such byte. To make all texts at once takes half the time of one by one.
    texts = b"\0".join(values).split(b"\0")
    return np.fromiter(map(lookup.__getitem__, texts), dtype, len(values))


class Texts(dict[Any, int]):
    """Maps values to the indices of their texts; -1 for values without a text.

    `intern` stores a text and returns its index. `text_of` returns the text of a value; by default,
    strings are their own texts.
    """

    def __init__(
        self, intern: Callable[[str], int], text_of: Callable[[Any], str | None] | None = None
    ) -> None:
        super().__init__()
        self._intern = intern
        self._text_of = text_of or _string

    def __missing__(self, value: Any) -> int:
        """Intern the text of a new value."""
        text = self._text_of(value)
        index = self[value] = -1 if text is None else self._intern(text)
        return index


class Products(dict[bytes, int]):
    """Maps undecoded JSON lists of sizes to their products; -1 for other values."""

    def __missing__(self, raw: bytes) -> int:
        """Multiply the sizes of a new list."""
        product = self[raw] = int(to_integers([_product(decoded(raw))])[0])
        return product


class Categories(Interned):
    """Maps categories to indices, and indices to roles."""

    def __init__(self) -> None:
        super().__init__()
        self.roles: NDArray[np.uint8] = np.empty(0, dtype=np.uint8)
        """`Role` of each category; shape (categories,)."""

    def __missing__(self, category: Any) -> int:
        """Add a category with its role; values other than strings are ignored."""
        role = role_of(category) if isinstance(category, str) else Role.IGNORED
        self.roles = np.append(self.roles, np.uint8(role))
        return super().__missing__(category)


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _product(sizes: Any) -> int | None:
    if type(sizes) is not list or not sizes:
        return None
    product = 1
    for size in sizes:
        if type(size) is not int:
            return None
        product *= size
    return product


Column = NDArray[Any]
Columns = dict[str, Column]

_NO_ARGUMENTS = Arguments()


class KinetoColumns(Struct):
    """All columns of a file; `row` columns are indices into the columns of `events`."""

    events: Columns
    """start_ns, duration_ns, name, category, thread (index of `threads`), role."""
    operators: Columns
    runtime: Columns
    device: Columns
    collectives: Columns
    memory: Columns
    counters: Columns
    frames: Columns
    """Calls of Python functions: row, and the file's numbers of the frame and of its caller."""
    categories: list[str]
    threads: list[tuple[Any, Any]]
    """The distinct pairs (pid, tid)."""
    process_names: dict[Any, str]
    thread_names: dict[tuple[Any, Any], str]
    unknown_categories: dict[str, int]
    is_foreign: bool
    """Whether the file has events, but none in a category that Kineto writes."""
    malformed: int


class Portion(Struct):
    """The columns of some events, whose texts, categories and threads are numbered by themselves.

    Lists and dictionaries are in order of appearance.
    """

    count: int
    malformed: int
    columns: dict[str, Columns]
    texts: list[str]
    categories: list[Any]
    threads: list[tuple[Any, Any]]
    process_names: dict[Any, str]
    thread_names: dict[tuple[Any, Any], str]
    ignored: dict[int, int]
    """How many events of each category are left out."""


class KinetoCollector:
    """Turns slices of events into columns.

    `intern` stores a text and returns its index.
    """

    def __init__(self, intern: Callable[[str], int]) -> None:
        self._intern = intern
        self.count = 0
        """Number of events so far."""
        self.malformed = 0
        self._parts: dict[str, list[Columns]] = {}
        self._process_names: dict[Any, str] = {}
        self._thread_names: dict[tuple[Any, Any], str] = {}
        self._categories = Categories()
        self._ignored: Counter[int] = Counter()
        self._threads = Threads()
        self._open_events = OpenEvents()
        self.is_portion = True
        """Whether the events so far mean the same without those before them."""
        self._texts = Texts(intern)
        self._shapes = Texts(intern, _shapes_text)
        self._types = Texts(intern, _types_text)
        self._values = Texts(intern, _values_text)
        self._frames = Texts(intern, _user_frame)
        self._products = Products()

    def add(self, events: list[Event]) -> int:
        """Add a slice of events; returns how many. Keeps none, so that the next ones fit there."""
        complete = [event for event in events if event.ph == "X"]
        others = [event for event in events if event.ph != "X"]
        phases = [event.ph for event in others if type(event.ph) is str]
        self.malformed += len(others) - len(phases)
        kinds = set(phases)
        if "M" in kinds:
            self._add_metadata([event for event in others if event.ph == "M"])
        if "i" in kinds:
            self._add_memory([e for e in others if e.ph == "i" and e.name == "[memory]"])
        if "C" in kinds:
            self._add_counters([e for e in others if e.ph == "C" and e.cat in COUNTERS])
        if "B" in kinds or "E" in kinds:
            self.is_portion = False
            complete += self._open_events.join(others)
        self._add_complete(complete)
        return len(events)

    def portion(self, texts: list[str]) -> Portion:
        """What was added so far, with the texts that were stored."""
        return Portion(
            count=self.count,
            malformed=self.malformed,
            columns={part: _joined(all_of) for part, all_of in self._parts.items()},
            texts=texts,
            categories=list(self._categories),
            threads=list(self._threads.keys_in_order),
            process_names=self._process_names,
            thread_names=self._thread_names,
            ignored=dict(self._ignored),
        )

    def add_portion(self, portion: Portion) -> None:
        """Add what another collector made of the next events."""
        categories = _numbers(map(self._categories.__getitem__, portion.categories))
        numbers = {
            "text": _numbers(map(self._intern, portion.texts)),
            "category": categories,
            "thread": _numbers(map(self._threads.keys_in_order.__getitem__, portion.threads)),
        }
        for part, columns in portion.columns.items():
            for name, column in columns.items():
                if name == "row":
                    column += self.count
                elif kind := _NUMBERED.get((part, name)):
                    column[:] = numbers[kind][column]
            self._part(part, columns)
        for category, count in portion.ignored.items():
            self._ignored[int(categories[category])] += count
        self._process_names.update(portion.process_names)
        self._thread_names.update(portion.thread_names)
        self.malformed += portion.malformed
        self.count += portion.count

    def finish(self) -> KinetoColumns:
        """Join all slices."""
        self._add_complete(self._open_events.unfinished())
        self.malformed += self._open_events.malformed
        parts = self._parts
        events = _joined(parts.pop("events", []))
        device = _joined(parts.pop("device", []))
        threads = list(self._threads.keys_in_order)
        if device["row"].size:
            _fill_placement(device, events["thread"], threads)
        categories = [
            category if isinstance(category, str) else "" for category in self._categories
        ]
        return KinetoColumns(
            events=events,
            operators=_joined(parts.pop("operators", [])),
            runtime=_joined(parts.pop("runtime", [])),
            device=device,
            collectives=_joined(parts.pop("collectives", [])),
            memory=_joined(parts.pop("memory", [])),
            counters=_joined(parts.pop("counters", [])),
            frames=_joined(parts.pop("frames", [])),
            categories=categories,
            threads=threads,
            process_names=self._process_names,
            thread_names=self._thread_names,
            unknown_categories={
                categories[index]: count
                for index, count in self._ignored.items()
                if categories[index] and not is_known(categories[index])
            },
            is_foreign=bool(categories)
            and not any(category and is_known(category) for category in categories),
            malformed=self.malformed,
        )

    def _part(self, name: str, columns: Columns) -> None:
        self._parts.setdefault(name, []).append(columns)

    def _add_complete(self, events: list[Event]) -> None:
        names = [event.cat for event in events]
        if None in names:
            names = [
                LEGACY_PROCESSES.get(event.pid)
                if event.cat is None and type(event.pid) is str
                else event.cat
                for event in events
            ]
        category = indices(self._categories, names)
        role = self._categories.roles[category]
        is_kept = role != Role.IGNORED
        if not is_kept.all():
            self._ignored.update(category[~is_kept].tolist())
            # PyTorch's exporter in Python writes them like events that last.
            ignored = compress(events, (~is_kept).tolist())
            self._add_memory([event for event in ignored if event.name == "[memory]"])
            events = list(compress(events, is_kept.tolist()))
            category, role = category[is_kept], role[is_kept]
        start, has_start = to_nanoseconds([event.ts for event in events])
        duration, has_duration = to_nanoseconds([event.dur for event in events])
        # Events that were running when recording stopped have no duration or a negative one:
        # keep their start. Drop events without a start or a name.
        is_odd = ~has_duration | (duration < 0)
        duration[is_odd] = 0
        name = indices(self._texts, [event.name for event in events])
        keep = has_start & (name >= 0)
        self.malformed += int(np.count_nonzero(is_odd | ~keep))
        if not keep.all():
            events = list(compress(events, keep.tolist()))
            start, duration, name = start[keep], duration[keep], name[keep]
            category, role = category[keep], role[keep]
        if not events:
            return
        self._part(
            "events",
            {
                "start_ns": start,
                "duration_ns": duration,
                "name": name,
                "category": category,
                "thread": self._threads.indices(events),
                "role": role,
            },
        )
        self._add_arguments(events, role, self.count)
        self.count += len(events)

    def _add_arguments(self, events: list[Event], role: Column, first: int) -> None:
        for kind, add in (
            (Role.OPERATOR, self._add_operators),
            (Role.RUNTIME, self._add_runtime),
            (Role.DEVICE, self._add_device),
            (Role.PYTHON, self._add_frames),
        ):
            rows = np.flatnonzero(role == kind)
            if rows.size:
                arguments = [events[row].args or _NO_ARGUMENTS for row in rows.tolist()]
                add(arguments, rows + first)
                if kind in (Role.OPERATOR, Role.DEVICE):
                    self._add_collectives(arguments, rows + first)

    def _add_operators(self, arguments: list[Arguments], rows: Column) -> None:
        dims = [a.input_dims if a.input_dims is not ABSENT else a.old_input_dims for a in arguments]
        self._part(
            "operators",
            {
                "row": rows,
                "sequence": to_integers([a.sequence for a in arguments]),
                "forward_thread": to_integers([a.forward_thread for a in arguments]),
                "shapes": raw_indices(self._shapes, dims),
                "dtypes": raw_indices(self._types, [a.input_type for a in arguments]),
                "values": raw_indices(self._values, [a.input_values for a in arguments]),
                "module": indices(self._texts, [a.module_hierarchy for a in arguments]),
                "frame": indices(self._frames, [a.call_stack for a in arguments]),
            },
        )

    def _add_runtime(self, arguments: list[Arguments], rows: Column) -> None:
        correlation = to_integers([a.correlation for a in arguments])
        kernel = indices(self._texts, [a.kernel for a in arguments])
        self._part("runtime", {"row": rows, "correlation": correlation, "kernel": kernel})

    def _add_frames(self, arguments: list[Arguments], rows: Column) -> None:
        frame = to_integers([a.python_id for a in arguments])
        caller = to_integers([a.python_parent for a in arguments])
        self._part("frames", {"row": rows, "frame": frame, "caller": caller})

    def _add_device(self, arguments: list[Arguments], rows: Column) -> None:
        columns = {
            "row": rows,
            "grid_blocks": raw_indices(self._products, [a.grid for a in arguments]),
            "block_threads": raw_indices(self._products, [a.block for a in arguments]),
            "occupancy_percent": to_floats([a.occupancy for a in arguments]),
            "warps_per_multiprocessor": to_floats([a.warps_per_multiprocessor for a in arguments]),
            "bytes": to_integers([a.bytes if a.bytes is not None else a.size for a in arguments]),
            "direction": indices(self._texts, [a.direction for a in arguments]),
            "annotation": indices(self._texts, [a.name for a in arguments]),
            "external_id": to_integers([a.external_id for a in arguments]),
            "correlation": to_integers([a.correlation for a in arguments]),
            "device": to_integers([a.device for a in arguments]),
            "stream": to_integers([a.stream for a in arguments]),
            "registers": to_integers([a.registers for a in arguments]),
            "shared_memory": to_integers([a.shared_memory for a in arguments]),
        }
        self._part("device", columns)

    def _add_collectives(self, arguments: list[Arguments], rows: Column) -> None:
        names = [a.collective for a in arguments]
        if names.count(None) == len(names):
            return
        found = [i for i, name in enumerate(names) if isinstance(name, str)]
        if not found:
            return
        chosen = [arguments[i] for i in found]
        self._part(
            "collectives",
            {
                "row": rows[found],
                "external_id": to_integers([a.external_id for a in chosen]),
                "operation": indices(self._texts, [a.collective for a in chosen]),
                "dtype": indices(self._texts, [a.dtype for a in chosen]),
                "group": indices(
                    self._texts, [None if a.group is None else str(a.group) for a in chosen]
                ),
                "description": indices(self._texts, [a.description for a in chosen]),
                "ranks": indices(self._texts, [a.ranks for a in chosen]),
                "in_elements": to_integers([a.in_elements for a in chosen]),
                "out_elements": to_integers([a.out_elements for a in chosen]),
                "group_size": to_integers([a.group_size for a in chosen]),
                "sequence": to_integers([a.collective_sequence for a in chosen]),
            },
        )

    def _add_memory(self, events: list[Event]) -> None:
        if not events:
            return
        at, is_valid = to_nanoseconds([event.ts for event in events])
        arguments = [event.args or _NO_ARGUMENTS for event in events]
        device_type = to_integers([a.device_type for a in arguments])
        device = to_integers([a.device_id for a in arguments])
        columns = {
            "at_ns": at,
            # Type 0 is host memory in all versions; its device id has no meaning.
            "device": np.where(device_type == 0, -1, np.maximum(device, -1)),
            "allocated_bytes": to_integers([a.allocated for a in arguments]),
            "reserved_bytes": to_integers([a.reserved for a in arguments]),
            "bytes": to_integers([a.change for a in arguments], missing=0),
            "address": to_integers([a.address for a in arguments]),
            "thread": self._threads.indices(events),
        }
        self.malformed += int(np.count_nonzero(~is_valid))
        self._part("memory", {name: column[is_valid] for name, column in columns.items()})

    def _add_counters(self, events: list[Event]) -> None:
        if not events:
            return
        at, is_valid = to_nanoseconds([event.ts for event in events])
        devices: list[re.Match[str] | None] = [
            _COUNTERS_OF.fullmatch(e.pid) if isinstance(e.pid, str) else None for e in events
        ]
        columns: Columns = {
            "at_ns": at,
            "device": np.array([int(each[1]) if each else -1 for each in devices], np.int64),
            "metric": indices(self._texts, [event.name for event in events]),
            "value": to_floats([(event.args or _NO_ARGUMENTS).counter for event in events]),
        }
        is_valid &= (columns["device"] >= 0) & (columns["metric"] >= 0)
        is_valid &= np.isfinite(columns["value"])
        self.malformed += int(np.count_nonzero(~is_valid))
        self._part("counters", {name: column[is_valid] for name, column in columns.items()})

    def _add_metadata(self, events: Iterable[Event]) -> None:
        for event in events:
            label = event.args.name if event.args else None
            if not isinstance(label, str):
                continue
            pid, tid = thread_key(event.pid, event.tid)
            if event.name == "process_name":
                self._process_names[pid] = label
            elif event.name == "thread_name":
                self._thread_names[pid, tid] = label


_COUNTERS_OF = regex(r"GPU (\d{1,6}) Counters")
"""The process that Kineto states for the counters of a device."""

_NUMBERED = {
    ("events", "name"): "text",
    ("events", "category"): "category",
    ("events", "thread"): "thread",
    **{("operators", name): "text" for name in ("shapes", "dtypes", "values", "module", "frame")},
    ("runtime", "kernel"): "text",
    ("device", "direction"): "text",
    ("device", "annotation"): "text",
    **{
        ("collectives", name): "text"
        for name in ("operation", "dtype", "group", "description", "ranks")
    },
    ("memory", "thread"): "thread",
    ("counters", "metric"): "text",
}
"""The columns that hold numbers of texts, categories and threads."""


def _numbers(numbers: Iterable[int]) -> Column:
    """The number of each item, and -1 for the item -1, which is none."""
    return np.array([*numbers, -1], dtype=np.int64)


def _joined(parts: list[Columns]) -> Columns:
    """The columns of all parts. Empties the parts, to free memory while joining.

    Without parts, each column is empty, whatever its name.
    """
    if not parts:
        return defaultdict(lambda: np.empty(0, dtype=np.int64))
    return {name: np.concatenate([part.pop(name) for part in parts]) for name in [*parts[0]]}


def _fill_placement(device: Columns, thread: Column, threads: list[tuple[Any, Any]]) -> None:
    """Take missing devices and streams of device events from their pid and tid."""
    # Streams beyond 31 bits mean "none" (CUPTI's 4294967295).
    by_thread = np.array(
        [(_small(pid, 0), _small(tid, -1)) for pid, tid in threads] or [(0, -1)], dtype=np.int64
    )
    for name, column, largest in (("device", 0, 2**15), ("stream", 1, 2**31)):
        values = device[name]
        is_known = (values >= 0) & (values < largest)
        device[name] = np.where(is_known, values, by_thread[thread[device["row"]], column])


def _small(value: Any, default: int) -> int:
    """A device or stream number: `7`, or the 7 of `stream 7`."""
    if isinstance(value, str):
        digits = value.rsplit(" ", 1)[-1]
        value = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 9 else None
    is_number = isinstance(value, int) and 0 <= value < 2**15
    return int(value) if is_number else default


def _shapes_text(raw: bytes) -> str | None:
    """`[[8, 128], []]` as `[[8,128],[]]`; None if absent or not a list."""
    text = raw.translate(None, b' \t\r\n"')
    return text.decode("utf-8", "replace") if text.startswith(b"[") else None


def _types_text(raw: bytes) -> str | None:
    """`["float", "int"]` as `float;int`; None if absent or empty."""
    value = decoded(raw)
    if isinstance(value, list) and value:
        return ";".join(map(str, value))
    return value if isinstance(value, str) and value else None


def _values_text(raw: bytes) -> str | None:
    """`["", "[2, 2]"]` unchanged; None if absent or not a list."""
    return raw.decode("utf-8", "replace") if raw.startswith(b"[") else None


def _user_frame(stack: Any) -> str | None:
    """The innermost frame of a call stack outside installed packages and generated code."""
    if not isinstance(stack, str) or not stack:
        return None
    frames = [frame.strip() for frame in stack.split(";")]
    written = [frame for frame in frames if not is_generated(frame)]
    outside = (f for f in written if "site-packages" not in f and "dist-packages" not in f)
    return next(outside, written[0] if written else None)
