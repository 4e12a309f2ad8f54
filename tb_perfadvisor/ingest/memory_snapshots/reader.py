"""Reads a memory snapshot into a trace, which has no other events."""

from __future__ import annotations

from typing import Any, BinaryIO

from msgspec.structs import replace

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.files.budget import Budget
from tb_perfadvisor.ingest.files.compression import Inflated
from tb_perfadvisor.ingest.memory_snapshots.collector import SnapshotCollector
from tb_perfadvisor.ingest.memory_snapshots.pickled import Bytes, read_pickle
from tb_perfadvisor.note import Note
from tb_perfadvisor.trace import Assembler, Device, Source, Trace
from tb_perfadvisor.trace.memory_snapshot import MemorySnapshot


def read_memory_snapshot(stream: BinaryIO, source: Source) -> Trace:
    """Read the memory snapshot of one process.

    The file is a pickle, gzipped or not. `source` has path, run and rank; the other fields
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
    histories, settings = _from_pickle(stream, path, collector, stream.budget)
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
