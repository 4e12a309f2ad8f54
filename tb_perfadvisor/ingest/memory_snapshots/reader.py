"""Reads a memory snapshot into a trace, which has no other events."""

from __future__ import annotations

from typing import Any, BinaryIO, Final

import msgspec
from msgspec.structs import replace

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.files.budget import Budget
from tb_perfadvisor.ingest.files.compression import Inflated
from tb_perfadvisor.ingest.memory_snapshots.collector import SnapshotCollector
from tb_perfadvisor.ingest.memory_snapshots.pickled import Bytes, read_pickle
from tb_perfadvisor.note import Note
from tb_perfadvisor.trace import Assembler, Device, Source, Trace
from tb_perfadvisor.trace.memory_snapshot import MemorySnapshot

_PICKLE = b"\x80"


def read_memory_snapshot(stream: BinaryIO, source: Source) -> Trace:
    """Read the memory snapshot of one process.

    The file is a pickle or JSON, gzipped or not. `source` has path, run and rank; the other fields
    are filled in here.
    """
    snapshot = _read(Inflated(stream, source.path), source.path)
    trace = Assembler().finish(
        replace(source, framework="pytorch", producer="torch.cuda.memory", has_memory=True),
        devices=tuple(Device(device, "", "gpu") for device in snapshot.devices),
    )
    return replace(trace, snapshot=snapshot, notes=_notes(snapshot))


def _read(stream: Inflated, path: str) -> MemorySnapshot:
    collector = SnapshotCollector(path, stream.budget)
    first = stream.read(1)
    file = _Rest(first, stream)
    if first.startswith(_PICKLE):
        histories, settings = _from_pickle(file, path, collector, stream.budget)
    else:
        histories, settings = read_json(file, path, collector, stream.budget)
    expandable = settings.get("expandable_segments") if isinstance(settings, dict) else None
    return collector.finish(histories, expandable if isinstance(expandable, bool) else None)


def _from_pickle(
    file: Bytes, path: str, collector: SnapshotCollector, budget: Budget
) -> tuple[list[int], Any]:
    """How many events each device has, and the allocator's settings."""
    content = read_pickle(file, path, collector, budget)
    if isinstance(content, list):  # of torch.cuda.memory_snapshot()
        content = {"segments": content}
    if not isinstance(content, dict) or not {"segments", "device_traces"} & content.keys():
        raise _no_snapshot(path)
    segments, traces = content.get("segments", []), content.get("device_traces", [])
    if not isinstance(segments, list) or not isinstance(traces, list):
        raise _no_snapshot(path)
    for segment in segments:
        blocks = segment.get("blocks") if isinstance(segment, dict) else None
        if not isinstance(blocks, list):
            raise _no_snapshot(path)
        collector.add_segment(segment, len(blocks))
    if not all(isinstance(trace, list) for trace in traces):
        raise _no_snapshot(path)
    return [len(trace) for trace in traces], content.get("allocator_settings")


class _Rest:
    """A file whose first bytes were already read."""

    def __init__(self, first: bytes, stream: Inflated) -> None:
        self._first, self._stream = first, stream

    def read(self, size: int, /) -> bytes:
        first, self._first = self._first, b""
        return first + self._stream.read(size)


def _notes(snapshot: MemorySnapshot) -> tuple[Note, ...]:
    notes = []
    if snapshot.left_out:
        notes.append(
            Note(
                "damaged-snapshot",
                "warning",
                f"{snapshot.left_out:,} events or blocks of the memory snapshot have no size or "
                "address and were left out.",
                "Record it again.",
            )
        )
    if not len(snapshot.events):
        notes.append(
            Note(
                "no-memory-history",
                "info",
                "The memory snapshot has no history, only what was allocated when it was taken.",
                "Call torch.cuda.memory._record_memory_history() before the steps.",
            )
        )
    return tuple(notes)


def _no_snapshot(path: str) -> UnreadableProfileError:
    return UnreadableProfileError(
        "this pickle is no memory snapshot.",
        where=path,
        hint="Write one with torch.cuda.memory._dump_snapshot.",
    )


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
