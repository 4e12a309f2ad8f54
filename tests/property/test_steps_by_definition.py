"""Markers, windows, periods and pauses of steps, worked out one by one from their definitions."""

from __future__ import annotations

from itertools import groupby, pairwise
from random import Random
from statistics import median

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tb_perfadvisor.signals.core.collectives import shortest_over_devices
from tb_perfadvisor.signals.core.device import device_timeline
from tb_perfadvisor.signals.core.idle_gaps import (
    device_gaps,
    find_unrecorded_work,
    first_copies,
    rhythm,
)
from tb_perfadvisor.signals.core.operators import find_memory, sample_maxima
from tb_perfadvisor.signals.core.steps.gaps import between_steps, first_from, shows_step_ends
from tb_perfadvisor.signals.core.steps.launched_work import launched_work, owner_by_time
from tb_perfadvisor.signals.core.steps.marker_rows import (
    Markers,
    markers_from_rows,
    not_overlapping,
)
from tb_perfadvisor.signals.core.steps.periods import longer, period_of
from tb_perfadvisor.signals.core.steps.steps import Steps, find_set_up
from tb_perfadvisor.signals.core.steps.windows import Pace, Side, Windows, pace_of, windows_of
from tb_perfadvisor.testing import TraceBuilder, symbols
from tb_perfadvisor.trace import BUSY_KINDS, CopyDirection, EventKind, Trace
from tests.support.night import examples
from tests.support.random_traces import CELL_NS, CELLS, random_trace

randoms = st.integers(0, 2**32).map(Random)
NEVER = np.iinfo(np.int64).max


def column(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


@examples(60)
@given(randoms)
def test_the_period_of_some_work(random: Random) -> None:
    kinds = [random.randrange(2) for _ in range(random.randint(0, 4))] * random.randint(1, 4)
    kinds = kinds[: len(kinds) - random.randint(0, 1)]
    periods = [
        period
        for period in range(1, len(kinds) // 2 + 1)
        if all(kinds[at] == kinds[at - period] for at in range(period, len(kinds)))
    ]
    assert period_of(column(kinds)) == (periods[0] if periods else 0)


@examples(60)
@given(randoms)
def test_work_of_a_longer_kind(random: Random) -> None:
    work = [random.choice((80, 100, 124, 125, 126, 200)) for _ in range(random.randint(0, 8))]
    if random.random() < 0.1:
        work.append(0)
    ordered = sorted(work)
    expected = [False] * len(work)
    if len(work) > 3 and ordered[0] > 0:
        ratio = [after / before for before, after in pairwise(ordered)]
        limit = ordered[ratio.index(max(ratio))]
        above = [at > limit and max(ratio) >= 1.25 for at in work]
        expected = above if sum(above) >= 3 else expected
    assert longer(column(work)).tolist() == expected


@examples(60)
@given(randoms)
def test_windows_and_moments(random: Random) -> None:
    bounds = sorted(random.sample(range(40), 2 * random.randint(1, 5)))
    starts, ends = bounds[::2], bounds[1::2]
    at = [random.randrange(-2, 42) for _ in range(20)]
    assert owner_by_time(column(starts), column(ends), column(at)).tolist() == [
        next(
            (
                window
                for window, (begin, end) in enumerate(zip(starts, ends, strict=True))
                if begin <= moment < end
            ),
            -1,
        )
        for moment in at
    ]
    assert first_from(column(bounds), column(at)).tolist() == [
        min((bound for bound in bounds if bound >= moment), default=NEVER) for moment in at
    ]


@examples(30)
@given(randoms)
def test_the_highest_of_many_values(random: Random) -> None:
    values = [random.randrange(100) for _ in range(random.randint(1, 60))]
    count = random.randint(3, 30)
    found = sample_maxima(column(values), count).tolist()
    assert (found[0], found[-1]) == (0, len(values) - 1)
    assert found == sorted(set(found))
    if len(values) <= count:
        assert found == list(range(len(values)))
        return
    assert len(found) == count
    # Of each piece between the ends, the highest value is there.
    pieces = np.linspace(1, len(values) - 1, count - 1).astype(int).tolist()
    for (begin, end), at in zip(pairwise(pieces), found[1:], strict=False):
        assert values[at] == max(values[begin:end])


@examples(25)
@given(randoms)
def test_memory_of_a_device(random: Random) -> None:
    builder = TraceBuilder()
    rows = []
    for at in range(random.randint(0, 8)):
        device = random.randrange(2)
        allocated, reserved = random.choice((-1, 0, 5, 9)), random.choice((-1, 0, 7))
        builder.memory(
            at, 1, allocated_bytes=allocated, reserved_bytes=reserved, device=device
        ).operator("aten::empty", at, at + 1)
        rows.append((at, allocated, reserved, device))
    own = [row for row in rows if row[3] == 0]
    found = find_memory(builder.build(), 0, 100)
    if not own:
        assert found is None
        return
    assert found is not None
    assert found.at_ns.tolist() == [at for at, *_ in own]
    assert found.allocated_bytes.tolist() == [allocated for _, allocated, *_ in own]
    allocated = max(row[1] for row in own)
    reserved = max(row[2] for row in own)
    assert found.peak_allocated_bytes == (allocated if allocated >= 0 else None)
    assert found.peak_reserved_bytes == (reserved if reserved > 0 else None)
    assert (found.capacity_bytes, find_memory(builder.build(), None, 100)) == (100, None)


# --- markers ------------------------------------------------------------------------------


@examples(120)
@given(randoms)
def test_markers_of_the_longest_loop(random: Random) -> None:
    builder = TraceBuilder()
    marks: list[tuple[int, int, int]] = []
    others: list[int] = []
    at = 0
    for _ in range(random.randint(1, 3)):
        number = random.choice((0, 0, 4))
        parts = random.choice((1, 1, 1, 2))
        for _ in range(random.randint(1, 5)):
            for _ in range(parts):
                end = at + random.choice((6, 8))
                marks.append((at, end, number))
                at = end + random.choice((0, 1, 2))
            number += random.choice((0, 1, 1, 1, 2, -1)) if random.random() < 0.3 else 1
        at += random.choice((0, 4, 5, 30))
        if random.random() < 0.3:
            others.append(at)
            at += random.choice((0, 2))
    for start, end, number in marks:
        builder.step(number, start, end, name="train")
    trace = builder.build()
    found = markers_from_rows(
        trace, trace.rows(EventKind.STEP), source="x", is_inferred=False, track=0,
        marked_ends=True, others_ns=column(others),
    )  # fmt: skip
    apart = [after[0] - before[0] for before, after in pairwise(marks)]
    usual = median(apart) if apart else 0
    loops = [marks[:1]]
    for before, after in pairwise(marks):
        is_again = after[2] <= before[2] and after[0] - before[0] > 1.5 * usual
        is_parted = any(before[1] <= other < after[0] for other in others)
        if is_again or is_parted:
            loops.append([])
        loops[-1].append(after)
    chosen, left_out = marks, []
    longest = max(len(loop) for loop in loops)
    if len(loops) > 1 and longest >= 3 and all(number >= 0 for *_, number in marks):
        last = max(place for place, loop in enumerate(loops) if len(loop) == longest)
        chosen = loops[last]
        left_out = [
            number for place, loop in enumerate(loops) if place != last for *_, number in loop
        ]
    assert found.left_out.tolist() == left_out
    # Markers with the same number are parts of a step, if every step has as many.
    groups = [list(group) for _, group in groupby(chosen, key=lambda mark: mark[2])]
    numbers = [group[0][2] for group in groups]
    sizes = {len(group) for group in groups}
    if len(groups) < 3 or len(sizes) > 1 or numbers != sorted(numbers):
        groups = [[mark] for mark in chosen]
    assert found.start_ns.tolist() == [group[0][0] for group in groups]
    assert found.end_ns.tolist() == [group[-1][1] for group in groups]
    numbers = [group[0][2] for group in groups]
    is_bad = len(set(numbers)) < len(numbers) or min(numbers) < 0
    assert found.number.tolist() == (list(range(len(groups))) if is_bad else numbers)


@examples(30)
@given(randoms)
def test_rows_that_overlap_no_earlier_one(random: Random) -> None:
    trace = random_trace(random)
    rows = np.arange(len(trace.events), dtype=np.int32)
    starts, ends = trace.events.start_ns.tolist(), trace.events.end_ns.tolist()
    assert not_overlapping(trace, rows).tolist() == [
        all(starts[row] >= end for end in ends[:row]) for row in rows.tolist()
    ]


# --- between steps ------------------------------------------------------------------------

CLOSING = ("Optimizer.step#SGD.step", "autograd::engine::evaluate_function: MmBackward0")


@examples(100)
@given(randoms)
def test_time_between_steps(random: Random) -> None:
    builder = TraceBuilder()
    bounds = sorted(random.sample(range(0, 60), random.randint(2, 4)))
    is_closed = random.random() < 0.9
    for _ in range(random.randint(1, 14)):
        begin = random.randrange(60)
        end = begin + random.choice((0, 1, 2, 5))
        thread = random.choice(("main", "main", "other"))
        what = random.random()
        if what < 0.3 and is_closed:
            builder.operator(random.choice(CLOSING), begin, end, thread=thread, launches=False)
        elif what < 0.6:
            builder.host(EventKind.INPUT_WAIT, "fetch", begin, end, thread=thread)
        else:
            builder.operator("aten::mm", begin, end, thread=thread, launches=False)
    builder.annotation("first", 0, 1, thread="main").annotation("second", 0, 1, thread="other")
    trace = builder.build()
    events = trace.events
    marked_ends = random.random() < 0.2
    start, end = column(bounds[:-1]), column(bounds[1:])
    marker_end = np.minimum(end, start + random.choice((1, 3, 9)))
    steps = Steps(
        source="x", pace=Pace(Side.HOST, 0.0, 0.0), excluded=(), start_ns=start, end_ns=end,
        window_start_ns=bounds[0], window_end_ns=bounds[-1], owner=np.empty(0, dtype=np.int32),
        host_start_ns=start, host_end_ns=end, marker_end_ns=marker_end, marked_ends=marked_ends,
    )  # fmt: skip
    step_track = int(events.track[[trace.name(row) == "first" for row in range(len(events))]][0])
    rows = range(len(events))
    closing = [row for row in rows if trace.name(row) in CLOSING]
    on_thread = [row for row in rows if events.track[row] == step_track]
    fetches = [int(events.start_ns[row]) for row in on_thread if trace.name(row) == "fetch"]
    opening = [int(events.start_ns[row]) for row in closing] + [
        int(events.start_ns[row]) for row in on_thread if events.kind[row] == EventKind.OPERATOR
    ]
    between: set[int] = set()
    for at, (begin_ns, end_ns) in enumerate(pairwise(bounds)):
        if marked_ends:
            between.update(range(int(marker_end[at]), end_ns))
            continue
        # The last closing work that begins in the step; what takes no time begins before it ends.
        begun = [
            row
            for row in closing
            if min(int(events.start_ns[row]), int(events.end_ns[row]) - 1) <= end_ns - 1
        ]
        if not begun or events.start_ns[begun[-1]] < begin_ns:
            continue
        closed = max(int(events.end_ns[row]) for row in begun)
        later = [moment for moment in fetches if moment >= closed]
        later += [moment for moment in opening if moment >= end_ns]
        between.update(range(closed, min(later, default=end_ns)))
    window = set(range(bounds[0], bounds[-1]))
    found = between_steps(trace, steps, step_track).tolist()
    assert {moment for begin, end in found for moment in range(begin, end)} == between & window
    assert shows_step_ends(trace, steps) == (marked_ends or bool(closing))


# --- windows ------------------------------------------------------------------------------


def random_loop(random: Random) -> tuple[Trace, list[int]]:
    """Markers, each with launches of work that runs now or later, in order; cells of 10 us."""
    builder = TraceBuilder()
    at, free = 2, 0
    if random.random() < 0.4:  # work of a step before the recording
        builder.launch(0, CELL_NS, key="earlier")
        free = random.choice((1, 4, 9))
        builder.kernel("k", 0, free * CELL_NS, launched_by="earlier")
    starts = []
    for number in range(random.randint(1, 5)):
        starts.append(at)
        for launch in range(random.randint(0, 3)):
            key = f"{number} {launch}"
            builder.launch(at * CELL_NS, (at + 1) * CELL_NS, key=key)
            begin = max(at + random.choice((0, 2)), free)
            free = begin + random.choice((1, 2, 6))
            name = random.choice(("k", "l"))
            by = key if random.random() < 0.95 else ""
            builder.kernel(name, begin * CELL_NS, free * CELL_NS, launched_by=by)
            at += random.choice((1, 2))
        at += random.choice((1, 3))
    for number, (begin, end) in enumerate(pairwise([*starts, at])):
        builder.step(number, begin * CELL_NS, (end - random.choice((0, 1))) * CELL_NS)
    return builder.build(), starts


def markers_of(trace: Trace, *, is_on_device: bool = False) -> Markers:
    rows = trace.rows(EventKind.STEP)
    found = markers_from_rows(
        trace, rows, source="x", is_inferred=False, track=0, marked_ends=False
    )
    return replace(found, is_on_device=is_on_device)


@examples(100)
@given(randoms)
def test_windows_on_host_and_device(random: Random) -> None:
    trace, _ = random_loop(random)
    timeline, markers = device_timeline(trace), markers_of(trace)
    if timeline.index is None:
        return
    work = launched_work(trace, timeline, markers)
    found = windows_of(trace, timeline, markers, work)
    starts, ends = markers.start_ns.tolist(), markers.end_ns.tolist()
    host = list(pairwise([*starts, ends[-1]]))
    assert list(zip(found.host_start_ns.tolist(), found.host_end_ns.tolist(), strict=True)) == host
    events = trace.events
    rows = timeline.rows.tolist()
    launched = [int(events.launched_by[row]) for row in rows]
    launched_ns = [int(events.start_ns[by]) if by >= 0 else -1 for by in launched]
    assert work.launched_ns.tolist() == launched_ns
    own = [
        [row for row, at in zip(rows, launched_ns, strict=True) if begin <= at < end]
        for begin, end in host
    ]
    assert found.work_ns.tolist() == [
        sum(int(events.duration_ns[row]) for row in rows) for rows in own
    ]
    if not any(own):
        assert (found.is_linked, found.device_end_ns.tolist()) == (False, [end for _, end in host])
        return
    first = min(int(events.start_ns[row]) for rows in own for row in rows)
    earlier = [
        int(events.end_ns[row])
        for row, at in zip(rows, launched_ns, strict=True)
        if at < starts[0] and events.start_ns[row] < first
    ]
    begin = min(max(max(earlier), starts[0]), first) if earlier else starts[0]
    device = []
    reached = begin
    for rows in own:
        end = max([reached, *(int(events.end_ns[row]) for row in rows)])
        device.append((reached, end))
        reached = end
    found_device = zip(found.device_start_ns.tolist(), found.device_end_ns.tolist(), strict=True)
    assert (found.is_linked, list(found_device)) == (True, device)
    assert found.head_ns == (begin if earlier or len(starts) == 1 else first)
    decided = found.decided_by(Side.DEVICE)
    assert decided.device_start_ns[0] == (found.head_ns or begin)
    assert decided.of(Side.DEVICE)[1].tolist() == [end for _, end in device]
    assert found.decided_by(Side.HOST).of(Side.HOST)[0].tolist() == starts
    assert_pace(random, trace, found)


def assert_pace(random: Random, trace: Trace, windows: Windows) -> None:
    timeline, count = device_timeline(trace), len(windows.work_ns)
    has_end = random.random() < 0.5
    found = pace_of(trace, timeline, windows, slice(0, count), is_on_device=False, has_end=has_end)
    host_start, host_end = windows.host_start_ns.tolist(), windows.host_end_ns.tolist()
    done = [max(pair) for pair in zip(windows.device_end_ns.tolist(), host_end, strict=True)]
    if count == 1:
        host_ns = host_end[0] - host_start[0]
        device_ns = done[0] - int(windows.device_start_ns[0])
    else:
        # Without an end, the last step of three or more does not count.
        last = count - 1 if has_end or count < 3 else count - 2
        host_ns = (host_end[last] - host_end[0]) / last
        device_ns = (done[last] - done[0]) / last
    assert (found.host_ns, found.device_ns) == (host_ns, device_ns)
    differ = max(host_ns, device_ns) > 1.05 * min(host_ns, device_ns)
    assert found.differ == differ
    side = Side.HOST
    if differ and device_ns > host_ns:
        side = Side.DEVICE
    elif not differ or device_ns > host_ns:
        # The first window on the host holds a dispatch, that on the device a whole period.
        starts = windows.decided_by(Side.DEVICE).device_start_ns.tolist()
        device = [
            end - start for start, end in zip(starts, windows.device_end_ns.tolist(), strict=True)
        ]
        host = [end - start for start, end in zip(host_start, host_end, strict=True)]
        if count > 1 and host[0] < 0.5 * median(host[1:]) and device[0] >= 0.5 * median(device[1:]):
            side = Side.DEVICE
    elif count >= 3:
        begin, end = int(windows.device_start_ns[0]), int(windows.device_end_ns[-1])
        idle = device_gaps(trace, timeline, begin, end)
        starved = sum((idle.queued_from_ns - idle.start_ns).tolist())
        side = Side.DEVICE if starved <= 0.05 * (end - begin) else Side.HOST
    assert found.side is side


@examples(60)
@given(randoms)
def test_windows_of_steps_that_the_device_marks(random: Random) -> None:
    trace, _ = random_loop(random)
    timeline = device_timeline(trace)
    if timeline.index is None:
        return
    events = trace.events
    bounds = sorted(random.sample(range(2 * CELLS), random.randint(2, 4)))
    starts, ends = (column([at * CELL_NS for at in part]) for part in (bounds[:-1], bounds[1:]))
    markers = Markers("x", False, np.arange(len(starts)), starts, ends, False, -1)
    markers = replace(markers, is_on_device=True)
    work = launched_work(trace, timeline, markers)
    found = windows_of(trace, timeline, markers, work)
    launched = dict(zip(work.rows.tolist(), work.launched_ns.tolist(), strict=True))
    own = [
        [row for row in launched if begin <= events.start_ns[row] < end]
        for begin, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    assert found.work_ns.tolist() == [sum(map(int, events.duration_ns[rows])) for rows in own]
    first = [
        min((launched[row] for row in rows if launched[row] >= 0), default=None) for rows in own
    ]
    if None in first or first != sorted(set(first)):  # type: ignore[type-var]
        assert not found.is_linked
        assert found.host_start_ns.tolist() == starts.tolist()
        return
    last = max(launched[row] for rows in own for row in rows) + 1
    assert found.is_linked
    assert found.host_start_ns.tolist() == first
    assert found.host_end_ns.tolist() == [*first[1:], max(last, int(ends[-1]))]
    assert found.device_start_ns.tolist() == starts.tolist()
    assert found.device_end_ns.tolist() == ends.tolist()


# --- before the steps ---------------------------------------------------------------------


@examples(80)
@given(randoms)
def test_unrecorded_work_before_the_first_events(random: Random) -> None:
    builder = TraceBuilder().annotation("first", 0, 1)
    launches = {}
    for stream in (7, 8):
        key, at = str(stream), random.choice((0, 10))
        end = at + random.choice((1, 5))
        builder.launch(at * CELL_NS, end * CELL_NS, key=key)
        # Two cells of latency, and a hundred of delay: work begins just then, or just before.
        begin = end + 2 + random.choice((0, 99, 100, 101, 200))
        by = key if random.random() < 0.9 else ""
        builder.kernel("k", begin * CELL_NS, (begin + 9) * CELL_NS, stream=stream, launched_by=by)
        launches[stream] = (end + 2, begin, bool(by))
    waits = {}
    if random.random() < 0.5:
        stream, begin = random.choice((7, 8, 9)), random.randrange(120)
        end = begin + random.choice((5, 10, 11, 20, 21, 60))
        symbol = symbols.host("Stream Wait Event", EventKind.DEVICE_SYNC)
        builder.add(symbol, begin * CELL_NS, end * CELL_NS, stream=stream)
        waits[stream] = set(range(begin, end))
    if random.random() < 0.4:
        begin = random.randrange(120)
        end = begin + random.choice((9, 10, 11, 20))
        builder.copy(
            CopyDirection.UNKNOWN, begin * CELL_NS, end * CELL_NS, stream=9, launched_by=""
        )
    trace = builder.build()
    work = trace.rows(*BUSY_KINDS)
    busy = {
        cell
        for row in work.tolist()
        for cell in range(
            int(trace.events.start_ns[row]) // CELL_NS, int(trace.events.end_ns[row]) // CELL_NS
        )
    }
    found = find_unrecorded_work(trace, device_timeline(trace))
    occupied = []
    for stream, (ready, begin, is_linked) in launches.items():
        delay = set(range(ready, begin))
        explained = delay & (busy | waits.get(stream, set()))
        if is_linked and begin - ready >= 100 and len(explained) <= 0.1 * len(delay):
            occupied.append(begin * CELL_NS)
    assert (None if found is None else found.until_ns) == max(occupied, default=None)


@examples(80)
@given(randoms)
def test_what_a_device_does_before_its_first_kernel(random: Random) -> None:
    builder = TraceBuilder()
    at, events = 0, []
    for _ in range(random.randint(1, 9)):
        kind = random.choice("kkc")
        length = random.choice((1, 2, 5, 20))
        if kind == "k":
            builder.kernel("k", at, at + length)
        else:
            builder.copy(CopyDirection.HOST_TO_DEVICE, at, at + length, size_bytes=length)
        events.append((kind, at, at + length))
        at += length + random.choice((0, 1, 3, 9))
    trace = builder.build()
    timeline = device_timeline(trace)
    found = find_set_up(trace, timeline)
    kernels = [(begin, end) for kind, begin, end in events if kind == "k"]
    first, last = events[0][1], max(end for *_, end in events)
    if not kernels or kernels[0][0] - first < 0.05 * (last - first):
        assert found is None
        return
    length = kernels[0][0] - first
    pauses = [
        after[0] - before[1]
        for before, after in pairwise(kernels)
        if any(kind == "c" and before[1] <= begin < after[0] for kind, begin, _ in events)
    ]
    if max(pauses, default=0) >= 0.5 * length:
        assert found is None
        return
    before = [(begin, end) for kind, begin, end in events if end <= kernels[0][0]]
    assert found is not None
    assert (found.start_ns, found.end_ns, found.recorded_ns) == (first, kernels[0][0], last - first)
    assert (found.copies, found.size_bytes) == (
        len(before), sum(end - begin for begin, end in before)
    )  # fmt: skip


# --- batches and collectives ---------------------------------------------------------------


@examples(60)
@given(randoms)
def test_the_rhythm_of_waits(random: Random) -> None:
    every = random.randint(1, 4)
    waited = [
        random.choice((100, 90, 51, 50)) if place % every == 0 else random.choice((0, 0, 49, 20))
        for place in range(random.randint(0, 20))
    ]
    if random.random() < 0.3 and waited:
        waited[random.randrange(len(waited))] = 100
    longest = sorted(at for at in waited if at > 0)
    expected = None
    if longest:
        tenth = longest[-max(len(longest) // 10, 1) :]
        late = [place for place, at in enumerate(waited) if 2 * at >= median(tenth)]
        apart = [after - before for before, after in pairwise(late)]
        if len(late) >= 3:
            usual = int(median(apart))
            expected = usual if 4 * apart.count(usual) >= 3 * len(apart) else None
    assert rhythm(column(waited)) == expected


@examples(60)
@given(randoms)
def test_the_first_copies_of_batches(random: Random) -> None:
    builder = TraceBuilder()
    batches: list[tuple[int, int]] = []
    is_copying = has_kernel = False
    for at in range(random.randint(1, 14)):
        if random.random() < 0.5:
            direction = random.choice((CopyDirection.HOST_TO_DEVICE, CopyDirection.DEVICE_TO_HOST))
            size = random.choice(
                (-1, 8 << 10, (16 << 10) - 1, 16 << 10, 160 << 10, (160 << 10) + 9)
            )
            builder.copy(direction, at, at + 1, size_bytes=size)
            is_batch = has_kernel and direction == CopyDirection.HOST_TO_DEVICE
            if is_batch and is_copying:
                batches[-1] = (batches[-1][0], batches[-1][1] + max(size, 0))
            elif is_batch:
                batches.append((at, max(size, 0)))
            is_copying = is_batch
        else:
            builder.kernel("k", at, at + 1)
            is_copying, has_kernel = False, True
    trace = builder.build()
    rows = device_timeline(trace).rows
    least = max([16 << 10, *(0.1 * size for _, size in batches)])
    found = trace.events.start_ns[first_copies(trace, rows)]
    assert found.tolist() == [at for at, size in batches if size >= least]


@examples(40)
@given(randoms)
def test_the_transfer_of_collectives_of_one_process(random: Random) -> None:
    builder = TraceBuilder()
    devices = random.choice((1, 2, 3))
    lengths: dict[str, list[list[int]]] = {}
    counts = {}
    for name in ("a", "b"):
        counts[name] = [random.randint(1, 3)] * devices
        if random.random() < 0.2:
            counts[name][0] += 1
    for name, of_device in counts.items():
        operation = "all-reduce" if name == "a" else "broadcast"
        lengths[name] = []
        for device, count in enumerate(of_device):
            lengths[name].append([])
            for number in range(count):
                length = random.randint(1, 9)
                start = 20 * number + random.randrange(5)
                builder.collective(
                    name, start, start + length, device=device, operation=operation,
                    stream=20 + (name == "b"), group_size=random.choice((-1, devices)),
                )  # fmt: skip
                lengths[name][-1].append(length)
    trace = builder.build()
    found = shortest_over_devices(trace).tolist()
    place = dict.fromkeys(((n, d) for n in counts for d in range(devices)), 0)
    for at, row in enumerate(trace.collectives.row.tolist()):
        name, device = trace.name(row), int(trace.tracks.device[trace.events.track[row]])
        number = place[name, device]
        place[name, device] += 1
        expected = -1
        # The root of a broadcast may leave at once.
        if name == "a" and devices > 1 and len(set(counts[name])) == 1:
            expected = min(of_device[number] for of_device in lengths[name])
        assert found[at] == expected
