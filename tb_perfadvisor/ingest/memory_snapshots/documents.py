"""Reads a snapshot that was written as JSON."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.files.budget import Budget
from tb_perfadvisor.ingest.memory_snapshots.collector import SnapshotCollector
from tb_perfadvisor.ingest.memory_snapshots.pickled import Bytes

MAX_JSON_BYTES: Final = 1 << 28
"""JSON repeats each call stack, so it is decoded as a whole, in a few times its size."""

_NO_FRAMES: Final = msgspec.Raw(b"[]")


class _Event(msgspec.Struct):
    action: Any = None
    addr: Any = None
    size: Any = None
    time_us: Any = None
    device_free: Any = None
    frames: msgspec.Raw = _NO_FRAMES


class _Block(msgspec.Struct):
    address: Any = None
    size: Any = None
    requested_size: Any = None
    state: Any = None
    frames: msgspec.Raw = _NO_FRAMES


class _Segment(msgspec.Struct):
    device: Any = None
    address: Any = None
    total_size: Any = None
    is_expandable: Any = None
    blocks: list[_Block] = []


class _Snapshot(msgspec.Struct):
    segments: list[_Segment] = []
    device_traces: list[list[_Event]] = []
    allocator_settings: Any = None
    external_annotations: list[dict[str, Any]] = []


def read_json(
    stream: Bytes, path: str, collector: SnapshotCollector, budget: Budget
) -> tuple[list[int], Any]:
    """Read the JSON of `torch.cuda.memory._snapshot()`, or a list of segments.

    Returns how many events each device has, and the allocator's settings.
    """
    data = stream.read(MAX_JSON_BYTES + 1)
    if len(data) > MAX_JSON_BYTES:
        raise UnreadableProfileError(
            f"this memory snapshot is JSON of more than {MAX_JSON_BYTES >> 20} MiB.",
            where=path,
            hint="Write it with torch.cuda.memory._dump_snapshot: pickles of any size are read.",
        )
    budget.expect_json(data)
    try:
        snapshot = msgspec.json.decode(data, type=_Snapshot | list[_Segment])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(path) from error
    if isinstance(snapshot, list):
        snapshot = _Snapshot(segments=snapshot)
    stacks: dict[bytes, int] = {}

    def stack_of(frames: msgspec.Raw) -> int:
        text = bytes(frames)
        if text not in stacks:
            stacks[text] = collector.add_stack(_frames(text, path, collector))
        return stacks[text]

    for segment in snapshot.segments:
        for block in segment.blocks:
            collector.add_block(msgspec.structs.asdict(block), stack_of(block.frames))
        collector.add_segment(msgspec.structs.asdict(segment), len(segment.blocks))
    for history in snapshot.device_traces:
        for event in history:
            collector.add_event(msgspec.structs.asdict(event), stack_of(event.frames))
    for annotation in snapshot.external_annotations:
        collector.add_annotation(annotation)
    return [len(history) for history in snapshot.device_traces], snapshot.allocator_settings


def _frames(text: bytes, path: str, collector: SnapshotCollector) -> list[int]:
    try:
        decoded = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(path) from error
    if not isinstance(decoded, list):
        return []
    return [collector.add_frame(frame) for frame in decoded if isinstance(frame, dict)]


def _unreadable(path: str) -> UnreadableProfileError:
    return UnreadableProfileError(
        "this JSON is damaged, or no memory snapshot.",
        where=path,
        hint="Write it again, or as a pickle with torch.cuda.memory._dump_snapshot.",
    )
