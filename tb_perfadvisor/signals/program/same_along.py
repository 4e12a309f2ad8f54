"""Work that is repeated along a dimension because its operands are the same along it.

A broadcast repeats its operand, and arithmetic on repeated elements gives repeated results: the
covariance of a Kalman filter for each track, a mask for each example. Once would be enough.

A dimension is known by its size, where a shape has that size once. So values keep it through
transposes and products without a map of each.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import (
    PRODUCTS,
    Running,
    arithmetic_ns,
    count_of,
    running_programs,
    single_elements_ns,
    total_ns,
)
from tb_perfadvisor.signals.program.loop_work import LEAST_NS, Avoidable, AvoidableWork
from tb_perfadvisor.signals.program.loops import ELEMENTWISE
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.hlo_text import Shape, parse_instruction
from tb_perfadvisor.trace.program import Program

_REORDERED = ("reshape", "bitcast")
_KEPT = ELEMENTWISE | {
    *("all-reduce", "broadcast", "compare", "copy", "dynamic-slice", "pad", "reduce"),
    *("reduce-precision", "slice", "transpose"),
    *("concatenate", "dynamic-update-slice", *PRODUCTS, *_REORDERED),
}
_PUT_TOGETHER = ("concatenate", "dynamic-update-slice")
_IN_PLACE = ("dynamic-slice", "pad", "slice")
_FEWEST = 4
"""Elements along a dimension: fewer repeat little."""


@memoized
def repeated_along(signals: Signals) -> tuple[AvoidableWork, ...]:
    """The operations of each program that compute the same for all elements along a dimension."""
    found = []
    for running in running_programs(signals):
        same = same_sizes(running.program)
        by_size: dict[int, list[str]] = defaultdict(list)
        for name, rows in _rows_of(running).items():
            if size := _repeated(signals, running.program, rows, same):
                by_size[size].append(name)
        found += [_work(signals, running, size, names) for size, names in by_size.items()]
    return tuple(found)


def _work(signals: Signals, running: Running, size: int, names: list[str]) -> AvoidableWork:
    now = {name: total_ns(signals, [running.operations[name]]) for name in names}
    then = {
        name: min(now[name], max(now[name] / size, LEAST_NS * _count(signals, running, name)))
        for name in names
    }
    moved = {name: _moved(running, name) * _count(signals, running, name) for name in names}
    return AvoidableWork(
        running=running,
        trips=size,
        names=tuple(sorted(names, key=lambda name: then[name] - now[name])),
        time_ns=sum(now.values()),
        needed_ns=sum(then.values()),
        moved_bytes=sum(moved.values()),
        border_bytes=sum(moved.values()) / size,
        kind=Avoidable.SAME,
    )


def _count(signals: Signals, running: Running, name: str) -> int:
    return count_of(signals, running.operations[name])


def _moved(running: Running, name: str) -> float:
    instruction = running.operations[name].instruction
    shapes = (*instruction.operands, *instruction.results)
    return float(sum(shape.padded_bytes for shape in shapes))


def _rows_of(running: Running) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = defaultdict(list)
    for row in range(len(running.program)):
        if (name := running.program.kernel_of(row)) in running.operations:
            rows[name].append(row)
    return rows


def _repeated(
    signals: Signals, program: Program, rows: list[int], same: list[frozenset[int]]
) -> int:
    """The size along which all that an operation computes is the same; 0 if there is none.

    What takes less than the whole may differ, such as arithmetic on a counter.
    """
    cost = {row: _cost_ns(signals, program, row) for row in rows}
    largest = max(cost.values())
    if not largest:
        return 0
    costly = [row for row in rows if cost[row] > largest / _FEWEST]
    sizes = frozenset.intersection(*(_computed(program, row, same) for row in costly))
    return max((size for size in sizes if size >= _FEWEST), default=0)


def _computed(program: Program, row: int, same: list[frozenset[int]]) -> frozenset[int]:
    """The sizes along which a value is computed again and again."""
    name = program.name_of(row)
    if name == "reduce":  # also where the repeated dimension is summed up
        return frozenset.union(*(same[of] for of in program.operands(row, 0)), frozenset())
    return same[row]


def _cost_ns(signals: Signals, program: Program, row: int) -> float:
    if program.name_of(row) in PRODUCTS:
        return arithmetic_ns(signals, program, [row]) or 0.0
    return single_elements_ns(signals, program, row)


def same_sizes(program: Program) -> list[frozenset[int]]:
    """The sizes of the dimensions along which each value is the same, by row.

    Begins with all dimensions and takes away what may differ, so that what a loop passes on stays
    the same if it begins so and each trip keeps it so.
    """
    users: dict[int, list[int]] = {row: program.users(row) for row in range(len(program))}
    same = [_sizes(program.shape_of(row)) for row in users]
    pending = set(users)
    while pending:
        row = pending.pop()
        kept = same[row] & _kept(program, row, same)
        if kept != same[row]:
            same[row] = kept
            pending.update(users[row])
    return same


def _sizes(shape: Shape) -> frozenset[int]:
    return frozenset(size for size, count in Counter(shape.dims).items() if count == 1 and size > 1)


def _kept(program: Program, row: int, same: list[frozenset[int]]) -> frozenset[int]:
    """The sizes along which a value is the same if its operands are."""
    name, shape = program.name_of(row), program.shape_of(row)
    operands = program.operands(row)
    if name not in _KEPT or not operands or _has_no_begin(program, row):
        return frozenset()
    sizes = _sizes(shape)
    if name == "broadcast":
        places = program.dimensions.get(row, ())
        spread = {shape.dims[place] for place in places if place < len(shape.dims)}
        kept = frozenset.intersection(*(same[of] for of in operands))
        return (sizes - spread) | (sizes & spread & kept)
    if name in _REORDERED:
        sizes = frozenset(
            s for s in sizes if all(_is_in_place(program, row, of, s) for of in operands)
        )
    elif name in _PUT_TOGETHER:
        # Each array has to have all of the dimension.
        arrays = operands if name == "concatenate" else _updated(program, row)
        sizes = frozenset(s for s in sizes if all(s in program.shape_of(of).dims for of in arrays))
    elif name in _IN_PLACE:
        sizes = frozenset(
            s
            for s in sizes
            if all(
                s in (dims := program.shape_of(of).dims) and dims.index(s) == shape.dims.index(s)
                for of in program.operands(row, 0)
            )
        )
    elif name in PRODUCTS:
        sizes = frozenset(s for s in sizes if _is_no_window(program, row, s))
    return _along(program, operands, same, sizes)


def _has_no_begin(program: Program, row: int) -> bool:
    """Whether a value takes in what a trip passes on, without what the first trip begins with."""
    slots = {slot: program.operands(row, slot) for slot in range(3)}
    return any(reads and min(reads) >= row for reads in slots.values())


def _updated(program: Program, row: int) -> list[int]:
    """The array that a part is written into, and the part."""
    return [*program.operands(row, 0), *program.operands(row, 1)]


def _along(
    program: Program, operands: Iterable[int], same: list[frozenset[int]], sizes: frozenset[int]
) -> frozenset[int]:
    """Those of some sizes along which no operand differs."""
    for of in operands:
        sizes -= frozenset(program.shape_of(of).dims) - same[of]
    return sizes


def _is_in_place(program: Program, row: int, of: int, size: int) -> bool:
    """Whether a renamed array has a dimension at the same place in memory, or in order."""
    is_bitcast = program.name_of(row) == "bitcast"
    places = []
    for shape in (program.shape_of(row), program.shape_of(of)):
        stored = tuple(reversed(shape.minor_to_major)) if is_bitcast else ()
        order = stored or range(len(shape.dims))
        dims = [shape.dims[place] for place in order]
        if dims.count(size) != 1:
            return False
        before = 1
        for dim in dims[: dims.index(size)]:
            before *= dim
        places.append(before)
    return places[0] == places[1]


def _is_no_window(program: Program, row: int, size: int) -> bool:
    """Whether a product does not slide a window along a dimension."""
    product = parse_instruction(program.texts.get(row, ""))
    if product is None:
        return False
    if product.labels is None:
        return True
    dims = zip(product.labels[2], program.shape_of(row).dims, strict=False)
    return any(dim == size and not label.isdigit() for label, dim in dims)
