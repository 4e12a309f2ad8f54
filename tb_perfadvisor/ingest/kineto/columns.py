"""Collects decoded events into columns, a slice at a time, so that no object outlives it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.ingest.kineto.categories import Role, is_known, role_of
from tb_perfadvisor.ingest.kineto.numbers import to_floats, to_integers, to_nanoseconds
from tb_perfadvisor.ingest.kineto.schema import ABSENT, Arguments, Event

Column = NDArray[Any]
Columns = dict[str, Column]

_NO_ARGUMENTS = Arguments()


@dataclass(slots=True)
class Collected:
    """Everything the file holds, in columns; `row` columns index the columns of `events`."""

    events: Columns
    """start_ns, duration_ns, name, category, thread (index of `threads`), role."""
    operators: Columns
    runtime: Columns
    device: Columns
    collectives: Columns
    memory: Columns
    categories: list[str]
    threads: list[tuple[Any, Any]]
    """Distinct (pid, tid) as the file has them."""
    process_names: dict[Any, str]
    thread_names: dict[tuple[Any, Any], str]
    unknown_categories: dict[str, int]
    malformed: int


@dataclass(slots=True)
class Collector:
    """Turns slices of events into columns.

    Args:
        intern_all: Where names go; returns their indices.
    """

    intern_all: Callable[[list[str]], NDArray[np.int32]]
    malformed: int = 0
    _parts: dict[str, list[Columns]] = field(default_factory=dict)
    _categories: dict[str, int] = field(default_factory=dict)
    _threads: dict[tuple[Any, Any], int] = field(default_factory=dict)
    _process_names: dict[Any, str] = field(default_factory=dict)
    _thread_names: dict[tuple[Any, Any], str] = field(default_factory=dict)
    _unknown: dict[str, int] = field(default_factory=dict)
    _roles: dict[str, Role] = field(default_factory=dict)
    _count: int = 0

    def add(self, events: list[Event]) -> None:
        """Take one slice."""
        phases = [event.ph for event in events]
        if "M" in phases:
            self._add_metadata([event for event in events if event.ph == "M"])
        instants = [e for e in events if e.ph == "i" and e.name == "[memory]"]
        if instants:
            self._add_memory(instants)
        self._add_complete([event for event in events if event.ph == "X"])
        self.malformed += sum(1 for phase in phases if not isinstance(phase, str))

    def finish(self) -> Collected:
        """Everything taken, joined."""
        events = _joined(self._parts.get("events", []), _EVENT_COLUMNS)
        device = _joined(self._parts.get("device", []), _DEVICE_COLUMNS)
        if device["row"].size:
            self._place(device, events["thread"])
        return Collected(
            events=events,
            operators=_joined(self._parts.get("operators", []), _OPERATOR_COLUMNS),
            runtime=_joined(self._parts.get("runtime", []), ("row", "correlation")),
            device=device,
            collectives=_joined(self._parts.get("collectives", []), _COLLECTIVE_COLUMNS),
            memory=_joined(self._parts.get("memory", []), _MEMORY_COLUMNS),
            categories=list(self._categories),
            threads=list(self._threads),
            process_names=self._process_names,
            thread_names=self._thread_names,
            unknown_categories=self._unknown,
            malformed=self.malformed,
        )

    def _part(self, name: str, columns: Columns) -> None:
        self._parts.setdefault(name, []).append(columns)

    def _add_complete(self, events: list[Event]) -> None:
        roles = [self._role(event.cat) for event in events]
        events = [e for e, role in zip(events, roles, strict=True) if role is not Role.IGNORED]
        kept_roles = [role for role in roles if role is not Role.IGNORED]
        start, has_start = to_nanoseconds([event.ts for event in events])
        duration, has_duration = to_nanoseconds([event.dur for event in events])
        # An event that was still running when recording stopped has a negative duration or
        # none: its start stands. One without a start or a name says nothing.
        is_odd = ~has_duration | (duration < 0)
        duration[is_odd] = 0
        is_named = np.array([isinstance(event.name, str) for event in events], dtype=np.bool_)
        keep = has_start & is_named
        self.malformed += int(np.count_nonzero(is_odd | ~keep))
        if not keep.all():
            rows = np.flatnonzero(keep).tolist()
            events = [events[row] for row in rows]
            kept_roles = [kept_roles[row] for row in rows]
            start, duration = start[keep], duration[keep]
        if not events:
            return
        categories, threads = self._categories, self._threads
        first = self._count
        self._count += len(events)
        role = np.array(kept_roles, dtype=np.uint8)
        self._part(
            "events",
            {
                "start_ns": start,
                "duration_ns": duration,
                "name": self.intern_all([event.name for event in events]),
                "category": np.array(
                    [categories.setdefault(e.cat, len(categories)) for e in events], dtype=np.int32
                ),
                "thread": np.array(
                    [threads.setdefault(_thread_key(e), len(threads)) for e in events],
                    dtype=np.int32,
                ),
                "role": role,
            },
        )
        self._add_arguments(events, role, first)

    def _add_arguments(self, events: list[Event], role: Column, first: int) -> None:
        for kind, add in (
            (Role.OPERATOR, self._add_operators),
            (Role.RUNTIME, self._add_runtime),
            (Role.DEVICE, self._add_device),
        ):
            rows = np.flatnonzero(role == kind)
            if rows.size:
                arguments = [events[row].args or _NO_ARGUMENTS for row in rows.tolist()]
                add(arguments, rows + first)
                if kind is not Role.RUNTIME:
                    self._add_collectives(arguments, rows + first)

    def _add_operators(self, arguments: list[Arguments], rows: Column) -> None:
        dims = [a.input_dims if a.input_dims is not ABSENT else a.old_input_dims for a in arguments]
        self._part(
            "operators",
            {
                "row": rows,
                "external_id": to_integers([a.external_id for a in arguments]),
                "sequence": to_integers([a.sequence for a in arguments]),
                "forward_thread": to_integers([a.forward_thread for a in arguments]),
                "shapes": self._optional_texts([_shapes_text(d) for d in dims]),
                "dtypes": self._optional_texts([_types_text(a.input_type) for a in arguments]),
                "module": self._optional_texts([a.module_hierarchy for a in arguments]),
                "frame": self._optional_texts([_user_frame(a.call_stack) for a in arguments]),
            },
        )

    def _add_runtime(self, arguments: list[Arguments], rows: Column) -> None:
        correlation = to_integers([a.correlation for a in arguments])
        self._part("runtime", {"row": rows, "correlation": correlation})

    def _add_device(self, arguments: list[Arguments], rows: Column) -> None:
        columns = {
            "row": rows,
            "grid_blocks": to_integers([_product(a.grid) for a in arguments]),
            "block_threads": to_integers([_product(a.block) for a in arguments]),
            "occupancy_percent": to_floats([a.occupancy for a in arguments]),
            "bytes": to_integers([a.bytes if a.bytes is not None else a.size for a in arguments]),
            "direction": self._optional_texts([a.direction for a in arguments]),
        }
        for name in _DEVICE_INTEGERS:
            columns[name] = to_integers([getattr(a, name) for a in arguments])
        self._part("device", columns)

    def _place(self, device: Columns, thread: Column) -> None:
        """Put device events without a device or stream where their pid and tid say."""
        # Streams beyond 32 bits are marks of "none" (CUPTI's 4294967295).
        places = np.array(
            [(_small(pid, 0), _small(tid, -1)) for pid, tid in self._threads] or [(0, -1)],
            dtype=np.int64,
        )
        for name, column, largest in (("device", 0, 2**15), ("stream", 1, 2**31)):
            values = device[name]
            is_known = (values >= 0) & (values < largest)
            device[name] = np.where(is_known, values, places[thread[device["row"]], column])

    def _add_collectives(self, arguments: list[Arguments], rows: Column) -> None:
        found = [i for i, a in enumerate(arguments) if isinstance(a.collective, str)]
        if not found:
            return
        chosen = [arguments[i] for i in found]
        self._part(
            "collectives",
            {
                "row": rows[found],
                "external_id": to_integers([a.external_id for a in chosen]),
                "operation": self._optional_texts([a.collective for a in chosen]),
                "dtype": self._optional_texts([a.dtype for a in chosen]),
                "group": self._optional_texts(
                    [None if a.group is None else str(a.group) for a in chosen]
                ),
                "in_elements": to_integers([a.in_elements for a in chosen]),
                "out_elements": to_integers([a.out_elements for a in chosen]),
                "group_size": to_integers([a.group_size for a in chosen]),
                "sequence": to_integers([a.collective_sequence for a in chosen]),
            },
        )

    def _add_memory(self, events: list[Event]) -> None:
        at, is_valid = to_nanoseconds([event.ts for event in events])
        arguments = [event.args or _NO_ARGUMENTS for event in events]
        device_type = to_integers([a.device_type for a in arguments])
        device = to_integers([a.device_id for a in arguments])
        columns = {
            "at_ns": at,
            # Type 0 is the host's memory in every version; its device id means nothing.
            "device": np.where(device_type == 0, -1, np.maximum(device, -1)),
            "allocated_bytes": to_integers([a.allocated for a in arguments]),
            "reserved_bytes": to_integers([a.reserved for a in arguments]),
            "bytes": to_integers([a.change for a in arguments], missing=0),
            "address": to_integers([a.address for a in arguments]),
        }
        self.malformed += int(np.count_nonzero(~is_valid))
        self._part("memory", {name: column[is_valid] for name, column in columns.items()})

    def _add_metadata(self, events: Iterable[Event]) -> None:
        for event in events:
            label = event.args.name if event.args else None
            if not isinstance(label, str):
                continue
            pid, tid = _thread_key(event)
            if event.name == "process_name":
                self._process_names[pid] = label
            elif event.name == "thread_name":
                self._thread_names[pid, tid] = label

    def _role(self, category: Any) -> Role:
        if not isinstance(category, str):
            return Role.IGNORED
        role = self._roles.get(category)
        if role is None:
            role = self._roles[category] = role_of(category)
        if role is Role.IGNORED and not is_known(category):
            self._unknown[category] = self._unknown.get(category, 0) + 1
        return role

    def _optional_texts(self, texts: Sequence[Any]) -> NDArray[np.int32]:
        """Indices of strings; -1 for what is none."""
        present = [i for i, text in enumerate(texts) if isinstance(text, str)]
        indices = np.full(len(texts), -1, dtype=np.int32)
        if present:
            indices[present] = self.intern_all([texts[i] for i in present])
        return indices


_EVENT_COLUMNS = ("start_ns", "duration_ns", "name", "category", "thread", "role")
_OPERATOR_COLUMNS = (
    "row",
    "external_id",
    "sequence",
    "forward_thread",
    "shapes",
    "dtypes",
    "module",
    "frame",
)
_DEVICE_INTEGERS = (
    "external_id",
    "correlation",
    "device",
    "stream",
    "registers",
    "shared_memory",
)
_DEVICE_COLUMNS = (
    "row",
    "grid_blocks",
    "block_threads",
    "occupancy_percent",
    "bytes",
    "direction",
    *_DEVICE_INTEGERS,
)
_COLLECTIVE_COLUMNS = (
    "row",
    "external_id",
    "operation",
    "dtype",
    "group",
    "in_elements",
    "out_elements",
    "group_size",
    "sequence",
)
_MEMORY_COLUMNS = ("at_ns", "device", "allocated_bytes", "reserved_bytes", "bytes", "address")


def _joined(parts: list[Columns], names: Iterable[str]) -> Columns:
    if not parts:
        return {name: np.empty(0, dtype=np.int64) for name in names}
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def _thread_key(event: Event) -> tuple[Any, Any]:
    """(pid, tid), equal for `17` and `"17"`: old files mix both for the same thread."""
    pid, tid = event.pid, event.tid
    if type(pid) is not int:
        pid = _identifier(pid)
    if type(tid) is not int:
        tid = _identifier(tid)
    return pid, tid


def _identifier(value: Any) -> Any:
    if isinstance(value, str):
        text = value.strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else ""


def _small(value: Any, otherwise: int) -> int:
    """A device or stream number: `7`, or the 7 of `stream 7`."""
    if isinstance(value, str):
        digits = value.rsplit(" ", 1)[-1]
        value = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 9 else None
    is_number = isinstance(value, int) and 0 <= value < 2**15
    return int(value) if is_number else otherwise


def _shapes_text(raw: msgspec.Raw) -> str | None:
    """`[[8, 128], []]` as `[[8,128],[]]`; None when absent or not a list."""
    text = bytes(raw).translate(None, b' \t\r\n"')
    if not text.startswith(b"["):
        return None
    return text.decode("utf-8", "replace")


def _types_text(value: Any) -> str | None:
    if isinstance(value, list) and value:
        return ";".join(map(str, value))
    return value if isinstance(value, str) and value else None


def _user_frame(stack: Any) -> str | None:
    """The innermost frame of a call stack that is not of an installed package."""
    if not isinstance(stack, str) or not stack:
        return None
    frames = stack.split(";")
    outside = (f.strip() for f in frames if "site-packages" not in f and "dist-packages" not in f)
    return next(outside, frames[0].strip())


def _product(sizes: Any) -> int | None:
    if type(sizes) is not list or not sizes:
        return None
    product = 1
    for size in sizes:
        if type(size) is not int:
            return None
        product *= size
    return product
