"""Sizes near those of an operation that XLA's TPU compiler handles faster.

Padding itself says little about time: arithmetic on it may hide behind transfers, and XLA chooses
layouts that need little. So the time with another size comes from a model that was fitted to the
compiler (`hardware/tpu_shape_costs.py`), and is never below what the bytes and the FLOP of the
operation need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite

from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.hardware.tpu_shape_costs import SAVED_RANGE, ShapeCosts, shape_costs
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import achievable_bandwidth, moved_bytes
from tb_perfadvisor.signals.tpu.padding import (
    Multiplication,
    OperationPadding,
    moved_arrays,
    multiplication_of,
    product_of,
)
from tb_perfadvisor.trace.hlo_text import Instruction, Shape, parse_instruction, round_up
from tb_perfadvisor.units import NS_PER_S

_TILES = (128, 8)
_MASKING = 1.4
"""Element-wise work on partial tiles takes more time than their elements, because XLA masks them.
The kernels of attention over 513 positions have 27 % more elements than over 512, and take 40 %
more time on a TPU v6e, by XLA's estimates."""
_EXPLAINED = 1.5
"""An operation that takes at most 1.5 times as long as its bytes is bound by memory, so its time
grows with its bytes. An operation that takes longer does something that the bytes do not show."""


class FittingSize(Struct, frozen=True):
    """A size that makes an operation faster."""

    dimension: str
    """What the size belongs to: rows, contracted or columns of a product, the batch or features of
    a convolution, or several of them; empty for arrays."""
    size: int
    fits: int
    then_share: float
    """Time with this size, relative to now, by the model; for arrays that of their bytes."""
    is_of_arrays: bool = False
    """Whether it is the size of arrays that are only moved."""


class FittedOperation(Struct, frozen=True):
    """An operation that another size makes faster."""

    op: int
    """Row of the `HloTable`."""
    size: FittingSize
    saved_share: float
    """Share of its time that this saves, bounded by its bytes and FLOP."""
    least_share: float
    """Share that it saves at least, if XLA chooses a worse kernel for the size."""
    most_share: float
    """Share that it saves at most, if XLA chooses a better kernel for the size."""
    saved_ns: float
    """Of all its executions."""
    question: str
    """The command that asks the compiler about this size; empty for arrays."""


def costs_of(signals: Signals) -> ShapeCosts | None:
    """The model for the device of this profile; None if there is none for it."""
    facts = signals.device_facts
    return shape_costs(facts.name) if facts is not None else None


def fitting_size(
    costs: ShapeCosts | None,
    instruction: Instruction,
    multiplication: Multiplication | None,
    now_ns: float,
    largest_change: float,
) -> FittingSize | None:
    """The size near an operation's own with the shortest time; None if none is faster.

    Without the model of the device, only arrays are looked at. `now_ns` is the duration of one
    execution. A size may move by `largest_change`, relative to itself.
    """
    sizes: Iterator[FittingSize] = iter(())
    if multiplication is None:
        sizes = _of_arrays(instruction, largest_change)
    elif costs is not None:
        sizes = _of_multiplication(costs, multiplication, instruction, now_ns, largest_change)
    best = min(sizes, key=lambda size: size.then_share, default=None)
    return best if best is not None and best.then_share < 1 else None


def _candidates(size: int, largest_change: float) -> Iterator[int]:
    """Multiples of the tiles next to a size."""
    for tile in _TILES:
        if size % tile:
            yield from (
                fits
                for fits in (size // tile * tile, round_up(size, tile))
                if fits and abs(fits / size - 1) <= largest_change
            )


def _of_multiplication(
    costs: ShapeCosts,
    multiplication: Multiplication,
    instruction: Instruction,
    now_ns: float,
    largest_change: float,
) -> Iterator[FittingSize]:
    """Sizes of a product or convolution, with the time that each takes.

    What the multiplications explain of the time follows the model. The rest of a fusion, such as a
    softmax beside the product, follows the elements of the arrays, with padding.
    """
    arrays = [shape for shape in (*instruction.results, *instruction.operands) if shape.tiles]
    result = max(instruction.results, key=lambda shape: shape.elements)

    def cycles(size: int, fits: int) -> float | None:
        then = multiplication.resized(size, fits)
        found = then.in_tiles(_resized(result, size, fits)).work(costs)
        if found is None:
            return None
        kind, work = found
        # In the layouts that the arrays have; those in on-chip memory cost no bandwidth.
        moved = sum(_resized(a, size, fits).padded_bytes for a in arrays if not a.memory_space)
        return costs.cycles_of_work(
            kind, work._replace(memory_cycles=moved / costs.bytes_per_cycle)
        )

    now = cycles(0, 0)
    if now is None:
        return
    explained = 1.0
    if instruction.opcode == "fusion":
        explained = min(now / costs.cycles_per_s * NS_PER_S / now_ns, 1.0)
    stored = sum(shape.padded_elements for shape in arrays)
    for size in sorted({dim for dims in multiplication.named.values() for dim in dims}):
        named = " and ".join(name for name, dims in multiplication.named.items() if size in dims)
        for fits in _candidates(size, largest_change):
            then = cycles(size, fits)
            if then is None:
                continue
            kept = sum(_resized(shape, size, fits).padded_elements for shape in arrays)
            rest = (kept / max(stored, 1)) ** _MASKING
            share = explained * then / now + (1 - explained) * rest
            yield FittingSize(named, size, fits, share)


def _of_arrays(instruction: Instruction, largest_change: float) -> Iterator[FittingSize]:
    """Sizes with which the arrays of an operation take less room, in the layouts that they have."""
    arrays = [shape for shape in moved_arrays(instruction) if shape.tiles and shape.elements]
    now = sum(shape.padded_bytes for shape in arrays)
    misfits = {size for shape in arrays for _, size, _ in shape.misfits}
    for size in sorted(misfits):
        for fits in _candidates(size, largest_change):
            then = sum(_resized(shape, size, fits).padded_bytes for shape in arrays)
            yield FittingSize("", size, fits, then / now, is_of_arrays=True)


def _resized(shape: Shape, size: int, fits: int) -> Shape:
    dims = tuple(fits if dim == size else dim for dim in shape.dims)
    return Shape(
        shape.dtype, dims, shape.minor_to_major, shape.tiles, shape.memory_space, shape.stored_bits
    )


def least_ns(signals: Signals, instruction: Instruction, flop: float) -> float:
    """What the bytes and the FLOP of an operation need at least; 0 if the peaks are unknown."""
    facts = signals.device_facts
    if facts is None or facts.peaks is None:
        return 0.0
    # Arrays in on-chip memory cost no bandwidth.
    moved = sum(_true_bytes(shape) for shape in moved_arrays(instruction) if not shape.memory_space)
    bandwidth, rate = facts.peaks.memory_bandwidth_bytes_per_s, facts.peaks.flop_per_s("bf16")
    moving_ns = moved / bandwidth * NS_PER_S if bandwidth else 0.0
    computing_ns = flop / rate * NS_PER_S if rate and isfinite(flop) else 0.0
    return max(moving_ns, computing_ns)


def moving_ns(signals: Signals, instruction: Instruction) -> float:
    """What main memory takes for an operation's arrays with all tiles; 0 if it is unknown."""
    bandwidth = achievable_bandwidth(signals)
    return moved_bytes(instruction) / bandwidth * NS_PER_S if bandwidth else 0.0


def _true_bytes(shape: Shape) -> int:
    return shape.elements * (shape.stored_bits or max(shape.element_bits, 8)) // 8


def fit_operations(
    signals: Signals, operations: Sequence[OperationPadding], largest_change: float
) -> tuple[FittedOperation, ...]:
    """The operations that another size makes faster, with the best one of each.

    A size may move by `largest_change`, relative to itself.
    """
    costs, trace = costs_of(signals), signals.trace
    found = []
    for operation in operations:
        instruction = parse_instruction(trace.text(int(trace.hlo.text[operation.op])))
        if instruction is None or not operation.total_ns:
            continue
        flop = float(trace.hlo.flop[operation.op])
        now_ns = operation.total_ns / operation.count
        inside = parse_instruction(trace.text(int(trace.hlo.product[operation.op])))
        multiplication = multiplication_of(instruction, flop, inside)
        size = fitting_size(costs, instruction, multiplication, now_ns, largest_change)
        if size is None:
            continue
        if operation.padding.is_product and costs is not None:
            # A fusion of several products computes with all elements of its arrays.
            size = replace(size, is_of_arrays=False)
        then_ns = now_ns * size.then_share
        if size.is_of_arrays:
            # Only what the bytes explain gets shorter.
            then_ns = now_ns - min(moving_ns(signals, instruction), now_ns) * (1 - size.then_share)
        possible = 1 - least_ns(signals, instruction, flop) / now_ns
        saved = min(1 - then_ns / now_ns, possible)
        if saved > 0:
            low, high = costs.saved_range if costs is not None else SAVED_RANGE
            found.append(
                FittedOperation(
                    operation.op,
                    size,
                    saved,
                    low * saved,
                    min(high * saved, possible),
                    saved * operation.total_ns,
                    _question(costs, multiplication, size),
                )
            )
    return tuple(found)


def _question(
    costs: ShapeCosts | None, multiplication: Multiplication | None, size: FittingSize
) -> str:
    if multiplication is None or costs is None or size.is_of_arrays:
        return ""
    then = multiplication.resized(size.size, size.fits)
    asked = "x".join(
        str(now) if now == other else f"{now},{other}"
        for now, other in zip(multiplication.sizes, then.sizes, strict=True)
    )
    return f"perfadvisor tpu-shapes {multiplication.kind}:{asked} --topology {costs.generation}"


def time_of_batch(
    signals: Signals, operations: Sequence[OperationPadding], batch: int, room: int
) -> float | None:
    """Time of the products of a batch with a larger batch, relative to now; None if unknown.

    By the model, or by the bytes if they explain the time. `room` is the larger batch.
    """
    costs, trace = costs_of(signals), signals.trace
    now = then = 0.0
    for operation in operations:
        instruction = parse_instruction(trace.text(int(trace.hlo.text[operation.op])))
        if instruction is None or operation.batch != (batch, room):
            continue
        product = product_of(instruction, float(trace.hlo.flop[operation.op]))
        ratio = None
        if product is not None and costs is not None and costs.knows(product.kind):
            larger = costs.cycles(product.kind, product.resized(batch, room).sizes)
            ratio = larger / costs.cycles(product.kind, product.sizes)
        elif moving_ns(signals, instruction) * _EXPLAINED >= operation.total_ns / operation.count:
            arrays = moved_arrays(instruction)
            larger = sum(_resized(shape, batch, room).padded_bytes for shape in arrays)
            ratio = larger / sum(shape.padded_bytes for shape in arrays)
        if ratio is None:
            return None
        now += operation.total_ns
        then += operation.total_ns * ratio
    return then / now if now else None
