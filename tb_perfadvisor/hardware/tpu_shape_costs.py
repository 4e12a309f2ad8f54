"""A model of what an operation of a given shape costs on a TPU.

The model has the form

    cycles = start + ((matrix x M + ragged x R + vector x V)^2 + (memory x B)^2)^(1/2)

M are the cycles in which the matrix units multiply, with sizes rounded up to what they take; R the
part of them in a last tile of the contracted size that is not full, which XLA has to mask; V the
registers of 8 x 128 numbers that the vector units work on; B the cycles that main memory takes to
move the operands and the result, in the layout with the least padding. Transfers and arithmetic
overlap, but not perfectly, so the two are added in quadrature.

A kind of operation counts as known if the median error on shapes that were held out is small. Two
shapes that differ in one size have another error in common, so how much of a difference to expect
was looked up for such pairs: `saved_range`.

The five factors were fitted to XLA's TPU compiler, for each kind of operation and each generation
(`cost_models/tpu_shape_model.py`; `tpu_shape_costs.toml` says which version). So the model predicts
the compiler's estimates, which are no measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import hypot, prod
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tb_perfadvisor.hardware.lookup import DeviceSpec, find_device
from tb_perfadvisor.toml_files import parse

_TABLE = Path(__file__).with_name("tpu_shape_costs.toml")
_LANES, _SUBLANES = 128, 8
_ON_CHIP_BYTES = 64 << 20
"""What XLA keeps of a large intermediate result on the chip, of 128 MiB on v5e and v6e."""


_LARGEST_ERROR = 0.15
"""Sizes nearby seldom differ by more, so a larger error says nothing about them."""
SAVED_RANGE = (1 / 3, 2.0)
"""Where nothing was tested: which kernel XLA chooses for a size matters as much as padding."""


class Factors(NamedTuple):
    """How many cycles a kind of operation takes per unit of work."""

    start: float
    matrix: float
    ragged: float
    vector: float
    memory: float


class Work(NamedTuple):
    """The work of an operation, in the model's units."""

    matrix_cycles: float
    ragged_cycles: float
    registers: float
    memory_cycles: float


class ShapeCosts(NamedTuple):
    """The model for one generation of TPUs."""

    generation: str
    cycles_per_s: float
    """Of all cores of the device together."""
    array_side: int
    """Rows and columns of a matrix unit."""
    flop_per_cycle: float
    bytes_per_cycle: float
    factors: dict[str, Factors]
    errors: Mapping[str, float] = MappingProxyType({})
    """Median error on shapes that were held out, by kind; infinite if too few were."""
    saved_range: tuple[float, float] = SAVED_RANGE
    """How many times the saving that the model expects of another size is saved, at least and at
    most, in four of five cases."""

    def knows(self, kind: str) -> bool:
        """Whether the model is good enough for a kind of operation to promise savings by it."""
        return kind in self.factors and self.errors.get(kind, 0.0) <= _LARGEST_ERROR

    def cycles(self, kind: str, sizes: Sequence[int], element_bytes: int = 2) -> float:
        """Estimated cycles of an operation."""
        return self.cycles_of_work(kind, self.work(kind, sizes, element_bytes))

    def cycles_of_work(self, kind: str, work: Work) -> float:
        """Estimated cycles of an operation of a kind, from its work."""
        factors = self.factors[kind]
        arithmetic = (
            work.matrix_cycles * factors.matrix
            + work.ragged_cycles * factors.ragged
            + work.registers * factors.vector
        )
        return factors.start + hypot(arithmetic, work.memory_cycles * factors.memory)

    def work(self, kind: str, sizes: Sequence[int], element_bytes: int = 2) -> Work:
        """The work of an operation, with padding."""
        return _WORK[kind](self, tuple(sizes), element_bytes)

    def product_cycles(self, batch: int, m: int, k: int, n: int) -> float:
        """Cycles in which the matrix units multiply, with sizes rounded up.

        A unit keeps a square of one operand, [k, n] or [k, m], and streams rows of 8 of the other
        one through it. XLA chooses which. A stream shorter than the square cannot hide loading it.
        """
        side = self.array_side

        def cycles(kept: int, streamed: int) -> int:
            return _up(kept, side) * max(_up(streamed, _SUBLANES), side // 2)

        multiplied = min(cycles(n, m), cycles(m, n)) * _up(k, _LANES)
        return 2 * batch * multiplied / self.flop_per_cycle

    def moving_cycles(self, element_bytes: int, *arrays: Sequence[int]) -> float:
        """Cycles that main memory takes for arrays in the layouts with the least padding."""
        moved = sum(least_padded(array) for array in arrays)
        return moved * element_bytes / self.bytes_per_cycle


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _ragged_share(contracted: int) -> float:
    """Share of the tiles of a contracted size that are not full."""
    return _LANES / _up(contracted, _LANES) if contracted % _LANES else 0.0


def least_padded(sizes: Sequence[int]) -> int:
    """Elements of an array in the layout with the least padding.

    One dimension is rounded up to multiples of 128, another one to multiples of 8.
    """
    if len(sizes) < 2:
        return _up(prod(sizes), _LANES)
    total = prod(sizes)
    return min(
        total
        // (sizes[fast] * sizes[slow])
        * _up(sizes[fast], _LANES)
        * _up(sizes[slow], _SUBLANES)
        for fast in range(len(sizes))
        for slow in range(len(sizes))
        if fast != slow
    )


_WorkOf = Callable[[ShapeCosts, tuple[int, ...], int], Work]


def _product(costs: ShapeCosts, sizes: tuple[int, ...], element_bytes: int) -> Work:
    m, k, n = sizes
    return _batched_product(costs, (1, m, k, n), element_bytes)


def _batched_product(costs: ShapeCosts, sizes: tuple[int, ...], element_bytes: int) -> Work:
    batch, m, k, n = sizes
    moving = batch * costs.moving_cycles(element_bytes, (m, k), (k, n), (m, n))
    multiplying = costs.product_cycles(batch, m, k, n)
    return Work(multiplying, multiplying * _ragged_share(k), 0.0, moving)


def _attention(costs: ShapeCosts, sizes: tuple[int, ...], element_bytes: int) -> Work:
    batch, heads, length, size = sizes
    members = batch * heads
    scoring = costs.product_cycles(members, length, size, length)
    summing = costs.product_cycles(members, length, length, size)
    scores = members * least_padded((length, length))
    # Scores stay in on-chip memory if they fit, or else are written and read.
    spilled = max(scores * element_bytes - _ON_CHIP_BYTES, 0)
    moved = 4 * members * least_padded((length, size)) * element_bytes + 2 * spilled
    ragged = summing * _ragged_share(length)
    return Work(scoring + summing, ragged, scores / 1024, moved / costs.bytes_per_cycle)


def _convolution(costs: ShapeCosts, sizes: tuple[int, ...], element_bytes: int) -> Work:
    batch, height, width, inputs, outputs, window = sizes
    pixels = batch * height * width
    # XLA packs the positions of the window into the contracted dimension.
    multiplying = costs.product_cycles(1, pixels, inputs * window * window, outputs)
    moving = costs.moving_cycles(
        element_bytes,
        (batch, height, width, inputs),
        (batch, height, width, outputs),
        (window, window, inputs, outputs),
    )
    return Work(multiplying, 0.0, 0.0, moving)


def _depthwise(costs: ShapeCosts, sizes: tuple[int, ...], element_bytes: int) -> Work:
    *image, window = sizes
    registers = window * window * least_padded(image) / 1024
    return Work(0.0, 0.0, registers, costs.moving_cycles(element_bytes, image, image))


def _arrays(count: int) -> _WorkOf:
    """Work of an operation that reads and writes `count` arrays of the same size."""

    def work(costs: ShapeCosts, sizes: tuple[int, ...], element_bytes: int) -> Work:
        moving = costs.moving_cycles(element_bytes, *([sizes] * count))
        return Work(0.0, 0.0, least_padded(sizes) / 1024, moving)

    return work


def _rows(copies: int) -> _WorkOf:
    """Work of a look-up of rows, or of an update of them."""

    def work(costs: ShapeCosts, sizes: tuple[int, ...], element_bytes: int) -> Work:
        words, features, rows = sizes
        row_bytes = _up(features, _LANES) * element_bytes
        moved = copies * rows * row_bytes
        table = words * row_bytes
        if table <= _ON_CHIP_BYTES:
            # XLA copies the whole table to on-chip memory first.
            moved = table + (copies - 1) * rows * row_bytes
        # A row costs what four registers cost, whatever its length.
        registers = rows * (4 + _up(features, _LANES) // _LANES)
        return Work(0.0, 0.0, float(registers), moved / costs.bytes_per_cycle)

    return work


_WORK: dict[str, _WorkOf] = {
    "product": _product,
    "batched-product": _batched_product,
    "attention": _attention,
    "convolution": _convolution,
    "depthwise": _depthwise,
    "elementwise": _arrays(3),
    "reduction": _arrays(1),
    "column-reduction": _arrays(1),
    "normalization": _arrays(2),
    "softmax": _arrays(2),
    "gather": _rows(2),
    "scatter": _rows(3),
    "bernoulli": _arrays(2),
    "normal": _arrays(2),
    "transpose": _arrays(2),
}
KINDS = tuple(_WORK)


def shape_costs(device: str) -> ShapeCosts | None:
    """The model for a device, by its name or a driver's; None if there is none for it."""
    spec = find_device(device)
    return _by_device().get(spec.name if spec is not None else device)


@lru_cache(maxsize=1)
def _by_device() -> dict[str, ShapeCosts]:
    found = {}
    document = parse(_TABLE.read_text(encoding="utf-8"))
    for name, row in document["generation"].items():
        spec = find_device(row["device"])
        if spec is not None:
            kinds = row["kinds"].items()
            nominal = nominal_costs(name, spec, row["cycles_per_s"], row["array_side"])
            low, high = document["saved_range"]
            found[spec.name] = nominal._replace(
                factors={kind: Factors(*fitted["factors"]) for kind, fitted in kinds},
                errors={kind: fitted["error"] for kind, fitted in kinds},
                saved_range=(low, high),
            )
    return found


def nominal_costs(name: str, spec: DeviceSpec, cycles_per_s: float, array_side: int) -> ShapeCosts:
    """The model of a device without factors: what its peaks allow."""
    bandwidth = spec.peaks.memory_bandwidth_bytes_per_s
    assert bandwidth is not None
    flop_per_cycle = spec.peaks.tensor["bf16"] / cycles_per_s
    return ShapeCosts(name, cycles_per_s, array_side, flop_per_cycle, bandwidth / cycles_per_s, {})
