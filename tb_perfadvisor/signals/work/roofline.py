"""How fast each kernel could be: its work against what the device reaches in practice.

A kernel's work is that of the operator that launched it (PyTorch's shapes), of the XLA operation
that it carries out (HLO text), or what the file itself states (TPU). Of the kernels of one
execution, those that do the operator's work share it by their time; helpers such as changes of
layout have none. Nothing is claimed where shapes, number format or peaks are unknown.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.hardware import Peaks
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.hlo_work import work_of_hlo
from tb_perfadvisor.signals.work.kernel_work import OperatorWorks
from tb_perfadvisor.signals.work.required_work import Matmul, Work
from tb_perfadvisor.trace import CopyDirection, EventKind, KernelFamily, Precision, Trace
from tb_perfadvisor.trace.assembler import Interned
from tb_perfadvisor.trace.integer_groups import distinct, is_in, unique_inverse
from tb_perfadvisor.trace.tables import Float64, Int8, Int32, Int64, UInt8

NUMBER_FORMATS: Final = ("", "fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")
"""What kernels compute with, as the table of devices calls it; the first is unknown."""
COMPUTE_BOUND: Final = 0
MEMORY_BOUND: Final = 1
LATENCY_BOUND: Final = 2
UNKNOWN_BOUND: Final = -1
BOUNDS: Final = {COMPUTE_BOUND: "compute", MEMORY_BOUND: "memory", LATENCY_BOUND: "latency"}

MATRIX_FAMILIES: Final = (
    KernelFamily.MATMUL,
    KernelFamily.CONVOLUTION,
    KernelFamily.ATTENTION,
)
LEAST_NS: Final = 2_000
"""What a kernel that does next to nothing takes: 1.0 to 2.5 microseconds in recorded profiles of
V100, A100, H100 and MI300X."""

_CHUNK: Final = 1 << 16
"""Kernels whose bounds are worked out at once: a dozen columns of them stay in the cache."""

_BITS: Final = {"fp64": 64, "fp32": 32, "tf32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8}
_OF_WIDTH: Final = {Precision.BITS_8: "fp8", Precision.BITS_16: "bf16", Precision.BITS_64: "fp64"}
_WIDE: Final = NUMBER_FORMATS.index("fp32")
Scalar = TypeVar("Scalar", bound=np.generic)


class Roofline(Struct, frozen=True):
    """One entry per row of `signals.device.rows`; NaN and -1 are unknown."""

    rows: Int32
    operator: Int32
    """The operator whose work it is."""
    flop: Float64
    traffic_bytes: Float64
    """The least that its work needs."""
    number_format: UInt8
    """Index into `NUMBER_FORMATS`; 0 is unknown."""
    achievable_ns: Float64
    """At what large, well-shaped kernels reach of the device's peaks, and no less than
    `LEAST_NS`."""
    bound: Int8
    """What bounds it: a key of `BOUNDS`."""
    product: Int32
    """Which of the `products`."""
    products: Int64
    """Batch, m, n and k of matrix products and convolutions; shape (products, 4). The first is
    none."""
    matrix: NDArray[np.bool_]
    """Whether its work is a matrix product, a convolution or attention."""

    def sizes_of(self, entry: Int64 | int) -> Int64:
        """Batch, m, n and k of some entries; shape (…, 4), 0 for what is no product."""
        sizes: Int64 = self.products[self.product[entry]]
        return sizes

    def achieved_share(self, trace: Trace) -> Float64:
        """Achievable over actual time; shape (n,). Above 1 where caches help."""
        duration: Float64 = np.maximum(trace.events.duration_ns[self.rows], 1).astype(np.float64)
        return self.achievable_ns / duration

    def achievable_in(self, number_format: str, peaks: Peaks) -> Float64:
        """What each matrix kernel would take in another number format; shape (n,).

        Args:
            number_format: One of `NUMBER_FORMATS`.
            peaks: The device's.

        Returns:
            NaN for what is no matrix kernel, and where its work is unknown.
        """
        bits = np.array([_BITS.get(one, 0) for one in NUMBER_FORMATS], dtype=np.float64)
        own_bits = bits[self.number_format]
        with np.errstate(divide="ignore", invalid="ignore"):
            narrowed = self.traffic_bytes * np.where(own_bits > 0, bits_of(number_format), np.nan)
            narrowed = narrowed / own_bits
        rate = np.full(len(self.rows), peaks.flop_per_s(number_format) or np.nan)
        rate[~self.matrix] = np.nan
        achievable_ns, _ = _bounds(self.flop, narrowed, rate, peaks)
        return achievable_ns


def bits_of(number_format: str) -> int:
    """The width of a number format in memory."""
    return _BITS[number_format]


@memoized
def roofline(signals: Signals) -> Roofline:
    """The roofline of the busiest device's work."""
    trace, rows = signals.trace, signals.device.rows
    found = _Columns.empty(len(rows))
    facts = signals.device_facts
    peaks = facts.peaks if facts is not None else None
    if len(rows):
        _add_stated(found, trace, rows)
        _add_copies(found, trace, rows)
        _add_hlo(found, trace, rows)
        _add_operators(found, signals)
        found.number_format[:] = _formats(found, signals)
    rate = _rates(found, peaks)
    achievable_ns, bound = _bounds(found.flop, found.traffic_bytes, rate, peaks)
    return Roofline(
        rows=rows,
        operator=_frozen(found.operator),
        flop=_frozen(found.flop),
        traffic_bytes=_frozen(found.traffic_bytes),
        number_format=_frozen(found.number_format),
        achievable_ns=_frozen(achievable_ns),
        bound=_frozen(bound),
        product=_frozen(found.product),
        products=_frozen(np.array(list(found.products), dtype=np.int64)),
        matrix=_frozen(found.matrix),
    )


class _Columns(Struct):
    """The columns while they are being filled."""

    operator: Int32
    flop: Float64
    traffic_bytes: Float64
    number_format: UInt8
    product: Int32
    products: Interned
    matrix: NDArray[np.bool_]

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
        )

    def put(
        self, index: NDArray[np.intp], share: NDArray[Any], group: Int64, works: list[Work]
    ) -> None:
        """Give events their share of the work of their group.

        Args:
            index: Entries; shape (n,).
            share: Of the group's work; shape (n,).
            group: Index into `works`; shape (n,).
            works: The groups' work.
        """
        self.flop[index] = np.array([one.flop for one in works])[group] * share
        self.traffic_bytes[index] = np.array([one.traffic_bytes for one in works])[group] * share
        formats = [NUMBER_FORMATS.index(one.number_format) for one in works]
        self.number_format[index] = np.array(formats, dtype=np.uint8)[group]
        products = [self.products[_sizes(one.matmul)] for one in works]
        self.product[index] = np.array(products, dtype=np.int32)[group]
        self.matrix[index] = np.array([one.family in MATRIX_FAMILIES for one in works])[group]


def _sizes(product: Matmul | None) -> tuple[int, int, int, int]:
    return (0, 0, 0, 0) if product is None else (product.batch, product.m, product.n, product.k)


def _frozen(column: NDArray[Scalar]) -> NDArray[Scalar]:
    column.setflags(write=False)
    return column


# --- where the work comes from ----------------------------------------------------------------


def _add_stated(found: _Columns, trace: Trace, rows: Int32) -> None:
    """What the file itself states of its operations."""
    hlo = trace.hlo
    states = (hlo.flop >= 0) & (hlo.traffic_bytes > 0)
    if not states.any():
        return
    op = trace.operations(rows)
    is_stated = np.append(states, np.False_)[op] & (trace.events.kind[rows] == EventKind.KERNEL)
    family = trace.by_event(trace.kernels.row, trace.kernels.family, KernelFamily.OTHER)[rows]
    op = op[is_stated]
    found.flop[is_stated], found.traffic_bytes[is_stated] = hlo.flop[op], hlo.traffic_bytes[op]
    found.matrix[is_stated] = is_in(family[is_stated], MATRIX_FAMILIES)


def _add_copies(found: _Columns, trace: Trace, rows: Int32) -> None:
    """Copies within the device read and write what they move."""
    copies = trace.copies
    size = trace.by_event(copies.row, copies.size_bytes, -1)[rows]
    direction = trace.by_event(copies.row, copies.direction, CopyDirection.UNKNOWN)[rows]
    within = (direction == CopyDirection.DEVICE_TO_DEVICE) & (size > 0)
    found.flop[within], found.traffic_bytes[within] = 0.0, 2.0 * size[within]


def _add_hlo(found: _Columns, trace: Trace, rows: Int32) -> None:
    """Kernels that carry out XLA operations."""
    if not len(trace.hlo_events.row):
        return
    op = trace.operations(rows)
    family = trace.by_event(trace.kernels.row, trace.kernels.family, KernelFamily.OTHER)[rows]
    is_open = (op >= 0) & np.isnan(found.flop) & (trace.events.kind[rows] == EventKind.KERNEL)
    names, duration_ns = trace.events.name[rows], trace.events.duration_ns[rows]
    for one in distinct(op[is_open]).tolist():
        index = np.flatnonzero(is_open & (op == one))
        kinds = family[index]
        main = KernelFamily(int(kinds[np.argmax(duration_ns[index])]))
        work = work_of_hlo(trace.text(int(trace.hlo.text[one])), main)
        if work is None:
            continue
        index = index[_does(kinds, work.family)]
        if not index.size:
            continue
        # An execution runs each of its kernels once, so the commonest tells how often it ran.
        executions = int(np.unique(names[index], return_counts=True)[1].max())
        total_ns = max(int(duration_ns[index].sum()), 1)
        share = duration_ns[index] * (executions / total_ns)
        found.put(index, share, np.zeros(index.size, dtype=np.int64), [work])


def _add_operators(found: _Columns, signals: Signals) -> None:
    """Kernels that PyTorch's operators launched."""
    trace, rows = signals.trace, signals.device.rows
    table, events = trace.operators, trace.events
    if not (table.shapes >= 0).any():
        return
    launch = events.launched_by[rows]
    operator = np.where(launch >= 0, signals.launching_operator[launch], -1)
    is_kernel = (operator >= 0) & (events.kind[rows] == EventKind.KERNEL) & np.isnan(found.flop)
    index = np.flatnonzero(is_kernel)
    if not index.size:
        return
    known = OperatorWorks(trace)
    launchers, of_launcher = unique_inverse(operator[index])
    owner = known.owners(launchers)[of_launcher]
    index, owner = index[owner >= 0], owner[owner >= 0]
    if not index.size:
        return
    family = trace.by_event(trace.kernels.row, trace.kernels.family, KernelFamily.OTHER)
    owned, group = unique_inverse(owner)
    works = [known.work(row) for row in owned.tolist()]
    does = _does(family[rows[index]], np.array([one.family for one in works])[group])
    # Where no kernel's name tells, a single one does the work.
    alone = (np.bincount(group) == 1)[group]
    does |= alone & (family[rows[index]] == KernelFamily.OTHER)
    index, group = index[does], group[does]
    duration_ns = np.maximum(events.duration_ns[rows[index]], 1)
    total_ns = np.bincount(group, weights=duration_ns, minlength=len(works))
    found.put(index, duration_ns / total_ns[group], group, works)
    found.operator[index] = owned[group]


def _does(kernel: NDArray[np.uint8], work: NDArray[np.int64] | KernelFamily) -> NDArray[np.bool_]:
    """Whether kernels of some families do work of some families, each of shape (n,).

    Convolutions and attention may run as matrix products; memory-bound work by any kernel that
    is none.
    """
    work = np.asarray(work)
    is_product = is_in(work, MATRIX_FAMILIES)
    same = kernel == work
    as_product = (kernel == KernelFamily.MATMUL) & is_product
    as_softmax = (kernel == KernelFamily.CONVOLUTION) & (work == KernelFamily.MATMUL)
    found: NDArray[np.bool_] = np.where(
        is_product, same | as_product | as_softmax, ~is_in(kernel, MATRIX_FAMILIES)
    )
    return found


# --- what the device can do -------------------------------------------------------------------


def _formats(found: _Columns, signals: Signals) -> UInt8:
    """What each kernel computes with: its inputs' format, or the width that its name tells.

    32-bit numbers on matrix units are tf32; where nothing tells whether they are used, the
    format is unknown.
    """
    trace, rows = signals.trace, signals.device.rows
    formats: UInt8 = found.number_format.copy()
    # An operator's inputs say more than a kernel's name: of several formats none is the kernel's.
    is_open = (formats == 0) & ~np.isnan(found.flop) & (found.operator < 0)
    for width, name in _OF_WIDTH.items():
        formats[is_open & (signals.precision == width)] = NUMBER_FORMATS.index(name)
    formats[is_open & (signals.precision == Precision.BITS_32)] = _WIDE
    units = trace.by_event(trace.kernels.row, trace.kernels.tensor_cores, -1)[rows]
    is_wide = found.matrix & (formats == _WIDE)
    formats[is_wide & (units == 1)] = NUMBER_FORMATS.index("tf32")
    formats[is_wide & (units < 0)] = 0
    return formats


def _rates(found: _Columns, peaks: Peaks | None) -> Float64:
    """FLOP/s that bound each kernel; NaN where unknown."""
    rate = np.full(len(found.flop), np.nan)
    if peaks is None:
        return rate
    for index, name in enumerate(NUMBER_FORMATS[1:], start=1):
        # fp32 beside tf32 means the vector units.
        peak = peaks.flop_per_s(name, tensor=name != "fp32")
        rate[found.matrix & (found.number_format == index)] = peak or np.nan
    # Elementwise work is done in 32 bits whatever its inputs are.
    rate[~found.matrix] = peaks.flop_per_s("fp32", tensor=False) or np.inf
    return rate


def _bounds(
    flop: Float64, traffic_bytes: Float64, rate: Float64, peaks: Peaks | None
) -> tuple[Float64, Int8]:
    """Achievable time, and what bounds it."""
    count = len(flop)
    achievable_ns = np.empty(count)
    bound = np.empty(count, dtype=np.int8)
    for first in range(0, count, _CHUNK):
        own = slice(first, first + _CHUNK)
        achievable_ns[own], bound[own] = _bounds_of(flop[own], traffic_bytes[own], rate[own], peaks)
    return achievable_ns, bound


def _bounds_of(
    flop: Float64, traffic_bytes: Float64, rate: Float64, peaks: Peaks | None
) -> tuple[Float64, NDArray[np.intp]]:
    bandwidth = (peaks.memory_bandwidth_bytes_per_s if peaks else None) or np.nan
    reached, moved = (peaks.achievable, peaks.achievable_bandwidth) if peaks else (1.0, 1.0)
    compute_ns, memory_ns = flop / rate * 1e9, traffic_bytes / bandwidth * 1e9
    # A NaN of either makes both unknown: no claim rests on half of a roofline.
    by_compute, by_memory = compute_ns / reached, memory_ns / moved
    achievable_ns = np.maximum(by_compute, by_memory)
    bound = np.where(by_compute >= by_memory, COMPUTE_BOUND, MEMORY_BOUND)
    bound = np.where(achievable_ns < LEAST_NS, LATENCY_BOUND, bound)
    bound = np.where(np.isnan(achievable_ns), UNKNOWN_BOUND, bound)
    return np.maximum(achievable_ns, LEAST_NS), bound
