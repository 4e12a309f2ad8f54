"""How far work is from the device's limits.

How long a kernel takes if it runs as well as large, well-shaped kernels do in practice.

A kernel needs at least the time of its arithmetic or of its memory traffic, whichever is longer.
The time of a matrix product has more terms, each of which users can check by hand:

    time = START + sqrt(compute² + memory²) + writes

- *Start*: a product with almost no work takes some microseconds.
- *Compute* is FLOP divided by the achievable rate, in waves: each multiprocessor computes one
  tile of the result after another. In the last wave, some have nothing to do.
- *Memory*: reading both operands overlaps compute, though not perfectly where it takes about as
  long.
- *Writes*: results are written when they are complete. Where libraries compute the next tile
  meanwhile, half of the writes count as memory.

The model is checked against recorded products and against NVIDIA's own predictor, see
`docs/accuracy.md`.

The work of a kernel comes from the operator that launched it (PyTorch's shapes), from the XLA
operation that it executes (HLO text), or from the file itself (TPU). The kernels of one execution
that do the operator's work share it in proportion to their time; auxiliary kernels, such as layout
conversions, get none. The roofline is unknown if shapes, number format or peaks are unknown.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.hardware import Peaks
from tb_perfadvisor.signals.core.operators import work_operators
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.matrix_work import work_of_hlo
from tb_perfadvisor.signals.work.operator_inputs import Matmul, Work
from tb_perfadvisor.signals.work.products import WorkOwners
from tb_perfadvisor.trace import CopyDirection, EventKind, KernelFamily, Precision, Trace
from tb_perfadvisor.trace.assembler import Interned
from tb_perfadvisor.trace.integer_groups import group_rows, is_in, row_mask, unique_inverse
from tb_perfadvisor.trace.tables import Float64, Int8, Int32, Int64, UInt8

COMPUTE_BOUND: Final = 0
MEMORY_BOUND: Final = 1
LATENCY_BOUND: Final = 2
UNKNOWN_BOUND: Final = -1
BOUNDS: Final = {COMPUTE_BOUND: "compute", MEMORY_BOUND: "memory", LATENCY_BOUND: "latency"}

MIN_KERNEL_NS: Final = 2_000
"""Time of a kernel with almost no work: 1.0 to 2.5 microseconds in recorded profiles of V100,
A100, H100 and MI300X."""
START_NS: Final = 4_000
"""Time of a product with almost no work: 3.5 to 5 microseconds in recorded profiles of A100, H100
and B300."""

_TILE: Final = 64
"""The side of the smallest tile that libraries use for large products. Larger tiles that fill the
device equally well are covered: each is a number of these."""
_NARROWEST_TILE: Final = 8
"""The narrowest side of a tensor-core instruction."""
_SPLIT_K: Final = 4096
"""If a result has too few tiles to fill the device, libraries compute its inner products in parts.
Shorter ones are not worth adding up the parts."""

_CHUNK: Final = 1 << 16
"""Kernels per batch, so that a dozen columns of them fit into the cache."""


class Demand(Struct, frozen=True):
    """What kernels have to do; columns of shape (n,)."""

    flop: Float64
    traffic_bytes: Float64
    written_bytes: Float64
    """The part of the traffic that writes the result of a matrix product; 0 for other kernels."""
    waste: Float64
    """Multiprocessor time of a matrix product relative to full waves; 1 for other kernels."""
    is_product: NDArray[np.bool_]

    def part(self, chunk: slice) -> Demand:
        """The demand of some kernels."""
        return Demand(
            self.flop[chunk],
            self.traffic_bytes[chunk],
            self.written_bytes[chunk],
            self.waste[chunk],
            self.is_product[chunk],
        )


def wave_waste(products: Int64, multiprocessors: int | None) -> Float64:
    """Time that products take in waves, relative to multiprocessors that are always busy.

    It is at least 1. `products` has batch, m, n and k of each, shape (n, 4); 0 stands for no
    product.
    """
    if not multiprocessors:
        return np.ones(len(products))
    batch, m, n, k = np.maximum(products, 1).T.astype(np.float64)
    tiles = most_tiles(products)
    parts = np.minimum(multiprocessors // tiles, k // _SPLIT_K)
    parts = np.maximum(parts, 1.0)
    waves = np.ceil(tiles * parts / multiprocessors)
    tile = _tile_side(m) * _tile_side(n)
    waste: Float64 = waves * multiprocessors * tile / parts / (batch * m * n)
    return waste


def most_tiles(products: Int64) -> Float64:
    """How many of the smallest tiles the results of products have; shape (n,)."""
    batch, m, n, _ = np.maximum(products, 1).T.astype(np.float64)
    tiles: Float64 = batch * np.ceil(m / _tile_side(m)) * np.ceil(n / _tile_side(n))
    return tiles


def _tile_side(size: Float64) -> Float64:
    return np.clip(size, _NARROWEST_TILE, _TILE)


def achievable_times(demand: Demand, rate: Float64, peaks: Peaks | None) -> tuple[Float64, Int8]:
    """Achievable times of kernels in nanoseconds, NaN if unknown, and what limits each; shape (n,).

    A limit is a key of `BOUNDS` or `UNKNOWN_BOUND`. `rate` is the peak FLOP/s that limits each
    kernel; NaN if unknown.
    """
    count = len(rate)
    achievable_ns = np.empty(count)
    bound = np.empty(count, dtype=np.int8)
    for first in range(0, count, _CHUNK):
        chunk = slice(first, first + _CHUNK)
        achievable_ns[chunk], bound[chunk] = _times(demand.part(chunk), rate[chunk], peaks)
    return achievable_ns, bound


def _times(demand: Demand, rate: Float64, peaks: Peaks | None) -> tuple[Float64, NDArray[np.intp]]:
    bandwidth = (peaks.memory_bandwidth_bytes_per_s if peaks else None) or np.nan
    compute_share, memory_share = (
        (peaks.achievable, peaks.achievable_bandwidth) if peaks else (1.0, 1.0)
    )
    compute_ns = demand.flop / rate * 1e9 / compute_share * demand.waste
    memory_ns = demand.traffic_bytes / bandwidth * 1e9 / memory_share
    writes_ns = np.minimum(demand.written_bytes / bandwidth * 1e9 / memory_share, memory_ns)
    writes_ns *= 1.0 - (peaks.overlapped_writes if peaks else 0.0)
    # If either time is NaN, so is the result: half a roofline says nothing.
    product_ns = np.hypot(compute_ns, memory_ns - writes_ns) + writes_ns
    work_ns = np.where(demand.is_product, product_ns, np.maximum(compute_ns, memory_ns))
    start_ns = np.where(demand.is_product, START_NS, 0)
    bound = np.where(compute_ns >= memory_ns, COMPUTE_BOUND, MEMORY_BOUND)
    bound = np.where(work_ns < np.maximum(start_ns, MIN_KERNEL_NS), LATENCY_BOUND, bound)
    bound = np.where(np.isnan(work_ns), UNKNOWN_BOUND, bound)
    return np.maximum(start_ns + work_ns, MIN_KERNEL_NS), bound


NUMBER_FORMATS: Final = ("", "fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")
"""Number formats, named as in the table of devices; the first means unknown."""
MATRIX_FAMILIES: Final = (
    KernelFamily.MATMUL,
    KernelFamily.CONVOLUTION,
    KernelFamily.ATTENTION,
)
_BITS: Final = {"fp64": 64, "fp32": 32, "tf32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8}
_FORMAT_BITS: Final = np.array([_BITS.get(name, 0) for name in NUMBER_FORMATS], dtype=np.float64)
_NARROWEST_RESULT: Final = 16
"""Products of 8-bit numbers give wider results. How wide is unknown; assume the minimum."""
FORMAT_OF_WIDTH: Final = {
    Precision.BITS_8: "fp8",
    Precision.BITS_16: "bf16",
    Precision.BITS_64: "fp64",
}
_WIDE: Final = NUMBER_FORMATS.index("fp32")
Scalar = TypeVar("Scalar", bound=np.generic)


class Roofline(Struct, frozen=True):
    """One entry per row of `signals.device.rows`; NaN and -1 are unknown."""

    rows: Int32
    operator: Int32
    """The operator whose work it does."""
    flop: Float64
    traffic_bytes: Float64
    """The minimum traffic of its work."""
    number_format: UInt8
    """Index into `NUMBER_FORMATS`; 0 is unknown."""
    achievable_ns: Float64
    """How long it takes if it runs as well as large, well-shaped kernels do in practice."""
    bound: Int8
    """What limits it: a key of `BOUNDS`, or `UNKNOWN_BOUND`."""
    product: Int32
    """Index into `products`."""
    products: Int64
    """Batch, m, n and k of matrix products and convolutions; shape (products, 4). The first row
    stands for no product."""
    waste: Float64
    """`wave_waste` of the products; shape (products,)."""
    matrix: NDArray[np.bool_]
    """Whether its work is a matrix product, a convolution or attention."""
    is_product: NDArray[np.bool_]
    """Whether its work is a matrix product."""

    def sizes_of(self, entry: Int64 | int) -> Int64:
        """Batch, m, n and k of some entries; shape (…, 4), 0 without a product."""
        sizes: Int64 = self.products[self.product[entry]]
        return sizes

    def achieved_share(self, trace: Trace) -> Float64:
        """Achievable divided by actual time; shape (n,). Caches can raise it above 1."""
        duration: Float64 = np.maximum(trace.events.duration_ns[self.rows], 1).astype(np.float64)
        return self.achievable_ns / duration

    def achievable_in(self, number_format: str, peaks: Peaks) -> Float64:
        """Achievable time of each matrix kernel in another number format; shape (n,).

        It is NaN for other kernels, and if the work is unknown. The number format is one of
        `NUMBER_FORMATS`.
        """
        bits = _FORMAT_BITS[self.number_format]
        then_bits = np.full(len(bits), bits_of(number_format), dtype=np.float64)
        sizes = self.products[self.product]
        written_bytes = _written_bytes(self.flop, bits, sizes, self.is_product)
        with np.errstate(divide="ignore", invalid="ignore"):
            narrowing = np.where(bits > 0, then_bits, np.nan) / bits
        traffic_bytes = (self.traffic_bytes - written_bytes) * narrowing
        traffic_bytes += _written_bytes(self.flop, then_bits, sizes, self.is_product)
        rate = np.full(len(self.rows), peaks.flop_per_s(number_format) or np.nan)
        rate[~self.matrix] = np.nan
        demand = _demand(
            self.flop,
            traffic_bytes,
            then_bits,
            sizes,
            np.where(self.is_product, self.waste[self.product], 0.0),
        )
        achievable_ns, _ = achievable_times(demand, rate, peaks)
        return achievable_ns


def bits_of(number_format: str) -> int:
    """The width of a number format in memory, in bits."""
    return _BITS[number_format]


@memoized
def roofline(signals: Signals) -> Roofline:
    """The roofline of the busiest device's events."""
    trace, rows = signals.trace, signals.device.rows
    columns = _Columns.empty(len(rows))
    facts = signals.device_facts
    peaks = facts.peaks if facts is not None else None
    if len(rows):
        _add_recorded(columns, trace, rows)
        _add_copies(columns, trace, rows)
        _add_hlo(columns, trace, rows)
        _add_operators(columns, signals)
        columns.number_format[:] = _formats(columns, signals)
    products = np.array(list(columns.products), dtype=np.int64)
    waste = wave_waste(products, facts.multiprocessors if facts is not None else None)
    demand = _demand(
        columns.flop,
        columns.traffic_bytes,
        _FORMAT_BITS[columns.number_format],
        products[columns.product],
        np.where(columns.is_product, waste[columns.product], 0.0),
    )
    achievable_ns, bound = achievable_times(demand, _rates(columns, peaks), peaks)
    return Roofline(
        rows=rows,
        operator=_frozen(columns.operator),
        flop=_frozen(columns.flop),
        traffic_bytes=_frozen(columns.traffic_bytes),
        number_format=_frozen(columns.number_format),
        achievable_ns=_frozen(achievable_ns),
        bound=_frozen(bound),
        product=_frozen(columns.product),
        products=_frozen(products),
        waste=_frozen(waste),
        matrix=_frozen(columns.matrix),
        is_product=_frozen(columns.is_product),
    )


def _demand(
    flop: Float64, traffic_bytes: Float64, bits: Float64, sizes: Int64, waste: Float64
) -> Demand:
    """What kernels have to do.

    `bits` is the width of each kernel's numbers. `sizes` has batch, m, n and k of its product,
    shape (n, 4), and `waste` is the product's `wave_waste`, 0 for other kernels.
    """
    is_product = waste > 0
    return Demand(
        flop,
        traffic_bytes,
        _written_bytes(flop, bits, sizes, is_product),
        np.where(is_product, waste, 1.0),
        is_product,
    )


def _written_bytes(
    flop: Float64, bits: Float64, sizes: Int64, is_product: NDArray[np.bool_]
) -> Float64:
    """The size of the results of matrix products, 0 for other kernels; shape (n,)."""
    batch, m, n, k = sizes.T.astype(np.float64)
    # Several kernels may share a product.
    share = flop / np.where(is_product, 2.0 * batch * m * n * k, 1.0)
    written = share * batch * m * n * np.maximum(bits, _NARROWEST_RESULT) / 8
    return np.where(is_product, written, 0.0)


class _Columns(Struct):
    """The columns while they are being filled."""

    operator: Int32
    flop: Float64
    traffic_bytes: Float64
    number_format: UInt8
    product: Int32
    products: Interned
    matrix: NDArray[np.bool_]
    is_product: NDArray[np.bool_]

    @classmethod
    def empty(cls, count: int) -> _Columns:
        return cls(
            operator=np.full(count, -1, dtype=np.int32),
            flop=np.full(count, np.nan),
            traffic_bytes=np.full(count, np.nan),
            number_format=np.zeros(count, dtype=np.uint8),
            product=np.zeros(count, dtype=np.int32),
            products=Interned({_sizes(None): 0}),
            matrix=np.zeros(count, dtype=bool),
            is_product=np.zeros(count, dtype=bool),
        )

    def put(
        self, index: NDArray[np.intp], share: NDArray[Any], group: Int64, works: list[Work]
    ) -> None:
        """Give entries their shares of their groups' work.

        `index`, `share` of the group's work and `group`, an index into `works`, have shape (n,).
        """
        self.flop[index] = np.array([work.flop for work in works])[group] * share
        self.traffic_bytes[index] = np.array([work.traffic_bytes for work in works])[group] * share
        formats = [NUMBER_FORMATS.index(work.number_format) for work in works]
        self.number_format[index] = np.array(formats, dtype=np.uint8)[group]
        products = [self.products[_sizes(work.matmul)] for work in works]
        self.product[index] = np.array(products, dtype=np.int32)[group]
        self.matrix[index] = np.array([work.family in MATRIX_FAMILIES for work in works])[group]
        is_product = [
            work.family is KernelFamily.MATMUL and work.matmul is not None for work in works
        ]
        self.is_product[index] = np.array(is_product)[group]


def _sizes(product: Matmul | None) -> tuple[int, int, int, int]:
    return (0, 0, 0, 0) if product is None else (product.batch, product.m, product.n, product.k)


def _frozen(column: NDArray[Scalar]) -> NDArray[Scalar]:
    column.setflags(write=False)
    return column


# --- sources of work --------------------------------------------------------------------------


def _add_recorded(columns: _Columns, trace: Trace, rows: Int32) -> None:
    """Add the work that the file itself records for its operations."""
    hlo = trace.hlo
    # All arrays of an operation on a TPU may be on the chip. Operations that compute nothing state
    # no FLOP.
    flop, traffic_bytes = np.nan_to_num(hlo.flop), np.nan_to_num(hlo.traffic_bytes)
    has_work = (hlo.traffic_bytes >= 0) & (flop + traffic_bytes > 0)
    if not has_work.any():
        return
    op = trace.operations(rows)
    family = trace.by_event(trace.kernels.row, trace.kernels.family, KernelFamily.OTHER)[rows]
    is_recorded = np.append(has_work, np.False_)[op] & (trace.events.kind[rows] == EventKind.KERNEL)
    is_recorded &= (np.append(hlo.flop, np.nan)[op] >= 0) | ~is_in(family, MATRIX_FAMILIES)
    op = op[is_recorded]
    columns.flop[is_recorded], columns.traffic_bytes[is_recorded] = flop[op], traffic_bytes[op]
    columns.matrix[is_recorded] = is_in(family[is_recorded], MATRIX_FAMILIES)


def _add_copies(columns: _Columns, trace: Trace, rows: Int32) -> None:
    """Add copies within the device, which read and write every byte."""
    copies = trace.copies
    size = trace.by_event(copies.row, copies.size_bytes, -1)[rows]
    direction = trace.by_event(copies.row, copies.direction, CopyDirection.UNKNOWN)[rows]
    within = (direction == CopyDirection.DEVICE_TO_DEVICE) & (size > 0)
    columns.flop[within], columns.traffic_bytes[within] = 0.0, 2.0 * size[within]


def _add_hlo(columns: _Columns, trace: Trace, rows: Int32) -> None:
    """Add kernels that execute XLA operations."""
    if not len(trace.hlo_events.row):
        return
    op = trace.operations(rows)
    family = trace.by_event(trace.kernels.row, trace.kernels.family, KernelFamily.OTHER)[rows]
    is_open = (op >= 0) & np.isnan(columns.flop) & (trace.events.kind[rows] == EventKind.KERNEL)
    index = np.flatnonzero(is_open)
    operations, group = unique_inverse(op[index])
    by_length = np.lexsort((-trace.events.duration_ns[rows[index]], group))
    longest = index[by_length[np.searchsorted(group[by_length], np.arange(len(operations)))]]
    works: list[Work] = []
    place = np.full(len(operations), -1)  # of the operation's work in `works`
    for number, kernel in enumerate(longest.tolist()):
        text = trace.text(int(trace.hlo.text[operations[number]]))
        work = work_of_hlo(text, KernelFamily(int(family[kernel])))
        if work is not None:
            place[number] = len(works)
            works.append(work)
    index, group = index[place[group] >= 0], place[group][place[group] >= 0]
    families = np.array([work.family for work in works], dtype=np.int64)
    does_work = _does_work(family[index], families[group])
    index, group = index[does_work], group[does_work]
    # Each execution runs each kernel once, so the most frequent kernel counts the executions.
    first, kernel_of = group_rows(group, trace.events.name[rows[index]])
    executions = np.zeros(len(works), dtype=np.int64)
    np.maximum.at(executions, group[first], np.bincount(kernel_of, minlength=len(first)))
    duration_ns = trace.events.duration_ns[rows[index]]
    total_ns = np.bincount(group, weights=duration_ns, minlength=len(works))
    share = duration_ns * (executions / np.maximum(total_ns, 1))[group]
    columns.put(index, share, group, works)


def _add_operators(columns: _Columns, signals: Signals) -> None:
    """Add kernels that PyTorch operators launched."""
    trace, rows = signals.trace, signals.device.rows
    table, events = trace.operators, trace.events
    if not (table.shapes >= 0).any():
        return
    operator = work_operators(trace, signals.launching_operator, rows)
    is_kernel = (operator >= 0) & (events.kind[rows] == EventKind.KERNEL) & np.isnan(columns.flop)
    index = np.flatnonzero(is_kernel)
    if not index.size:
        return
    work_owners = WorkOwners(trace)
    launchers, inverse = unique_inverse(operator[index])
    owner = work_owners.owners(launchers)[inverse]
    index, owner = index[owner >= 0], owner[owner >= 0]
    if not index.size:
        return
    # Each replay of a graph does the work of its operators again.
    is_replayed = row_mask(len(events), trace.captured.row)[rows[index]]
    replay = np.where(is_replayed, events.launched_by[rows[index]], -1)
    family = trace.by_event(trace.kernels.row, trace.kernels.family, KernelFamily.OTHER)
    first, group = group_rows(owner, replay)
    owners = owner[first]
    # Equal executions share their work.
    of_owner = [work_owners.work(row) for row in owners.tolist()]
    works = list({id(work): work for work in of_owner}.values())
    number = {id(work): place for place, work in enumerate(works)}
    kind = np.array([number[id(work)] for work in of_owner])[group]
    families = np.array([work.family for work in works])
    does_work = _does_work(family[rows[index]], families[kind])
    # A kernel of unknown family does the work if it is the only one.
    is_only = (np.bincount(group) == 1)[group]
    does_work |= is_only & (family[rows[index]] == KernelFamily.OTHER)
    index, group, kind = index[does_work], group[does_work], kind[does_work]
    duration_ns = np.maximum(events.duration_ns[rows[index]], 1)
    total_ns = np.bincount(group, weights=duration_ns)
    columns.put(index, duration_ns / total_ns[group], kind, works)
    columns.operator[index] = owners[group]


def _does_work(kernel: NDArray[np.uint8], work: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether kernels of some families can do work of some families; shape (n,).

    Convolutions and attention may run as matrix products. Any other kernel may do memory-bound
    work.
    """
    is_product = is_in(work, MATRIX_FAMILIES)
    same = kernel == work
    as_product = (kernel == KernelFamily.MATMUL) & is_product
    as_convolution = (kernel == KernelFamily.CONVOLUTION) & (work == KernelFamily.MATMUL)
    does_work: NDArray[np.bool_] = np.where(
        is_product, same | as_product | as_convolution, ~is_in(kernel, MATRIX_FAMILIES)
    )
    return does_work


# --- peaks and bounds -------------------------------------------------------------------------


def _formats(columns: _Columns, signals: Signals) -> UInt8:
    """The number format of each kernel, from its inputs or from its precision.

    32-bit numbers on matrix units are tf32. If it is unknown whether a kernel uses them, the format
    is unknown.
    """
    trace, rows = signals.trace, signals.device.rows
    formats: UInt8 = columns.number_format.copy()
    # If an operator's inputs have several formats, do not guess one from the kernel's name.
    is_open = (formats == 0) & ~np.isnan(columns.flop) & (columns.operator < 0)
    for width, name in FORMAT_OF_WIDTH.items():
        formats[is_open & (signals.precision == width)] = NUMBER_FORMATS.index(name)
    formats[is_open & (signals.precision == Precision.BITS_32)] = _WIDE
    units = trace.by_event(trace.kernels.row, trace.kernels.tensor_cores, -1)[rows]
    is_wide = columns.matrix & (formats == _WIDE)
    formats[is_wide & (units == 1)] = NUMBER_FORMATS.index("tf32")
    formats[is_wide & (units < 0)] = 0
    return formats


def _rates(columns: _Columns, peaks: Peaks | None) -> Float64:
    """The peak FLOP/s that limit each kernel; NaN if unknown."""
    rate = np.full(len(columns.flop), np.nan)
    if peaks is None:
        return rate
    for index, name in enumerate(NUMBER_FORMATS[1:], start=1):
        # fp32, as opposed to tf32, runs on the vector units.
        peak = peaks.flop_per_s(name, tensor=name != "fp32")
        rate[columns.matrix & (columns.number_format == index)] = peak or np.nan
    # Elementwise work is computed in 32 bits, whatever the format of its inputs.
    rate[~columns.matrix] = peaks.flop_per_s("fp32", tensor=False) or np.inf
    return rate
