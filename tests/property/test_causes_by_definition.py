"""The cause of each moment, gaps and waits, worked out cell by cell from their definitions."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tb_perfadvisor.signals import Cause
from tb_perfadvisor.signals.core.attribution import attribute, kernel_totals
from tb_perfadvisor.signals.core.device import DeviceTimeline, device_timeline
from tb_perfadvisor.signals.core.idle_gaps import Idle
from tb_perfadvisor.signals.core.steps.steps import Steps
from tb_perfadvisor.signals.core.steps.windows import Pace, Side
from tb_perfadvisor.trace import BUSY_KINDS, EventKind, Precision, Trace
from tb_perfadvisor.trace.soundness import Soundness
from tests.support.night import examples
from tests.support.random_traces import (
    CELL_NS,
    CELLS,
    PRECISIONS,
    cells_of,
    intervals_of,
    random_cells,
    random_trace,
)

LATENCY_CELLS = 2
ALWAYS, NEVER = -(10**9), 10**9
randoms = st.integers(0, 2**32).map(Random)

HOST_CAUSES = (
    (Cause.COMPILING, {EventKind.COMPILE}),
    (Cause.ALLOCATING, {EventKind.ALLOCATE}),
    (Cause.SYNCHRONIZATION, {EventKind.SYNCHRONIZE}),
    (Cause.LAUNCHING, {EventKind.LAUNCH, EventKind.RUNTIME}),
    (Cause.FRAMEWORK, {EventKind.OPERATOR, EventKind.HOST_COLLECTIVE}),
    (Cause.PYTHON, {EventKind.PYTHON}),
)


class Row:
    """An event in cells."""

    def __init__(self, trace: Trace, row: int) -> None:
        events = trace.events
        self.row, self.kind = row, EventKind(int(events.kind[row]))
        self.start = int(events.start_ns[row]) // CELL_NS
        self.end = int(events.end_ns[row]) // CELL_NS
        self.track, self.launch = int(events.track[row]), int(events.launched_by[row])
        self.stream = int(trace.tracks.thread[self.track])

    @property
    def turn(self) -> tuple[int, bool, int]:
        """Its place among the device's work, whatever the order of a file is."""
        return self.start, self.kind == EventKind.COLLECTIVE, self.stream

    def covers(self, cell: int) -> bool:
        return self.start <= cell < self.end


def rows_of(trace: Trace) -> list[Row]:
    return [Row(trace, row) for row in range(len(trace.events))]


def is_doing(rows: list[Row], track: int, kinds: set[EventKind], cell: int) -> bool:
    return any(row.track == track and row.kind in kinds and row.covers(cell) for row in rows)


def queued_since(work: list[Row], rows: list[Row], row: Row) -> int:
    """The cell since when some work was queued; `NEVER` if its launch tells nothing."""
    if row.launch >= 0:
        return rows[row.launch].end + LATENCY_CELLS
    linked = [other for other in work if other.launch >= 0]
    if not any(other.kind == row.kind for other in linked):
        return NEVER
    on_stream = [rows[other.launch].start for other in linked if other.track == row.track]
    first_launch = min(on_stream or [rows[other.launch].start for other in linked])
    return ALWAYS if row.start < first_launch else NEVER


class Gap:
    """A gap of the device within the window, and what ended it."""

    def __init__(
        self, work: list[Row], rows: list[Row], cells: list[int], window: tuple[int, int]
    ) -> None:
        self.start, self.end = max(cells[0], window[0]), min(cells[-1] + 1, window[1])
        after = sorted((row for row in work if row.start > cells[-1]), key=lambda row: row.turn)
        self.next_row = after[0].row if after else -1
        since = [(queued_since(work, rows, row), row.launch) for row in after]
        telling = [(queued, launch) for queued, launch in since if queued != NEVER]
        queued, self.launch = telling[0] if telling else (NEVER, -1)
        self.queued_from = min(max(queued, self.start), self.end)


def gaps_of(work: list[Row], rows: list[Row], window: tuple[int, int]) -> list[Gap]:
    first = min([window[0], *(row.start for row in work)])
    last = max([window[1], *(row.end for row in work)])
    gaps: list[Gap] = []
    cells: list[int] = []
    for cell in range(first, last + 1):
        if cell < last and not any(row.covers(cell) for row in work):
            cells.append(cell)
        elif cells:
            if cells[-1] >= window[0] and cells[0] < window[1]:
                gaps.append(Gap(work, rows, cells, window))
            cells = []
    return gaps


def device_cause(work: list[Row], precision: dict[int, Precision], cell: int) -> Cause | None:
    """The cause of a cell in which the device works; None if it idles."""
    running = [row for row in work if row.covers(cell)]
    widths = {precision[row.row] for row in running if row.kind == EventKind.KERNEL}
    for width, cause in (
        (Precision.BITS_8, Cause.COMPUTE_8),
        (Precision.BITS_16, Cause.COMPUTE_16),
        (Precision.BITS_32, Cause.COMPUTE_32),
        (Precision.BITS_64, Cause.COMPUTE_64),
        (Precision.UNKNOWN, Cause.COMPUTE_UNKNOWN),
    ):
        if width in widths:
            return cause
    kinds = {row.kind for row in running}
    if EventKind.COLLECTIVE in kinds:
        return Cause.COMMUNICATION
    return Cause.COPIES if kinds & {EventKind.COPY, EventKind.MEMSET} else None


def host_cause(
    trace: Trace, rows: list[Row], tracks: tuple[int, ...], between: set[int], cell: int
) -> Cause:
    """What threads do in a cell, by the order of causes."""
    fetching = tracks
    if trace.source.framework == "tensorflow":
        fetching = tuple(range(len(trace.tracks)))
    if any(is_doing(rows, track, {EventKind.INPUT_WAIT}, cell) for track in fetching):
        return Cause.INPUT
    if cell in between:
        return Cause.BETWEEN_STEPS
    for cause, kinds in HOST_CAUSES:
        if any(is_doing(rows, track, kinds, cell) for track in tracks):
            return cause
    return Cause.UNEXPLAINED


def host_only_cause(
    trace: Trace, rows: list[Row], step_track: int, between: set[int], cell: int
) -> Cause:
    """The cause of a cell of a program on the CPU."""
    operators, feeding = {EventKind.OPERATOR}, {EventKind.INPUT_WAIT, EventKind.INPUT_WORK}
    tracks = list(range(len(trace.tracks)))
    if trace.source.framework == "pytorch":
        tracks, feeding = [step_track], {EventKind.INPUT_WAIT, EventKind.COMPILE}
    if any(
        is_doing(rows, track, operators, cell) and not is_doing(rows, track, feeding, cell)
        for track in tracks
    ):
        return Cause.HOST_COMPUTE
    collectives = {EventKind.HOST_COLLECTIVE}
    if any(is_doing(rows, track, collectives, cell) for track in range(len(trace.tracks))):
        return Cause.COMMUNICATION
    return host_cause(trace, rows, (step_track,), between, cell)


def steps_of(random: Random, start: int, end: int) -> Steps:
    bounds = sorted({start, end, *(random.randint(start, end) for _ in range(2))})
    at_ns = np.array(bounds, dtype=np.int64) * CELL_NS
    return Steps(
        source="drawn",
        pace=Pace(Side.HOST, 0.0, 0.0),
        start_ns=at_ns[:-1],
        end_ns=at_ns[1:],
        host_start_ns=at_ns[:-1],
        host_end_ns=at_ns[1:],
        excluded=(),
        window_start_ns=start * CELL_NS,
        window_end_ns=end * CELL_NS,
        owner=np.empty(0, dtype=np.int32),
    )


def assert_same_gaps(idle: Idle, gaps: list[Gap]) -> None:
    assert (idle.start_ns // CELL_NS).tolist() == [gap.start for gap in gaps]
    assert (idle.end_ns // CELL_NS).tolist() == [gap.end for gap in gaps]
    assert idle.next_row.tolist() == [gap.next_row for gap in gaps]
    assert idle.launch_row.tolist() == [gap.launch for gap in gaps]
    assert (idle.queued_from_ns // CELL_NS).tolist() == [gap.queued_from for gap in gaps]
    assert idle.is_queued.tolist() == [gap.queued_from == gap.start for gap in gaps]


@examples(60)
@given(randoms, st.booleans())
def test_causes_of_a_device(random: Random, is_tensorflow: bool) -> None:
    trace = random_trace(random, framework="tensorflow" if is_tensorflow else "pytorch")
    unrecorded, waits = random_cells(random, 1), random_cells(random, 1)
    trace = replace(trace, soundness=Soundness(not_recorded=intervals_of(unrecorded)))
    timeline = device_timeline(trace)
    if timeline.index is None:
        return
    timeline = replace(timeline, waits=intervals_of(waits))
    rows = rows_of(trace)
    work = [rows[row] for row in timeline.rows.tolist()]
    width = {row.row: random.choice(PRECISIONS) for row in work}
    start = random.randrange(CELLS // 2)
    end = start + random.randrange(1, CELLS)
    between = random_cells(random, 2)
    step_track = random.choice((-1, 0, 1))
    found = attribute(
        trace,
        timeline,
        steps := steps_of(random, start, end),
        np.array([width[row.row] for row in work], dtype=np.uint8),
        intervals_of(between),
        step_track,
    )
    gaps = gaps_of(work, rows, (start, end))
    assert_same_gaps(found.idle, gaps)
    expected: dict[Cause, set[int]] = {cause: set() for cause in Cause}
    for cell in range(start, end):
        cause = device_cause(work, width, cell)
        if cause is None and cell in unrecorded:
            cause = Cause.NOT_RECORDED
        if cause is None and cell in waits:
            cause = Cause.INPUT
        if cause is None:
            gap = next(gap for gap in gaps if gap.start <= cell < gap.end)
            called = gap.end if gap.launch < 0 else rows[gap.launch].start
            thread = step_track if gap.launch < 0 else rows[gap.launch].track
            if cell >= gap.queued_from:
                cause = Cause.QUEUED
            elif cell >= min(max(called, gap.start), gap.queued_from):
                cause = Cause.LAUNCHING
            else:
                cause = host_cause(trace, rows, (thread, step_track), between, cell)
        expected[cause].add(cell)
    assert {cause: cells_of(part) for cause, part in found.intervals.items()} == expected
    assert_sums(found.step_total_ns, steps, expected)


def assert_sums(found: object, steps: Steps, expected: dict[Cause, set[int]]) -> None:
    bounds = zip(
        (steps.start_ns // CELL_NS).tolist(), (steps.end_ns // CELL_NS).tolist(), strict=True
    )
    windows = [range(begin, end) for begin, end in bounds]
    assert {cause: part.tolist() for cause, part in found.items()} == {  # type: ignore[attr-defined]
        cause: [CELL_NS * len(cells.intersection(window)) for window in windows]
        for cause, cells in expected.items()
    }


@examples(30)
@given(randoms, st.sampled_from(["pytorch", "tensorflow", "jax"]))
def test_causes_of_a_program_on_the_cpu(random: Random, framework: str) -> None:
    trace = random_trace(random, framework=framework, has_device=False)  # type: ignore[arg-type]
    rows = rows_of(trace)
    none = np.empty(0, dtype=np.int32)
    timeline = DeviceTimeline(None, none, none, intervals_of(set()), intervals_of(set()), 0, False)
    start, end = 5, random.randrange(6, CELLS)
    between, step_track = random_cells(random, 2), random.randrange(3)
    steps = replace(steps_of(random, start, end), start_ns=none, end_ns=none)
    found = attribute(
        trace, timeline, steps, none.astype(np.uint8), intervals_of(between), step_track
    )
    expected: dict[Cause, set[int]] = {cause: set() for cause in Cause}
    for cell in range(start, end):
        cause = host_only_cause(trace, rows, step_track, between, cell)
        expected[cause].add(cell)
    assert {cause: cells_of(part) for cause, part in found.intervals.items()} == expected
    busy = {Cause.HOST_COMPUTE, Cause.COMMUNICATION}
    idle = set(range(start, end)) - set().union(*(expected[cause] for cause in busy))
    assert cells_of(np.column_stack((found.idle.start_ns, found.idle.end_ns))) == idle
    assert set(found.idle.next_row.tolist()) <= {-1}
    assert set(found.idle.launch_row.tolist()) <= {-1}
    assert found.idle.queued_from_ns.tolist() == found.idle.end_ns.tolist()


@examples(25)
@given(randoms)
def test_the_time_of_kernels_by_name(random: Random) -> None:
    trace = random_trace(random)
    rows = rows_of(trace)
    start, end = sorted((random.randrange(CELLS), random.randrange(CELLS)))
    found = kernel_totals(trace, trace.rows(*BUSY_KINDS), start * CELL_NS, end * CELL_NS)
    total: dict[str, int] = {}
    count: dict[str, int] = {}
    for row in rows:
        inside = min(row.end, end) - max(row.start, start)
        if row.kind == EventKind.KERNEL and inside > 0:
            name = trace.name(row.row)
            total[name] = total.get(name, 0) + inside * CELL_NS
            count[name] = count.get(name, 0) + 1
    order = sorted(total, key=lambda name: -total[name])  # stable: the first one leads on a tie
    assert [(each.name, each.count, each.total_ns) for each in found] == [
        (name, count[name], total[name]) for name in order
    ]
