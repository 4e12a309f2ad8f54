from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from tb_perfadvisor.errors import InvalidTraceError
from tb_perfadvisor.testing import TraceBuilder
from tb_perfadvisor.trace import (
    Assembler,
    EventKind,
    KernelTable,
    Source,
    Trace,
    TrackKind,
)
from tb_perfadvisor.trace.nesting import MAX_DEPTH
from tb_perfadvisor.trace.tables import is_repeated

SOURCE = Source(path="drawn", format="drawn")

# (start, duration, track): small, so that events often touch, nest, cross and coincide.
EVENT = st.tuples(st.integers(0, 20), st.integers(0, 12), st.integers(0, 2))


def assembled(events: list[tuple[int, int, int]], chunks: int = 1) -> Trace:
    assembler = Assembler()
    name = assembler.intern("x")
    tracks = [
        assembler.add_track(TrackKind.HOST_THREAD, thread=number, label=f"thread {number}")
        for number in range(3)
    ]
    for first in range(chunks):
        part = events[first::chunks]
        assembler.add_events(
            [start for start, _, _ in part],
            [duration for _, duration, _ in part],
            kind=EventKind.OPERATOR,
            name=name,
            track=[tracks[track] for _, _, track in part],
        )
    return assembler.finish(SOURCE)


def slow_parent(events: list[tuple[int, int, int]], row: int) -> int:
    """The nearest earlier event on the same track that ends no sooner."""
    _, end, track = events[row]
    for other in range(row - 1, -1, -1):
        if events[other][2] == track and events[other][1] >= end:
            return other
    return -1


@given(st.lists(EVENT, max_size=40))
def test_nesting_matches_a_linear_search(events: list[tuple[int, int, int]]) -> None:
    trace = assembled(events)
    columns = trace.events
    rows = [
        (int(start), int(end), int(track))
        for start, end, track in zip(columns.start_ns, columns.end_ns, columns.track, strict=True)
    ]
    assert columns.parent.tolist() == [slow_parent(rows, row) for row in range(len(rows))]


def test_spans_of_some_events() -> None:
    # 0 to 3, 2 to 5 and 9 to 11: the first two overlap.
    events = assembled([(0, 3, 0), (2, 3, 1), (9, 2, 0)]).events
    assert events.spans(np.array([0, 1], dtype=np.int32)).tolist() == [[0, 5]]
    assert events.spans(np.array([True, False, True])).tolist() == [[0, 3], [9, 11]]
    assert events.spans(np.empty(0, dtype=np.int64)).tolist() == []


@given(st.lists(EVENT, max_size=30), st.integers(1, 4))
def test_invariants(events: list[tuple[int, int, int]], chunks: int) -> None:
    trace = assembled(events, chunks)
    columns = trace.events
    assert len(columns) == len(events)
    # Sorted by start, longest first on ties; the earliest start is time 0.
    keys = list(zip(columns.start_ns.tolist(), (-columns.duration_ns).tolist(), strict=True))
    assert keys == sorted(keys)
    if events:
        assert columns.start_ns[0] == 0
        earliest = min(start for start, _, _ in events)
        assert trace.duration_ns == max(s + d for s, d, _ in events) - earliest
    # A parent precedes its child, on its track, and encloses it.
    child = np.flatnonzero(columns.parent >= 0)
    parent = columns.parent[child]
    assert (parent < child).all()
    assert (columns.track[parent] == columns.track[child]).all()
    assert (columns.start_ns[parent] <= columns.start_ns[child]).all()
    assert (columns.end_ns[parent] >= columns.end_ns[child]).all()
    for item in fields(columns):
        assert not getattr(columns, item.name).flags.writeable
    # Chunks give the same events as adding all at once.
    again = assembled(events).events
    assert columns.start_ns.tolist() == again.start_ns.tolist()
    assert columns.duration_ns.tolist() == again.duration_ns.tolist()


def launched(
    host: list[tuple[EventKind, int]], device: list[tuple[EventKind, int]]
) -> list[str | None]:
    """Names of the calls that launched each device event, given correlations."""
    assembler = Assembler()
    thread = assembler.add_track(TrackKind.HOST_THREAD, label="main")
    stream = assembler.add_track(TrackKind.DEVICE_STREAM, thread=7, device=0, label="stream 7")
    for track, offset, rows in ((thread, 0, host), (stream, 100, device)):
        for index, (kind, correlation) in enumerate(rows):
            assembler.add_events(
                offset + index,
                1,
                kind=kind,
                name=assembler.intern(f"{index}"),
                track=track,
                correlation=correlation,
            )
    trace = assembler.finish(SOURCE)
    is_device = trace.events.track == stream
    launched_by = trace.events.launched_by[is_device].tolist()
    assert (trace.events.launched_by[~is_device] == -1).all()
    return [trace.name(row) if row >= 0 else None for row in launched_by]


LAUNCH, RUNTIME = EventKind.LAUNCH, EventKind.RUNTIME
KERNEL, COPY = EventKind.KERNEL, EventKind.COPY


def test_device_events_link_to_the_call_with_their_correlation() -> None:
    assert launched([(LAUNCH, 5), (LAUNCH, 9)], [(KERNEL, 9), (COPY, 5)]) == ["1", "0"]


def test_one_graph_launch_may_start_many_kernels() -> None:
    assert launched([(LAUNCH, 5)], [(KERNEL, 5), (KERNEL, 5)]) == ["0", "0"]


def test_an_unknown_correlation_links_nothing() -> None:
    assert launched([(LAUNCH, -1)], [(KERNEL, -1), (KERNEL, 7)]) == [None, None]
    assert launched([], [(KERNEL, 7)]) == [None]


def test_launch_call_wins_over_other_calls_with_the_same_correlation() -> None:
    assert launched([(RUNTIME, 5), (LAUNCH, 5)], [(KERNEL, 5)]) == ["1"]
    assert launched([(LAUNCH, 5), (RUNTIME, 5)], [(KERNEL, 5)]) == ["0"]


def test_attributes_follow_their_events_through_sorting() -> None:
    assembler = Assembler()
    stream = assembler.add_track(TrackKind.DEVICE_STREAM, thread=7, device=0, label="stream 7")
    ids = assembler.add_events(
        [30, 10, 20], [1, 1, 1], kind=KERNEL, name=assembler.intern("k"), track=stream
    )
    assembler.add_kernels(ids, registers=[30, 10, 20])
    assembler.add_memory([35, 15], device=0, bytes=[-4, 4])
    assembler.link_forward(ids[:1], ids[1:2])
    trace = assembler.finish(SOURCE, clock_unix_ns=1_000)
    # Sorted by start, from the earliest: 10, 20, 30 become 0, 10, 20.
    assert trace.events.start_ns.tolist() == [0, 10, 20]
    assert trace.kernels.row.tolist() == [0, 1, 2]
    assert trace.kernels.registers.tolist() == [10, 20, 30]
    assert trace.memory.at_ns.tolist() == [5, 25]
    assert trace.memory.bytes.tolist() == [4, -4]
    assert trace.events.forward.tolist() == [-1, -1, 0]
    assert trace.source.origin_unix_ns == 1_010


def test_missing_columns_are_unknown() -> None:
    assembler = Assembler()
    stream = assembler.add_track(TrackKind.DEVICE_STREAM, thread=7, device=0, label="stream 7")
    ids = assembler.add_events(0, 1, kind=KERNEL, name=assembler.intern("k"), track=stream)
    assembler.add_kernels(ids)
    assembler.add_copies(ids)
    trace = assembler.finish(SOURCE)
    kernels = trace.kernels
    for name in ("tensor_cores", "grid_blocks", "block_threads", "registers"):
        assert getattr(kernels, name).tolist() == [-1]
    assert (kernels.family[0], kernels.precision[0]) == (0, 0)
    assert np.isnan(kernels.occupancy_share[0])
    assert trace.copies.pageable.tolist() == [-1]
    assert trace.source.origin_unix_ns is None


def test_equal_tracks_and_strings_are_stored_once() -> None:
    assembler = Assembler()
    first = assembler.add_track(TrackKind.HOST_THREAD, thread=1, label="a")
    assert assembler.add_track(TrackKind.HOST_THREAD, thread=1, label="a") == first
    assert assembler.add_track(TrackKind.HOST_THREAD, thread=2, label="a") != first
    assert assembler.intern("s") == assembler.intern("s")
    assert assembler.intern_all(["s", "t", "s"]).tolist() == [0, 1, 0]


def test_empty_trace() -> None:
    trace = Assembler().finish(SOURCE)
    assert (len(trace.events), trace.duration_ns) == (0, 0)
    assert trace.rows(EventKind.KERNEL).tolist() == []


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"duration_ns": -1}, "negative duration"),
        ({"name": 7}, "unknown name"),
        ({"name": -1}, "unknown name"),
        ({"track": 3}, "unknown track"),
    ],
)
def test_rejects_invalid_events(columns: dict[str, int], message: str) -> None:
    assembler = Assembler()
    assembler.add_track(TrackKind.HOST_THREAD, label="main")
    given_columns = {"duration_ns": 1, "kind": 0, "name": assembler.intern("x"), "track": 0}
    duration = columns.get("duration_ns", 1)
    others = {k: v for k, v in (given_columns | columns).items() if k != "duration_ns"}
    assembler.add_events(0, duration, **others)
    with pytest.raises(InvalidTraceError, match=message):
        assembler.finish(SOURCE)


def test_rejects_unknown_columns() -> None:
    with pytest.raises(TypeError, match=KernelTable.__name__):
        Assembler().add_kernels([0], color=[1])


def test_missing_columns_take_no_memory() -> None:
    assembler = Assembler()
    stream = assembler.add_track(TrackKind.DEVICE_STREAM, thread=7, device=0, label="stream 7")
    name = assembler.intern("k")
    for start, registers in ((5, 32), (0, 64)):
        ids = assembler.add_events([start, start + 1], 1, kind=KERNEL, name=name, track=stream)
        assembler.add_kernels(ids, registers=registers)
    kernels = assembler.finish(SOURCE).kernels
    assert is_repeated(kernels.grid_blocks)
    assert is_repeated(kernels.occupancy_share)
    assert kernels.grid_blocks.tolist() == [-1] * 4
    # Each chunk repeats one value, but they differ.
    assert kernels.registers.tolist() == [64, 64, 32, 32]


def test_a_step_marker_is_never_too_deep() -> None:
    builder = TraceBuilder()
    depth = MAX_DEPTH + 5
    for level in range(depth):
        builder.host(EventKind.PYTHON, f"call {level}", level, 10 * depth - level)
    builder.step(3, 4 * depth, 5 * depth)
    builder.host(EventKind.PYTHON, "deepest", 4 * depth + 1, 4 * depth + 2)
    trace = builder.build()
    (row,) = trace.rows(EventKind.STEP)
    assert int(trace.events.step[row]) == 3
    # Of the calls, those inside 1,024 others are left out.
    assert len(trace.rows(EventKind.PYTHON)) == MAX_DEPTH
    assert any(note.id == "too-deeply-nested" for note in trace.notes)
