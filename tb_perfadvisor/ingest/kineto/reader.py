"""Reads Kineto traces of PyTorch's profiler, old and new: `*.pt.trace.json[.gz]`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.files.compression import Inflated
from tb_perfadvisor.ingest.format import Slicing
from tb_perfadvisor.ingest.host_names import STEP, runtime_kind
from tb_perfadvisor.ingest.json_trace.document import Document, Text, open_document
from tb_perfadvisor.ingest.json_trace.recognition import (
    ASCEND_PROCESS,
    ascend_error,
    foreign_error,
    foreign_events_error,
)
from tb_perfadvisor.ingest.kernels.collective_names import is_collective
from tb_perfadvisor.ingest.kernels.kernel_names import is_copy, is_fill
from tb_perfadvisor.ingest.kineto.decode.columns import KinetoCollector, KinetoColumns
from tb_perfadvisor.ingest.kineto.decode.event_roles import Role
from tb_perfadvisor.ingest.kineto.decode.schema import Event, event_type
from tb_perfadvisor.ingest.kineto.interpret.collectives import add_collectives, describe_by_calls
from tb_perfadvisor.ingest.kineto.interpret.event_kinds import (
    add_copies,
    add_kernels,
    clamp_overhangs,
    device_kind,
    ended_with_callers,
    forward_links,
    host_kind,
)
from tb_perfadvisor.ingest.kineto.interpret.header import (
    by_rank,
    clock_of,
    devices_of,
    has_kineto_header,
    notes_of,
    process_groups_of,
    ranks_of_events,
    rows_by_rank,
    source_of,
    with_contents,
)
from tb_perfadvisor.trace import Assembler, EventKind, Source, Trace, TrackKind
from tb_perfadvisor.trace.integer_groups import group_rows, unique_inverse

# More events take several gigabytes of memory. The largest known traces have a few million.
_MAX_EVENTS = 2**25
# A row of all tables takes some hundred bytes.
_ITEMS_OF_EVENT = 2
_MOST_DOCUMENTS = 256
"""Ranks of one job that append to the same file. A trace takes milliseconds, however short."""


def read_kineto(
    stream: BinaryIO, source: Source, slicing: Slicing | None = None
) -> Iterator[Trace]:
    """Read a file: a trace for each of its documents.

    Processes that append to one file, and files that are joined, leave several. The stream is
    gzipped or not, by content. `source` has what the path says; the file's own statements are
    added. `slicing` says which processes decode it; without, this one does.
    """
    text = Text(Inflated(stream, source.path))
    is_followed, count = True, 0
    for _ in range(_MOST_DOCUMENTS):
        trace, is_followed = _read_document(text, source, _MAX_EVENTS - count, slicing)
        yield trace
        if not is_followed:
            return
        count += len(trace.events)
        text.begin()
        source = replace(source, rank=None)  # the path speaks for one document
    raise UnreadableProfileError(
        f"the file holds more than {_MOST_DOCUMENTS} documents, which no job writes.",
        where=source.path,
        hint="Let each rank write a file of its own.",
    )


def _read_document(
    text: Text, source: Source, most_events: int, slicing: Slicing | None
) -> tuple[Trace, bool]:
    """The trace of the next document, and whether another one follows."""
    event = event_type(text.head)
    document = open_document(text, event, source.path)
    if document is None:
        raise foreign_error(text.head, source.path)
    assembler = Assembler()
    collector = KinetoCollector(assembler.intern)
    for events in _collect(document, event, collector, slicing):
        document.budget.keep(_ITEMS_OF_EVENT * events)
        _check_count(collector.count, most_events, source)
    collected = collector.finish()
    count = collected.events["name"].size
    _check_count(count, most_events, source)
    # Other profilers write Kineto's header, too. It only counts for files without events.
    if collected.is_foreign:
        raise foreign_events_error(text.head, list(collected.unknown_categories), source.path)
    if not count and not has_kineto_header(document.envelope):
        raise foreign_error(text.head, source.path)
    if ASCEND_PROCESS in collected.process_names.values():
        raise ascend_error(source.path)
    return _assemble(assembler, document, collected, source), document.is_followed


def _collect(
    document: Document[Event],
    event: type[Event],
    collector: KinetoCollector,
    slicing: Slicing | None,
) -> Iterator[int]:
    """Add all events to the collector; yields how many each slice had."""
    if slicing is not None:
        from tb_perfadvisor.ingest.kineto.decode.slices import SlicedEvents

        yield from SlicedEvents(document, event, collector, slicing).collect()
    while not document.is_at_end:
        yield collector.add(document.next_slice())


def _check_count(count: int, most: int, source: Source) -> None:
    if count > most:
        raise UnreadableProfileError(
            f"the file has more than {_MAX_EVENTS:,} events, too many to analyze at once.",
            where=source.path,
            hint="Record fewer steps: 5 to 20 are enough.",
        )


def _assemble(
    assembler: Assembler, document: Document[Event], collected: KinetoColumns, source: Source
) -> Trace:
    envelope = document.envelope
    # The appended empty text is the one at index -1.
    texts = [*assembler.strings, ""]
    events, operators = collected.events, collected.operators
    rank = ranks_of_events(collected)
    track = _tracks(assembler, collected, rank)
    kind, step = _kinds(collected, texts)
    is_host = events["role"] != Role.DEVICE
    duration, unended = ended_with_callers(
        events["start_ns"], events["duration_ns"], track, collected.frames
    )
    duration = clamp_overhangs(events["start_ns"], duration, track, is_host)
    correlation = np.full(kind.size, -1, dtype=np.int64)
    for part in (collected.runtime, collected.device):
        # Recorders write 0 if there is none. The external id is not a substitute, because an
        # operator may launch several kernels.
        known = part["correlation"] > 0
        row = part["row"][known]
        correlation[row] = by_rank(part["correlation"][known], rank[row])
    assembler.add_events(
        events["start_ns"],
        duration,
        kind=kind,
        name=events["name"],
        track=track,
        step=step,
        correlation=correlation,
    )
    _add_graph_annotations(assembler, collected, track)
    _add_operators(assembler, collected)
    for of_rank in rows_by_rank(rank[operators["row"]]):
        row = operators["row"][of_rank]
        backward, forward = forward_links(
            row,
            operators["sequence"][of_rank],
            operators["forward_thread"][of_rank],
            events["thread"][row],
            events["start_ns"][row],
        )
        assembler.link_forward(backward, forward)
    runtime = collected.runtime
    is_named = (runtime["kernel"] >= 0) & (kind[runtime["row"]] == EventKind.LAUNCH)
    assembler.add_launches(runtime["row"][is_named], runtime["kernel"][is_named])
    add_kernels(assembler, collected, kind, texts)
    add_copies(assembler, collected, kind, texts)
    add_collectives(assembler, collected, kind, texts, process_groups_of(envelope))
    memory = collected.memory
    if memory["at_ns"].size:
        # A thread that only allocates has no track.
        track_of = np.full(len(collected.threads), -1, dtype=np.int32)
        track_of[events["thread"][is_host]] = track[is_host]
        assembler.add_memory(track=track_of[memory.pop("thread")], **memory)
    if collected.counters["at_ns"].size:
        assembler.add_counters(**collected.counters)
    source = with_contents(source_of(envelope, source), collected, envelope)
    devices, notes = devices_of(envelope, collected), notes_of(document, collected, unended)
    clock_unix_ns = clock_of(envelope, events["start_ns"])
    # Free the columns before `finish`, so that large traces are not in memory twice.
    del collected, events, memory, operators, rank, track, kind, step, is_host, duration
    del correlation
    trace = assembler.finish(source, devices=devices, notes=notes, clock_unix_ns=clock_unix_ns)
    return describe_by_calls(trace)


def _kinds(
    collected: KinetoColumns, texts: Sequence[str]
) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """The kind of each event and the number of each step marker, each of shape (n,)."""
    events = collected.events
    count = max(len(texts), 1)
    # Classify each distinct pair of category and name once.
    pair = events["category"].astype(np.int64) * count + events["name"]
    pairs, of_event = unique_inverse(pair)
    kinds = np.zeros(pairs.size, dtype=np.uint8)
    steps = np.full(pairs.size, -1, dtype=np.int32)
    roles = np.zeros(pairs.size, dtype=np.uint8)
    roles[of_event] = events["role"]
    for index, (category, name) in enumerate(zip(*divmod(pairs, count), strict=True)):
        text = texts[int(name)]
        kinds[index] = kind = _kind(Role(roles[index]), collected.categories[category], text)
        if kind is EventKind.STEP:
            match = STEP.match(text)
            steps[index] = int(match[1]) % 2**31 if match else -1
    return kinds[of_event], steps[of_event]


def _kind(role: Role, category: str, name: str) -> EventKind:
    if role is Role.RUNTIME:
        return runtime_kind(name)
    if role is not Role.DEVICE:
        return host_kind(category, name)
    kind = device_kind(category, name)
    if kind is not EventKind.KERNEL:
        return kind
    if is_collective(name):
        return EventKind.COLLECTIVE
    # ROCm uses kernels for copies and fills.
    if is_copy(name):
        return EventKind.COPY
    return EventKind.MEMSET if is_fill(name) else EventKind.KERNEL


def _tracks(
    assembler: Assembler, collected: KinetoColumns, rank: NDArray[np.int64]
) -> NDArray[np.int32]:
    """The track of each event: a stream of a device, or a thread of a process."""
    events, device = collected.events, collected.device
    tracks = np.empty(events["name"].size, dtype=np.int32)
    if device["row"].size:
        # The devices of merged ranks may have the same index.
        of_rank = rank[device["row"]]
        is_merged = len(of_rank) > 0 and int(of_rank.max()) > 0
        first, of_event = group_rows(device["device"], device["stream"], of_rank)
        rows = [
            assembler.add_track(
                TrackKind.DEVICE_STREAM,
                process=f"rank {owner}" if is_merged and owner >= 0 else "",
                thread=stream,
                device=index,
                label=f"stream {stream}",
            )
            for index, stream, owner in zip(
                device["device"][first].tolist(),
                device["stream"][first].tolist(),
                of_rank[first].tolist(),
                strict=True,
            )
        ]
        tracks[device["row"]] = np.array(rows, dtype=np.int32)[of_event]
    is_host = events["role"] != Role.DEVICE
    threads = events["thread"][is_host]
    track_of = np.full(len(collected.threads), -1, dtype=np.int32)
    for thread in np.flatnonzero(np.bincount(threads)).tolist():
        track_of[thread] = _host_track(assembler, collected, thread)
    tracks[is_host] = track_of[threads]
    return tracks


def _host_track(assembler: Assembler, collected: KinetoColumns, thread: int) -> int:
    pid, tid = collected.threads[thread]
    process = collected.process_names.get(pid, "process")
    is_number = isinstance(tid, int) and 0 <= tid < 2**63
    return assembler.add_track(
        TrackKind.HOST_THREAD,
        process=f"{process} ({pid})" if pid != "" else process,
        # Threads without a number are numbered in order of appearance.
        thread=tid if is_number else -1 - thread,
        label=collected.thread_names.get((pid, tid), f"thread {tid}"),
    )


def _add_graph_annotations(
    assembler: Assembler, collected: KinetoColumns, track: NDArray[np.int32]
) -> None:
    """Add a range over device work of a stream in succession that was marked alike in its graph.

    Ranges of the host are not there when a graph is replayed, or span all of it. PyTorch's profiler
    and `torch.cuda._annotate_cuda_graph_trace` write the marks to each kernel.
    """
    device, events = collected.device, collected.events
    name = device["annotation"]
    if not (name >= 0).any():
        return
    row = device["row"]
    order = np.lexsort((events["start_ns"][row], track[row]))
    row, name, replay = row[order], name[order], device["correlation"][order]
    is_next = np.ones(len(row), dtype=np.bool_)
    for column in (name, track[row], replay):
        is_next[1:] &= column[1:] == column[:-1]
    is_next[0] = False
    begins = np.flatnonzero(~is_next)
    start_ns = events["start_ns"][row]
    end_ns = np.maximum.reduceat(start_ns + events["duration_ns"][row], begins)
    marked = name[begins] >= 0
    begins = begins[marked]
    assembler.add_events(
        start_ns[begins],
        end_ns[marked] - start_ns[begins],
        kind=EventKind.DEVICE_ANNOTATION,
        name=name[begins],
        track=track[row[begins]],
    )


def _add_operators(assembler: Assembler, collected: KinetoColumns) -> None:
    operators = collected.operators
    columns = ("shapes", "dtypes", "values", "frame", "module", "sequence")
    has_any = np.zeros(operators["row"].size, dtype=np.bool_)
    for name in columns:
        has_any |= operators[name] >= 0
    if has_any.any():
        values = {name: operators[name][has_any] for name in columns}
        assembler.add_operators(operators["row"][has_any], **values)
