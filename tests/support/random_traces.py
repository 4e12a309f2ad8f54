"""Small random traces whose times are whole cells, which plain loops can count."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

from tb_perfadvisor.testing import TraceBuilder
from tb_perfadvisor.trace import CopyDirection, EventKind, Framework, Precision, Trace
from tb_perfadvisor.trace.intervals import Intervals, union

CELL_NS = 10_000
"""Half of the launch latency, so that launches are often just queued, and often just not."""
CELLS = 60
HOST_KINDS = (
    EventKind.INPUT_WAIT, EventKind.COMPILE, EventKind.ALLOCATE, EventKind.SYNCHRONIZE,
    EventKind.LAUNCH, EventKind.RUNTIME, EventKind.OPERATOR, EventKind.PYTHON,
    EventKind.ANNOTATION, EventKind.OVERHEAD, EventKind.HOST_COLLECTIVE, EventKind.INPUT_WORK,
    # Most of what threads do is to run operators, and to wait for them.
    EventKind.OPERATOR, EventKind.OPERATOR, EventKind.OPERATOR, EventKind.OPERATOR,
    EventKind.SYNCHRONIZE,
)  # fmt: skip
PRECISIONS = tuple(Precision)
LAUNCHES = ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemcpy")
"""The last one returns when its copy is done."""
OPERATORS = ("aten::mm", "aten::add", "aten::linear", "aten::view", "aten::to")
"""The first three compute."""


def random_trace(
    random: Random, *, framework: Framework = "pytorch", has_device: bool = True
) -> Trace:
    """Three host threads and, on devices, three streams with gaps; most work has a launch."""
    builder = TraceBuilder(framework)
    launches: list[tuple[int, str]] = []
    if random.random() < 0.3:  # the first event is an operator that launches work
        builder.operator("aten::add", 0, 2 * CELL_NS, launches=False, dtypes=["c10::Half"])
        builder.launch(CELL_NS, 2 * CELL_NS, key="first")
        launches.append((1, "first"))
    for thread in ("main", "other", "pool"):
        for number in range(random.randint(0, 11)):
            begin = random.randrange(CELLS)
            end = begin + random.choice((0, 1, 1, 2, 3, 5, 8, 20))
            kind = random.choice(HOST_KINDS)
            if kind == EventKind.LAUNCH or (has_device and random.random() < 0.3):
                key = f"{thread} {number}"
                end = min(end, begin + 3)
                name = random.choice(LAUNCHES)
                builder.launch(begin * CELL_NS, end * CELL_NS, name=name, thread=thread, key=key)
                launches.append((begin, key))
            elif kind == EventKind.OPERATOR:
                name = random.choice(OPERATORS)
                shapes = random.choice((None, None, [[2, 3], [3, 4]], [[8]]))
                dtypes = random.choice(
                    (None, None, ["float", "double"], ["c10::Half", "float"], ["int"])
                )
                builder.operator(
                    name, begin * CELL_NS, end * CELL_NS, thread=thread, launches=False,
                    shapes=shapes, dtypes=dtypes,
                )  # fmt: skip
            elif kind == EventKind.HOST_COLLECTIVE:
                builder.collective("gloo:all_reduce", begin * CELL_NS, end * CELL_NS, thread=thread)
            else:
                name = f"{kind.name} {random.randrange(3)}"
                builder.host(kind, name, begin * CELL_NS, end * CELL_NS, thread=thread)
    if random.random() < 0.3:  # the last event is an operator of its own
        end_ns = 2 * CELLS * CELL_NS
        builder.operator("aten::mm", end_ns, end_ns + CELL_NS, launches=False, dtypes=["double"])
    if has_device:
        for device, stream in ((0, 7), (0, 20), (1, 7)):
            _fill_stream(builder, random, device, stream, launches)
    return builder.build()


def _fill_stream(
    builder: TraceBuilder,
    random: Random,
    device: int,
    stream: int,
    launches: list[tuple[int, str]],
) -> None:
    cell = random.randrange(CELLS // 2)
    while cell < CELLS and random.random() < 0.9:
        begin, end = cell * CELL_NS, (cell + random.choice((1, 1, 2, 3, 6))) * CELL_NS
        earlier = [key for at, key in launches if at <= cell]
        by = random.choice(earlier) if earlier and random.random() < 0.8 else ""
        place: Any = {"device": device, "stream": stream, "launched_by": by}
        what = random.random()
        if what < 0.6:
            name = f"kernel {random.randrange(4)}"
            precision = random.choice(PRECISIONS)
            builder.kernel(name, begin, end, precision=precision, **place)
        elif what < 0.75:
            builder.collective("ncclKernel", begin, end, **place)
        else:
            direction = random.choice(tuple(CopyDirection))
            builder.copy(direction, begin, end, pageable=random.choice((-1, 0, 1)), **place)
        cell = end // CELL_NS + random.choice((0, 0, 1, 2, 4, 7))


def random_cells(random: Random, most: int = 4) -> set[int]:
    """Some stretches of cells."""
    cells: set[int] = set()
    for _ in range(random.randint(0, most)):
        begin = random.randrange(CELLS)
        cells.update(range(begin, begin + random.choice((1, 2, 5, 12))))
    return cells


def intervals_of(cells: set[int]) -> Intervals:
    """The time of some cells."""
    starts = np.array(sorted(cells), dtype=np.int64) * CELL_NS
    return union(starts, starts + CELL_NS)


def cells_of(intervals: Intervals) -> set[int]:
    """The cells of some time, which must begin and end with cells."""
    assert not (intervals % CELL_NS).any()
    bounds = (intervals // CELL_NS).tolist()
    cells = [cell for begin, end in bounds for cell in range(begin, end)]
    assert len(cells) == len(set(cells))
    return set(cells)
