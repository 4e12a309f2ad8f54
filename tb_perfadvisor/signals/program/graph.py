"""Operations that a change makes faster, and the rates that they can reach.

How long an XLA operation needs at least: for its bytes, its products and its other arithmetic.

The arithmetic on single elements comes from the values that the operation computes. A vector unit
computes 1,024 elements per cycle, of cheap operations; divisions, roots and exponentials take
several.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.fitting_sizes import costs_of
from tb_perfadvisor.signals.tpu.memory_time import needed_ns
from tb_perfadvisor.signals.tpu.product_time import flop_time_ns, passes_of, product_flop
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, readers_of, xla_operations
from tb_perfadvisor.trace.hlo_text import Instruction, parse_instruction
from tb_perfadvisor.trace.program import Program
from tb_perfadvisor.units import NS_PER_S

PRODUCTS = ("dot", "convolution")
MOVES = ("bitcast", "copy", "copy-start", "reshape", "transpose", "reduce-precision")
"""Their results have the elements of their operand."""
SAME_ELEMENTS = (*MOVES, "convert")
_MOST_STEPS = 64


class FasterOperation(Struct, frozen=True):
    """An operation that would be faster, with what one execution takes then, in ns."""

    operation: XlaOperation
    expected_ns: float
    best_ns: float
    worst_ns: float


class Running(Struct, frozen=True):
    """A program that runs in the used window, and its operations by name."""

    program: Program
    operations: dict[str, XlaOperation]

    def of(self, rows: Iterable[int]) -> list[XlaOperation]:
        """The operations that compute some values, each once."""
        names = dict.fromkeys(self.program.kernel_of(row) for row in rows)
        return [self.operations[name] for name in names if name in self.operations]

    def with_waits(self, names: Iterable[str]) -> list[str]:
        """Names of operations, with the waits for those that run beside others in their place."""
        waits = {
            start: name
            for name, operation in self.operations.items()
            if operation.opcode.endswith("-done")
            for start in operation.instruction.operand_names
        }
        return [waits.get(name, name) for name in names]


@memoized
def running_programs(signals: Signals) -> tuple[Running, ...]:
    """The programs of the used window; none unless on a TPU or the CPU."""
    by_module: dict[str, dict[str, XlaOperation]] = {}
    for operation in xla_operations(signals):
        module = signals.trace.text(int(signals.trace.hlo.module[operation.op]))
        by_module.setdefault(module, {})[operation.name] = operation
    return tuple(
        Running(program, by_module[program.module])
        for program in signals.trace.programs
        if program.module in by_module
    )


def mean_ns(signals: Signals, operation: XlaOperation) -> float:
    """How long one execution of an operation takes in the used window."""
    times = _times(signals)
    total_ns, count = times.get(operation.op, (0, 1))
    return total_ns / max(count, 1)


def total_ns(signals: Signals, operations: Iterable[XlaOperation]) -> int:
    """How long operations take in the used window."""
    times = _times(signals)
    return sum(times.get(operation.op, (0, 0))[0] for operation in operations)


def count_of(signals: Signals, operation: XlaOperation) -> int:
    """How often an operation runs in the used window."""
    return _times(signals).get(operation.op, (0, 0))[1]


def runs_of(signals: Signals, running: Running) -> int:
    """How often a program runs in the used window, by an operation outside of its loops."""
    program = running.program
    once = (program.runs == 1).nonzero()[0].tolist()
    return max((count_of(signals, operation) for operation in running.of(once)), default=0)


@memoized
def _times(signals: Signals) -> dict[int, tuple[int, int]]:
    hlo = signals.hlo
    times = zip(hlo.total_ns.tolist(), hlo.count.tolist(), strict=True)
    return dict(zip(hlo.op.tolist(), times, strict=True))


def origin(program: Program, row: int, through: Sequence[str] = SAME_ELEMENTS) -> int:
    """What computes the elements of a value that is only moved or converted."""
    for _ in range(_MOST_STEPS):
        operands = program.operands(row, 0) if program.name_of(row) in through else []
        if len(operands) != 1:
            return row
        row = operands[0]
    return row


def readers(program: Program, row: int, through: Sequence[str] = SAME_ELEMENTS) -> Iterator[int]:
    """The values that are computed from the elements of a value, however these are moved."""
    pending, seen = [row], {row}
    while pending:
        for user in program.users(pending.pop()):
            if user in seen:
                continue
            seen.add(user)
            if program.name_of(user) in through:
                pending.append(user)
            else:
                yield user


def takes_known_part(program: Program, row: int) -> bool:
    """Whether a value is a part of its operand, and which part does not depend on data."""
    if program.name_of(row) != "gather":
        return program.name_of(row) in ("slice", "dynamic-slice")
    return all(program.largest_argument[of] <= 1 for of in program.operands(row, 1))


def that_touch(signals: Signals, running: Running, names: Iterable[str]) -> list[XlaOperation]:
    """The operations that compute or read arrays by name, and those that wait for these."""
    wanted = set(names)
    touching = [
        operation
        for operation in running.operations.values()
        if operation.name in wanted or wanted & set(operation.instruction.operand_names)
    ]
    starts = [operation for operation in touching if operation.opcode.endswith("-start")]
    waiting = [reader for reader, _ in readers_of(signals, starts)]
    return list({operation.op: operation for operation in (*touching, *waiting)}.values())


def in_proportion(
    signals: Signals,
    operations: Sequence[XlaOperation],
    saved_ns: tuple[float, float, float],
) -> list[FasterOperation]:
    """Operations that together save some time, each in proportion to its own.

    `saved_ns` is what all executions save at worst, as expected, and at best.
    """
    whole_ns = total_ns(signals, operations)
    if not whole_ns:
        return []
    worst, expected, best = (max(1 - min(part / whole_ns, 1.0), 0.0) for part in saved_ns)
    return [
        FasterOperation(o, now * expected, now * best, now * worst)
        for o in operations
        for now in (mean_ns(signals, o),)
    ]


_LANES = 1024
_FEW_CHANNELS = 16
_USUAL_CLOCK_HZ = 0.94e9
"""Of v4 to v6e; newer chips are faster, so that they need less."""
_USUAL_SIDE = 128
"""Of the matrix units before v6e."""
FREE = ("bitcast", "broadcast", "constant", "iota", "parameter", "partition-id", "replica-id")
_CYCLES = {
    **dict.fromkeys(("exponential", "log", "tanh", "logistic", "divide", "rsqrt", "sqrt"), 6),
    **dict.fromkeys(("power", "sine", "cosine", "erf", "remainder"), 20),
    **dict.fromkeys(("reduce", "reduce-window", "transpose"), 3),
}
_OTHERS = frozenset(
    {
        *("sort", "gather", "scatter", "rng", "rng-bit-generator", "select-and-scatter"),
        *("dynamic-slice", "dynamic-update-slice", "custom-call", "while", "conditional", "call"),
    }
)
"""How long these need depends on more than their size; other rules look at them."""
_TAKE_PART = frozenset({"slice", "dynamic-slice", "gather"})
_PARTS = frozenset({"dynamic-slice", "dynamic-update-slice"})


class OperationNeeds(Struct, frozen=True):
    """An operation, and how long it needs at least."""

    running: Running
    operation: XlaOperation
    rows: tuple[int, ...]
    """The values that it computes, by row of the program."""
    needed_ns: float


@memoized
def operation_needs(signals: Signals) -> tuple[OperationNeeds, ...]:
    """The operations whose need is known, with it; waits, moves and collectives aside.

    Of convolutions of images with a few channels, the need is not known.
    """
    found = []
    for running in running_programs(signals):
        program = running.program
        rows_of: dict[str, list[int]] = defaultdict(list)
        for row in range(len(program)):
            rows_of[program.kernel_of(row)].append(row)
        for name, rows in rows_of.items():
            operation = running.operations.get(name)
            opcodes = {program.name_of(row) for row in rows}
            is_known = operation is not None and not opcodes & _OTHERS
            is_known &= not any(_has_few_channels(program, row) for row in rows)
            if operation is None or not is_known or _is_transfer(operation):
                continue
            need = _needed_ns(signals, running, operation, rows)
            if need is not None:
                found.append(OperationNeeds(running, operation, tuple(rows), need))
    return tuple(found)


def single_elements_ns(signals: Signals, program: Program, row: int) -> float:
    """What one execution of arithmetic on single elements takes on a vector unit."""
    name = program.name_of(row)
    if name in FREE or name in PRODUCTS:
        return 0.0
    if name in _TAKE_PART:
        elements = program.shape_of(row).elements
    elif name == "dynamic-update-slice":
        elements = max(
            (program.shape_of(of).elements for of in program.operands(row, 1)), default=0
        )
    else:
        sizes = (program.shape_of(of).elements for of in program.operands(row))
        elements = max(program.shape_of(row).elements, *sizes, 0)
    return elements * _CYCLES.get(name, 1) * element_ns(signals)


@memoized
def unpriced_operations(signals: Signals) -> frozenset[int]:
    """Rows in the `HloTable` of operations whose time depends on more than the sizes of arrays."""
    return frozenset(
        running.operations[name].op
        for running in running_programs(signals)
        for row in running.program.rows_of(tuple(_OTHERS - _PARTS))
        if (name := running.program.kernel_of(row)) in running.operations
    )


def _has_few_channels(program: Program, row: int) -> bool:
    """Whether a convolution with a window sums up so few channels that its rate is not known.

    The matrix unit multiplies by the channels of one place at a time, or of several, as XLA packs
    them.
    """
    if program.name_of(row) != "convolution":
        return False
    product = parse_instruction(program.texts.get(row, ""))
    if product is None or product.labels is None or len(product.operands) < 2:
        return False
    kernel, labels = product.operands[1], product.labels[1]
    sizes = dict(zip(labels, kernel.dims, strict=False))
    channels, features = sizes.get("i", _FEW_CHANNELS), sizes.get("o", 1)
    return channels < _FEW_CHANNELS and kernel.elements > channels * features


def _is_transfer(operation: XlaOperation) -> bool:
    moves = ("copy", "reshape", "transpose", "all-", "reduce-scatter", "collective")
    return operation.opcode.startswith(moves) or (operation.opcode.endswith(("-start", "-done")))


def _needed_ns(
    signals: Signals, running: Running, operation: XlaOperation, rows: list[int]
) -> float | None:
    """What one execution needs at the rates that are usual; None if unknown."""
    bytes_ns, work_ns = needed_ns(signals, operation), arithmetic_ns(signals, running.program, rows)
    return None if work_ns is None or bytes_ns != bytes_ns else max(bytes_ns, work_ns)


def arithmetic_ns(signals: Signals, program: Program, rows: Iterable[int]) -> float | None:
    """What it takes to compute some values at usual rates, their bytes aside; None if unknown."""
    side = matrix_unit_side(signals)
    flop = elements_ns = 0.0
    for row in rows:
        name = program.name_of(row)
        if name in PRODUCTS:
            product = parse_instruction(program.texts.get(row, ""))
            terms = product_flop(product) if product is not None else None
            if product is None or terms is None:
                return None
            flop += terms * passes_of(product) * _loading(product, terms, side)
        else:
            elements_ns += single_elements_ns(signals, program, row)
    product_ns = flop_time_ns(signals, flop)
    return None if product_ns is None else max(product_ns, elements_ns)


def matrix_unit_side(signals: Signals) -> int:
    """Rows and columns of the device's matrix units."""
    costs = costs_of(signals)
    return costs.array_side if costs is not None else _USUAL_SIDE


def element_ns(signals: Signals) -> float:
    """What a cheap operation on one element takes."""
    costs = costs_of(signals)
    clock_hz = costs.cycles_per_s if costs is not None else _USUAL_CLOCK_HZ
    return NS_PER_S / clock_hz / _LANES


def _loading(product: Instruction, flop: float, side: int) -> float:
    """How much longer a product of few rows, or columns, takes than its FLOP.

    The matrix unit holds a square of one factor. To load it takes as long as to multiply as many
    rows of the other factor as the square has.
    """
    terms = flop / 2
    fewest = min(terms / max(shape.elements, 1) for shape in product.operands[:2])
    return max(side / max(fewest, 1.0), 1.0)
