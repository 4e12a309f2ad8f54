"""Collects what a snapshot holds into columns, whether it is a pickle or JSON.

A dictionary of the file is handed over as soon as it is complete and then forgotten, so that a
gigabyte of events never exists as Python objects.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.files.budget import Budget
from tb_perfadvisor.plain_text import printable_name
from tb_perfadvisor.trace.memory_snapshot import (
    NO_STACK,
    Action,
    AllocatorEvents,
    Annotations,
    Blocks,
    BlockState,
    Frame,
    MemorySnapshot,
    Segments,
    Stacks,
)

MAX_EVENTS: Final = 1 << 23
"""A ring of as many events takes 3 GB as a pickle."""
MAX_BYTES: Final = 1 << 39
"""No device has half a terabyte. Sums of as many events stay below 2^63."""
_MAX_ADDRESS: Final = (1 << 64) - 1
_HALF: Final = 1 << 63
_MAX_US: Final = (1 << 62) // 1_000
_MAX_STACKS: Final = 1 << 18
"""Programs have thousands. Beyond this number, further stacks are unknown."""
_MAX_FRAMES: Final = 1 << 18
_MAX_SEGMENTS: Final = 1 << 20
_MAX_ANNOTATIONS: Final = 1 << 20
_MAX_NAME: Final = 500
"""Characters of a function's or file's name that are kept."""
_MAX_DEVICES: Final = 1_024

_ACTIONS: Final = {
    "alloc": Action.ALLOCATE,
    "free_requested": Action.FREE,
    # Until PyTorch 2.0.
    "free": Action.FREE,
    "free_completed": Action.FREE_COMPLETED,
    "segment_alloc": Action.SEGMENT_ALLOCATE,
    "segment_map": Action.SEGMENT_ALLOCATE,
    "segment_free": Action.SEGMENT_FREE,
    "segment_unmap": Action.SEGMENT_FREE,
    "oom": Action.OUT_OF_MEMORY,
    "snapshot": Action.SNAPSHOT,
}
_STATES: Final = {
    "inactive": BlockState.FREE,
    "active_allocated": BlockState.ALLOCATED,
    "active_awaiting_free": BlockState.AWAITING_FREE,
    # Until PyTorch 2.1.
    "active_pending_free": BlockState.AWAITING_FREE,
}
_NEEDS_ADDRESS: Final = (Action.ALLOCATE, Action.FREE, Action.FREE_COMPLETED)


class SnapshotCollector:
    """The columns of one snapshot, as they grow."""

    def __init__(self, path: str, budget: Budget) -> None:
        self._path = path
        self._budget = budget
        self._frames: dict[tuple[str, int, str], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._names: dict[str, int] = {}
        self._action, self._state = array("B"), array("B")
        self._at, self._address, self._size, self._free = (array("q") for _ in range(4))
        self._stack, self._block_stack = array("i"), array("i")
        self._block_address, self._block_size, self._requested = (array("q") for _ in range(3))
        self._segments: list[tuple[int, int, int, int, int]] = []
        self._annotations: list[tuple[int, int, int, bool]] = []
        self.left_out = 0

    @property
    def events(self) -> int:
        """How many events were added, also those that were left out."""
        return len(self._action)

    def add_frame(self, fields: dict[Any, Any]) -> int:
        """The index of a frame, the same for equal ones."""
        key = (_name(fields.get("filename")), _line(fields.get("line")), _name(fields.get("name")))
        known = self._frames.get(key)
        if known is None:
            if len(self._frames) >= _MAX_FRAMES:
                raise self.too_large("lines of code", _MAX_FRAMES)
            known = self._frames[key] = len(self._frames)
            self._budget.keep(3, len(key[0]) + len(key[2]))
        return known

    def add_stack(self, frames: Sequence[int]) -> int:
        """The index of a stack, the same for equal ones; `NO_STACK` without frames."""
        if not frames:
            return NO_STACK
        key = tuple(frames)
        known = self._stacks.get(key)
        if known is None:
            if len(self._stacks) >= _MAX_STACKS:
                return NO_STACK
            known = self._stacks[key] = len(self._stacks)
            self._budget.keep(2, 8 * len(key))
        return known

    def add_event(self, fields: dict[Any, Any], stack: int) -> None:
        """Add an entry of a device's history, in order."""
        if len(self._action) >= MAX_EVENTS:
            raise self.too_large("events", MAX_EVENTS)
        self._budget.keep(1)
        action = _ACTIONS.get(_text(fields.get("action")), Action.OTHER)
        size = _integer(fields.get("size"), MAX_BYTES)
        address = _address(fields.get("addr"))
        if action != Action.OTHER and (size < 0 or (address < 0 and action in _NEEDS_ADDRESS)):
            self.left_out += 1
            action = Action.OTHER
        at_us = _integer(fields.get("time_us"), _MAX_US)
        self._action.append(action)
        self._size.append(max(size, 0))
        self._address.append(address)
        self._at.append(at_us * 1_000 if at_us > 0 else -1)
        self._free.append(_integer(fields.get("device_free"), MAX_BYTES))
        self._stack.append(stack)

    def add_block(self, fields: dict[Any, Any], stack: int) -> None:
        """Add a block. The segment that it is part of follows."""
        if len(self._state) >= MAX_EVENTS:
            raise self.too_large("blocks", MAX_EVENTS)
        self._budget.keep(1)
        size = _integer(fields.get("size"), MAX_BYTES)
        state = _STATES.get(_text(fields.get("state")))
        if size < 0 or state is None:
            self.left_out += 1
            size, state = 0, BlockState.FREE
        requested = _integer(fields.get("requested_size"), MAX_BYTES)
        self._state.append(state)
        self._block_size.append(size)
        # The size of a free block is that of the request that it served last.
        self._requested.append(
            requested if 0 <= requested <= size and state != BlockState.FREE else size
        )
        self._block_address.append(_address(fields.get("address")))
        self._block_stack.append(stack)

    def add_segment(self, fields: dict[Any, Any], blocks: int) -> None:
        """Add a segment with the number of its blocks, which were added before."""
        if len(self._segments) >= _MAX_SEGMENTS:
            raise self.too_large("segments", _MAX_SEGMENTS)
        expandable = fields.get("is_expandable")
        size = _integer(fields.get("total_size"), MAX_BYTES)
        if size < 0:
            self.left_out += 1
        self._segments.append(
            (
                _device(fields.get("device")),
                _address(fields.get("address")),
                max(size, 0),
                int(expandable) if isinstance(expandable, bool) else -1,
                blocks,
            )
        )

    def add_annotation(self, fields: dict[Any, Any]) -> None:
        """Add the start or the end of a named range."""
        at_us = _integer(fields.get("time_us"), _MAX_US)
        stage, name = _text(fields.get("stage")), _name(fields.get("name"))
        if at_us < 0 or stage not in ("START", "END") or len(self._annotations) >= _MAX_ANNOTATIONS:
            return
        number = self._names.setdefault(name, len(self._names))
        device = _device(fields.get("device"))
        self._annotations.append((number, device, at_us * 1_000, stage == "START"))

    def finish(self, histories: Sequence[int], expandable: bool | None) -> MemorySnapshot:
        """The snapshot.

        `histories` has the number of events of each device, and `expandable` the allocator's
        setting.
        """
        segments = np.array(self._segments, dtype=np.int64).reshape(-1, 5)
        if sum(histories) != len(self._action) or segments[:, 4].sum() != len(self._state):
            raise UnreadableProfileError(
                "events or blocks lie where a memory snapshot has none.",
                where=self._path,
                hint="Write it with torch.cuda.memory._dump_snapshot.",
            )
        if len(histories) > _MAX_DEVICES:
            raise self.too_large("devices", _MAX_DEVICES)
        row = np.repeat(np.arange(len(segments)), segments[:, 4]).astype(np.int32)
        address = _column(self._block_address, np.int64)
        size = _column(self._block_size, np.int64)
        return MemorySnapshot(
            path=self._path,
            events=AllocatorEvents(
                action=_column(self._action, np.uint8),
                device=_frozen(np.repeat(np.arange(len(histories)), histories).astype(np.int32)),
                at_ns=_column(self._at, np.int64),
                address=_column(self._address, np.int64),
                size_bytes=_column(self._size, np.int64),
                stack=_column(self._stack, np.int32),
                driver_free_bytes=_column(self._free, np.int64),
            ),
            segments=Segments(
                device=_frozen(segments[:, 0].astype(np.int32)),
                address=_frozen(segments[:, 1].copy()),
                size_bytes=_frozen(segments[:, 2].copy()),
                is_expandable=_frozen(segments[:, 3].astype(np.int8)),
            ),
            blocks=Blocks(
                segment=_frozen(row),
                address=_frozen(_filled(address, size, row, segments[:, 1])),
                size_bytes=size,
                requested_bytes=_column(self._requested, np.int64),
                state=_column(self._state, np.uint8),
                stack=_column(self._block_stack, np.int32),
            ),
            stacks=self._all_stacks(),
            annotations=self._all_annotations(),
            expandable_segments=expandable,
            left_out=self.left_out,
        )

    def too_large(self, what: str, limit: int) -> UnreadableProfileError:
        """The error for a snapshot beyond a limit."""
        return UnreadableProfileError(
            f"this memory snapshot has more than {limit:,} {what}.",
            where=self._path,
            hint="Record fewer: torch.cuda.memory._record_memory_history(max_entries=1_000_000).",
        )

    def _all_stacks(self) -> Stacks:
        lengths = np.fromiter(map(len, self._stacks), dtype=np.int64, count=len(self._stacks))
        flat = array("i")
        for stack in self._stacks:
            flat.extend(stack)
        return Stacks(
            frames=tuple(Frame(*key) for key in self._frames),
            frame=_column(flat, np.int32),
            offsets=_frozen(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)),
        )

    def _all_annotations(self) -> Annotations:
        """Ranges: each end closes the latest open start of its name and device."""
        opened: dict[tuple[int, int], list[int]] = {}
        ranges: list[list[int]] = []
        for name, device, at_ns, is_start in sorted(self._annotations, key=lambda entry: entry[2]):
            starts = opened.setdefault((name, device), [])
            if is_start:
                starts.append(len(ranges))
                ranges.append([name, device, at_ns, -1])
            elif starts:
                ranges[starts.pop()][3] = at_ns
        table = np.array(ranges, dtype=np.int64).reshape(-1, 4)
        return Annotations(
            names=tuple(self._names),
            name=_frozen(table[:, 0].astype(np.int32)),
            device=_frozen(table[:, 1].astype(np.int32)),
            start_ns=_frozen(table[:, 2].copy()),
            end_ns=_frozen(table[:, 3].copy()),
        )


def _column(values: array[Any], dtype: type[np.generic]) -> Any:
    return _frozen(np.frombuffer(values, dtype=dtype) if values else np.empty(0, dtype))


def _frozen(column: Any) -> Any:
    column.setflags(write=False)
    return column


def _filled(address: Any, size: Any, segment: Any, segment_address: Any) -> Any:
    """Addresses of blocks. Until PyTorch 2.1, they follow from the order within the segment."""
    if not len(address) or (address >= 0).all():
        return address
    ends = np.cumsum(size)
    starts = ends - size
    first = np.searchsorted(segment, np.arange(len(segment_address)))
    first = np.minimum(first, len(starts) - 1)
    derived = segment_address[segment] + starts - starts[first][segment]
    return np.where(address >= 0, address, np.where(segment_address[segment] >= 0, derived, -1))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _name(value: Any) -> str:
    return printable_name(value[:_MAX_NAME]) if isinstance(value, str) else ""


def _integer(value: Any, limit: int) -> int:
    """A number that is not negative; -1 for anything else."""
    return value if type(value) is int and 0 <= value <= limit else -1


def _address(value: Any) -> int:
    """An address without its highest bit, which all of Intel's GPUs have set; -1 if unknown."""
    address = _integer(value, _MAX_ADDRESS)
    return address - _HALF if address >= _HALF else address


def _line(value: Any) -> int:
    return max(_integer(value, 1 << 31), 0)


def _device(value: Any) -> int:
    return _integer(value, _MAX_DEVICES - 1)
