"""Memory snapshots that are large in one dimension."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from scaled_inputs.dimension import Write

_STATES = ("inactive", "active_allocated")
_BLOCK = 512


def _snapshot(events: list[dict[str, Any]], blocks: list[dict[str, Any]], folder: Path) -> None:
    size = _BLOCK * len(blocks)
    segment = {"device": 0, "address": 0, "total_size": size, "segment_type": "large"}
    segments = [{**segment, "blocks": blocks}] if blocks else []
    with (folder / "memory.pickle").open("wb") as file:
        pickle.dump({"segments": segments, "device_traces": [events]}, file, 4)


def _event(at: int, action: str, block: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    place = {"addr": _BLOCK * block, "size": _BLOCK, "stream": 0, "time_us": 10**15 + at}
    return {"action": action, **place, "frames": list(frames)}


def _frame(line: int) -> dict[str, Any]:
    return {"filename": "/a/b.py", "line": line, "name": "f"}


def snapshot_events(count: int, folder: Path) -> None:
    """Allocations and frees with the same call stack of thirty frames, in groups of ten."""
    frames = [_frame(line) for line in range(30)]
    actions = ("alloc", "free_requested")
    events = [_event(at, actions[at // 10 % 2], at % 10, frames) for at in range(count)]
    _snapshot(events, [], folder)


def snapshot_stacks(count: int, folder: Path) -> None:
    """Allocations, each with a call stack of its own."""
    below = [_frame(-line) for line in range(1, 11)]
    events = [_event(at, "alloc", at, [_frame(at), *below]) for at in range(count)]
    _snapshot(events, [], folder)


def snapshot_blocks(count: int, folder: Path) -> None:
    """Blocks of one segment, every other one in use."""
    blocks = [
        {"address": _BLOCK * at, "size": _BLOCK, "state": _STATES[at % 2], "frames": []}
        for at in range(count)
    ]
    _snapshot([], blocks, folder)


LARGEST: dict[Write, int] = {
    snapshot_events: 10**6,
    snapshot_stacks: 10**5,
    snapshot_blocks: 10**6,
}
