"""Waits and operators of random traces, worked out event by event from their definitions."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.signals.core.device import (
    device_timeline,
    existing_devices,
    used_devices,
)
from tb_perfadvisor.signals.core.host_activity import busiest_host_track, host_activity
from tb_perfadvisor.signals.core.operators import (
    launched_ns,
    launching_operator,
    operator_self_ns,
    operator_totals,
)
from tb_perfadvisor.signals.core.placement import find_placement, innermost_marked
from tb_perfadvisor.signals.core.precision import effective_precision
from tb_perfadvisor.signals.core.synchronization import find_synchronizations, operator_wait_ns
from tb_perfadvisor.soundness.waits import NEVER, deadlines, stream_work, waiting_calls
from tb_perfadvisor.testing import TraceBuilder
from tb_perfadvisor.trace import BUSY_KINDS, CopyDirection, EventKind, Precision, Trace, TrackKind
from tests.support.night import examples
from tests.support.random_traces import CELL_NS, CELLS, intervals_of, random_cells, random_trace

randoms = st.integers(0, 2**32).map(Random)
COMPUTING = ("aten::mm", "aten::add", "aten::linear")


class Plain:
    """The columns of a trace as lists."""

    def __init__(self, trace: Trace) -> None:
        events = trace.events
        self.trace = trace
        self.start, self.end = events.start_ns.tolist(), events.end_ns.tolist()
        self.kind = [EventKind(kind) for kind in events.kind.tolist()]
        self.track, self.launch = events.track.tolist(), events.launched_by.tolist()
        self.parent = events.parent.tolist()
        self.name = [trace.strings[name] for name in events.name.tolist()]

    def rows(self, *kinds: EventKind) -> list[int]:
        return [row for row, kind in enumerate(self.kind) if kind in kinds]

    def duration(self, row: int) -> int:
        return int(self.end[row] - self.start[row])

    def around(self, row: int) -> Iterator[int]:
        """The event and all events around it, from the inside out."""
        while row >= 0:
            yield row
            row = self.parent[row]

    def outside(self, row: int) -> list[int]:
        """All events around an event, without itself."""
        return list(self.around(row))[1:]

    def operator(self, row: int) -> int:
        """The innermost operator at or around an event; -1 for none."""
        inside_out = (at for at in self.around(row) if self.kind[at] == EventKind.OPERATOR)
        return next(inside_out, -1)

    def device(self, row: int) -> int:
        return int(self.trace.tracks.device[self.track[row]])

    def waits(self) -> list[int]:
        """Calls that return when the device has finished something."""
        found = set()
        for row in self.rows(EventKind.SYNCHRONIZE):
            before = [
                self.end[other]
                for other in self.rows(EventKind.SYNCHRONIZE)
                if other < row and self.track[other] == self.track[row]
            ]
            if self.start[row] >= max(before, default=-1):
                found.add(row)
        found |= {row for row in self.rows(EventKind.LAUNCH) if self.name[row] == "cudaMemcpy"}
        copies = self.trace.copies
        for place, row in enumerate(copies.row.tolist()):
            is_to_host = copies.direction[place] == CopyDirection.DEVICE_TO_HOST
            if is_to_host and copies.pageable[place] == 1 and self.launch[row] >= 0:
                found.add(self.launch[row])
        return sorted(found)


@examples(40)
@given(randoms)
def test_the_busiest_device(random: Random) -> None:
    trace = random_trace(random)
    plain, timeline = Plain(trace), device_timeline(trace)
    work = plain.rows(*BUSY_KINDS)
    if not work:
        assert timeline.index is None
        return
    cells: dict[int, set[int]] = {}
    for row in work:
        span = range(plain.start[row], plain.end[row], CELL_NS)
        cells.setdefault(plain.device(row), set()).update(span)
    busiest = max(sorted(cells), key=lambda device: len(cells[device]))
    assert timeline.index == busiest
    assert timeline.rows.tolist() == [row for row in work if plain.device(row) == busiest]
    assert timeline.busy.tolist() == intervals_of({at // CELL_NS for at in cells[busiest]}).tolist()
    computing = {
        plain.device(row) for row in plain.rows(EventKind.KERNEL, EventKind.COLLECTIVE)
    } or set(cells)
    assert used_devices(trace) == tuple(sorted(computing))
    assert existing_devices(trace) == tuple(sorted(cells))
    assert (timeline.used, timeline.is_missing) == (len(computing), False)


@examples(80)
@given(randoms)
def test_waits_and_the_idle_time_that_they_induce(random: Random) -> None:
    trace = random_trace(random)
    plain, idle = Plain(trace), random_cells(random, 6)
    begin, end = sorted((random.randrange(CELLS), random.randrange(CELLS)))
    found = find_synchronizations(trace, intervals_of(idle), begin * CELL_NS, end * CELL_NS)
    assert waiting_calls(trace).tolist() == plain.waits()
    first_work: dict[int, int] = {}
    for row in range(len(plain.start)):
        if plain.launch[row] >= 0:
            first_work.setdefault(plain.launch[row], plain.start[row])
    expected = []
    covered = -1
    induced: set[int] = set()
    for row in plain.waits():
        start_ns, return_ns = plain.start[row], plain.end[row]
        launches = [
            launch
            for launch in sorted(first_work)
            if plain.track[launch] == plain.track[row] and plain.start[launch] >= return_ns
        ]
        if return_ns <= begin * CELL_NS or start_ns >= end * CELL_NS or not launches:
            continue
        until_ns = return_ns
        if first_work[launches[0]] > return_ns:
            until_ns = min(first_work[launches[0]], return_ns + plain.duration(row))
        cells = idle.intersection(range(start_ns // CELL_NS, until_ns // CELL_NS))
        induced |= cells
        new = len([cell for cell in cells if cell >= covered])
        covered = max(covered, until_ns // CELL_NS)
        expected.append((row, plain.duration(row), launches[0], until_ns, new * CELL_NS))
    columns = (found.row, found.duration_ns, found.next_launch, found.until_ns, found.induced_ns)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
    assert found.induced.tolist() == intervals_of(induced).tolist()
    assert found.induced_ns.sum() == len(induced) * CELL_NS
    operators = plain.rows(EventKind.OPERATOR)
    waited = operator_wait_ns(trace, np.array(operators, dtype=int), launching_operator(trace))
    assert waited.tolist() == [
        sum(plain.duration(row) for row in plain.waits() if plain.operator(row) == operator)
        for operator in operators
    ]


@examples(40)
@given(randoms)
def test_by_when_work_must_have_ended(random: Random) -> None:
    builder = TraceBuilder()
    at = 0
    for number in range(random.randint(1, 8)):
        start, at = at, at + random.randint(0, 3)
        name = random.choice(("cudaLaunchKernel", "cudaMemcpy"))
        builder.launch(start, at, name=name, thread=random.choice("ab"), key=str(number))
        device, stream = random.choice(((0, 7), (0, 7), (0, 7), (0, 8), (1, 7)))
        by = str(number) if random.random() < 0.8 else ""
        builder.kernel("k", at, at + 1, device=device, stream=stream, launched_by=by)
        if random.random() < 0.6:
            start, at = at + random.randint(0, 1), at + random.randint(1, 3)
            name = random.choice(
                ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize")
            )
            builder.synchronize(start, max(at, start), name=name, thread=random.choice("ab"))
            at = max(at, start)
    trace = builder.build()
    plain, work = Plain(trace), stream_work(trace)
    assert work.tolist() == plain.rows(*BUSY_KINDS)
    streams = {plain.track[row] for row in work.tolist()}
    is_one_device = len({plain.device(row) for row in work.tolist()}) == 1
    for_all = {"cudaDeviceSynchronize"} | (
        {"cudaStreamSynchronize"} if len(streams) == 1 else set()
    )
    expected = []
    for row in work.tolist():
        launch = plain.launch[row]
        returns = [plain.end[launch]] if launch >= 0 and launch in plain.waits() else []
        if launch >= 0 and is_one_device:
            returns += [
                plain.end[wait]
                for wait in plain.waits()
                if plain.name[wait] in for_all and plain.start[wait] >= plain.end[launch]
            ]
        expected.append(min(returns, default=NEVER))
    assert deadlines(trace, work).tolist() == expected


@examples(40)
@given(randoms)
def test_operators_and_where_they_run(random: Random) -> None:
    trace = random_trace(random)
    plain, around = Plain(trace), launching_operator(trace)
    assert around.tolist() == [plain.operator(row) for row in range(len(plain.start))]
    operators, work = plain.rows(EventKind.OPERATOR), plain.rows(*BUSY_KINDS)
    is_used = np.array([random.random() < 0.7 for _ in plain.start], dtype=bool)
    input_cells = random_cells(random, 1)

    def launcher(row: int) -> int:
        return plain.operator(plain.launch[row]) if plain.launch[row] >= 0 else -1

    by_operator = [
        sum(plain.duration(row) for row in work if launcher(row) == operator)
        for operator in range(len(plain.start))
    ]
    device_rows = np.array(work, dtype=np.int32)
    assert launched_ns(trace, around, device_rows).tolist() == by_operator
    self_ns = {
        row: max(
            plain.duration(row)
            - sum(
                plain.duration(inner)
                for inner in operators
                if plain.parent[inner] >= 0 and plain.operator(plain.parent[inner]) == row
            ),
            0,
        )
        for row in operators
    }
    rows = np.array(operators, dtype=np.int32)
    assert operator_self_ns(trace, rows, around).tolist() == list(self_ns.values())
    feeding = (EventKind.INPUT_WAIT, EventKind.INPUT_WORK)
    table = trace.operators
    place = {row: at for at, row in enumerate(table.row.tolist())}
    expected: dict[tuple[int, int, int], list[int]] = {}
    for row in operators:
        is_fed = any(plain.kind[at] in feeding for at in plain.around(row))
        if is_fed or not (is_used[row] or by_operator[row]):
            continue
        at = place.get(row)
        shapes, dtypes = (-1, -1) if at is None else (int(table.shapes[at]), int(table.dtypes[at]))
        sums = expected.setdefault((int(trace.events.name[row]), shapes, dtypes), [0, 0, 0])
        sums[0] += int(is_used[row])
        sums[1] += self_ns[row] if is_used[row] else 0
        sums[2] += by_operator[row]
    totals = operator_totals(trace, around, device_rows, is_used)
    keys = zip(totals.name.tolist(), totals.shapes.tolist(), totals.dtypes.tolist(), strict=True)
    sums_found = zip(
        totals.count.tolist(), totals.self_ns.tolist(), totals.device_ns.tolist(), strict=True
    )
    assert {key: list(sums) for key, sums in zip(keys, sums_found, strict=True)} == expected

    placement = find_placement(trace, around, intervals_of(input_cells), is_used)
    launchers = {launcher(row) for row in work}
    if work and launchers == {-1}:
        assert not len(placement.host_rows)
        assert placement.share_by_count is None
        return
    launching = launchers | {plain.operator(row) for row in plain.rows(EventKind.LAUNCH)}
    holding = {at for row in launching if row >= 0 for at in plain.around(row)}

    candidates = [
        row
        for row in operators
        if is_used[row]
        and plain.name[row] in COMPUTING
        and row not in holding
        and plain.start[row] // CELL_NS not in input_cells
    ]
    # An operator that runs one of its own name calls it for its shapes, with all that is inside.
    repeated = {
        row
        for row in candidates
        if any(at in holding and plain.name[at] == plain.name[row] for at in plain.outside(row))
    }
    host = [
        row
        for row in candidates
        if row not in repeated
        and not repeated.intersection(plain.outside(row))
        and not any(
            plain.start[other] <= plain.start[row] < plain.end[other]
            for other in plain.rows(EventKind.COMPILE)
        )
    ]
    outermost = [row for row in host if not set(host).intersection(plain.outside(row))]
    assert placement.host_rows.tolist() == outermost
    assert placement.host_count == len(outermost)
    assert placement.host_ns == sum(plain.duration(row) for row in outermost)
    used = [row for row in operators if is_used[row]]
    assert placement.device_count == len([row for row in used if row in launching])
    device_ns = sum(by_operator[row] for row in used)
    assert placement.device_ns == device_ns
    count = placement.device_count + placement.host_count
    assert placement.share_by_count == (placement.device_count / count if count else None)
    time_ns = device_ns + placement.host_ns
    assert placement.share_by_time == (device_ns / time_ns if time_ns else None)


@examples(40)
@given(randoms)
def test_precision_of_kernels(random: Random) -> None:
    trace = random_trace(random)
    plain = Plain(trace)
    rows = trace.rows(*BUSY_KINDS)
    table = trace.kernels
    named = dict(zip(table.row.tolist(), table.precision.tolist(), strict=True))
    types = {
        row: trace.strings[dtypes] if dtypes >= 0 else ""
        for row, dtypes in zip(
            trace.operators.row.tolist(), trace.operators.dtypes.tolist(), strict=True
        )
    }
    widths = {"c10::Half": Precision.BITS_16, "float": Precision.BITS_32}
    widths["double"] = Precision.BITS_64
    order = [Precision.BITS_16, Precision.BITS_32, Precision.BITS_64]
    expected = []
    for row in rows.tolist():
        width = Precision(named.get(row, Precision.UNKNOWN))
        launch = plain.launch[row]
        if width == Precision.UNKNOWN and plain.kind[row] == EventKind.KERNEL and launch >= 0:
            texts = types.get(plain.operator(launch), "").split(";")
            known = [widths[text] for text in texts if text in widths]
            width = min(known, key=order.index, default=Precision.UNKNOWN)
        expected.append(int(width))
    assert effective_precision(trace, rows).tolist() == expected


@examples(40)
@given(randoms)
def test_what_a_thread_did(random: Random) -> None:
    trace = random_trace(random)
    plain, cells, track = Plain(trace), random_cells(random), random.randrange(3)
    found = host_activity(trace, track, intervals_of(cells))
    telling = {
        EventKind.OPERATOR, EventKind.ANNOTATION, EventKind.PYTHON, EventKind.SYNCHRONIZE,
        EventKind.ALLOCATE, EventKind.COMPILE, EventKind.HOST_COLLECTIVE,
    }  # fmt: skip
    began = [
        row
        for row, kind in enumerate(plain.kind)
        if kind in telling and plain.track[row] == track and plain.start[row] // CELL_NS in cells
    ]
    rows = [row for row in began if plain.parent[row] not in began]
    assert found.rows.tolist() == rows
    inside: dict[str, int] = {}
    count: dict[str, int] = {}
    covered: set[int] = set()
    for row in rows:
        of_row = cells.intersection(range(plain.start[row] // CELL_NS, plain.end[row] // CELL_NS))
        name = plain.name[row]
        inside[name] = inside.get(name, 0) + len(of_row) * CELL_NS
        count[name] = count.get(name, 0) + 1
        covered |= of_row
    assert dict(zip(found.names, found.inside_ns, strict=True)) == inside
    assert dict(zip(found.names, found.count, strict=True)) == count
    assert list(found.inside_ns) == sorted(found.inside_ns, reverse=True)
    assert found.covered.tolist() == intervals_of(covered).tolist()


@examples(40)
@given(randoms)
def test_the_busiest_host_thread(random: Random) -> None:
    trace = random_trace(random, has_device=random.random() < 0.3)
    plain = Plain(trace)
    kinds = (
        EventKind.LAUNCH, EventKind.OPERATOR, EventKind.ANNOTATION, EventKind.PYTHON,
        EventKind.COMPILE,
    )  # fmt: skip
    for kind in kinds:
        rows = [
            row
            for row in plain.rows(kind)
            if trace.tracks.kind[plain.track[row]] == TrackKind.HOST_THREAD
        ]
        if not rows:
            continue
        outer = [row for row in rows if plain.parent[row] < 0 or kind == EventKind.LAUNCH] or rows
        time_ns: dict[int, int] = {}
        for row in outer:
            track = plain.track[row]
            time_ns[track] = time_ns.get(track, 0) + plain.duration(row) + 1
        assert busiest_host_track(trace) == max(sorted(time_ns), key=lambda at: time_ns[at])
        return
    assert busiest_host_track(trace) == -1


@examples(25)
@given(randoms)
def test_the_innermost_marked_event(random: Random) -> None:
    trace = random_trace(random)
    plain = Plain(trace)
    is_marked = np.array([random.random() < 0.3 for _ in plain.start], dtype=bool)
    rows = np.arange(-1, len(plain.start), dtype=np.int32)
    assert innermost_marked(trace.events.parent, rows, is_marked).tolist() == [
        next((at for at in plain.around(row) if is_marked[at]), -1) for row in rows.tolist()
    ]
