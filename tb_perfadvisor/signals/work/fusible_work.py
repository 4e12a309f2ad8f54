"""What fusing operators would save.

Operators that PyTorch runs one by one are put into kernels by `fused_traffic`. Where shapes were
recorded, it counts bytes. Elsewhere, the time of a kernel stands for its bytes: its name tells how
many tensors it reads and writes, and they share its time. Matrix products then end every kernel.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.operators import shapes_of
from tb_perfadvisor.signals.core.placement import computes
from tb_perfadvisor.signals.device.attention import (
    attention_by_order,
    layers_among,
    unfused_attention,
)
from tb_perfadvisor.signals.device.device_work import (
    is_within,
    kernel_families,
    launchers,
    work_rows,
)
from tb_perfadvisor.signals.host.call_tree import host_operators
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.work.fused_traffic import FusedTraffic, fused_traffic
from tb_perfadvisor.signals.work.operator_work import Extent, Operands, operands_of
from tb_perfadvisor.signals.work.roofline import MIN_KERNEL_NS
from tb_perfadvisor.trace import CopyDirection, EventKind, KernelFamily, Trace
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, is_in
from tb_perfadvisor.trace.tables import Float64, Int32, Int64

_MEMORY_BOUND: Final = (
    KernelFamily.NORMALIZATION,
    KernelFamily.SOFTMAX,
    KernelFamily.ELEMENTWISE,
    KernelFamily.REDUCTION,
    KernelFamily.EMBEDDING,
    KernelFamily.COPY,
    KernelFamily.RANDOM,
    KernelFamily.LAYOUT,
)
_LONG_NS: Final = 10_000
"""Kernels of this length show which bandwidth the program achieves, not how fast kernels start."""
_MOST_SPEEDUP: Final = 2.0
"""How much faster than the present kernels a fused one moves a byte, at most: kernels on strided
tensors reach half the bandwidth of others. Slower ones have another limit, which fusion keeps."""
LONG_ON_CPU_NS: Final = 20_000
"""What is shorter consists of dispatch. Views and allocations are, too."""
_SKIPPED: Final = 0
_BARRIER: Final = 1
_FIRST_KIND: Final = 2


class FusibleWork(Struct, frozen=True):
    """Device work that would be fused with other work; columns of shape (n,) or (kernels,)."""

    rows: Int32
    kernel: Int64
    """The fused kernel that each row becomes a part of; from 0, in order of start."""
    operators: Int64
    """Operators in each fused kernel, at least two; shape (kernels,)."""
    expected_share: Float64
    """Time of each fused kernel, relative to its rows now; shape (kernels,)."""
    least_share: Float64
    """The same if no tensor is read twice and the memory is used as well as possible."""
    most_share: Float64
    """The same if each further input is another tensor, at the present bandwidth."""
    now_bytes: Float64
    """What the operators of each fused kernel move now; shape (kernels,)."""
    fused_bytes: Float64
    """What is expected to remain of it; shape (kernels,)."""
    by_time: NDArray[np.bool_]
    """Whether its bytes are estimated from times, because shapes are missing; shape (kernels,)."""


# Operators that are not the model's: updates of parameters and sums of gradients.
_EXCLUDED: Final = regex(
    r"^(?:Optimizer\.|.*(?:AccumulateGrad|[Rr]educer)|aten::_(?:foreach|fused_))"
)


@memoized
def fusible_work(signals: Signals) -> FusibleWork:
    """The operators in the used window that a compiler would fuse."""
    events, rows = signals.trace.events, work_rows(signals)
    kinds, operands, is_estimated = _kinds(signals)
    order = np.lexsort((events.start_ns[rows], events.track[rows]))
    order = order[kinds[order] != _SKIPPED]
    kinds, is_estimated = kinds[order], is_estimated[order]
    rows, operator = rows[order], launchers(signals)[order]
    # A sequence is what one stream runs in one step up to an operator that may read anything, as
    # long as all of it is known in one way. Layers and steps repeat, so sequences do, too.
    begins = np.zeros(len(rows), dtype=bool)
    for column in (events.track[rows], signals.steps.owner[rows], is_estimated):
        begins[1:] |= column[1:] != column[:-1]
    begins[1:] |= (kinds[1:] >= _FIRST_KIND) & (kinds[:-1] == _BARRIER)
    # The kernels of one execution of an operator are one piece of work.
    starts = begins.copy()
    starts[:1] = True
    starts[1:] |= (operator[1:] != operator[:-1]) | (operator[1:] < 0)
    piece = np.cumsum(starts) - 1
    traffic, by_time = _traffic(
        kinds[starts], np.cumsum(begins)[starts], operands, is_estimated[starts]
    )
    return _fused(signals, rows, traffic.kernel[piece], traffic, by_time)


class HostFusion(Struct, frozen=True):
    """Operators on the CPU that a compiler would fuse; columns of shape (n,) or (kernels,)."""

    rows: Int32
    now_ns: Int64
    """Their own times."""
    kernel: Int64
    """The loop that each becomes a part of."""
    now_bytes: Float64
    """What the operators of each loop move now; shape (kernels,)."""
    fused_bytes: Float64
    """What the loop moves if no tensor of a size is read twice; shape (kernels,)."""


@memoized
def fusible_on_cpu(signals: Signals) -> HostFusion:
    """Operators on large tensors on the CPU that a compiler would fuse; none without shapes."""
    trace, found = signals.trace, host_operators(signals)
    around = (EventKind.OPERATOR, EventKind.ANNOTATION)
    chosen = (found.self_ns >= LONG_ON_CPU_NS) & (shapes_of(trace, found.rows) >= 0)
    # Not autograd's nodes and views, nor operators that only call others.
    chosen &= np.array([computes(name) for name in found.names], dtype=bool)[found.name]
    chosen &= 2 * found.self_ns >= trace.events.duration_ns[found.rows]
    chosen &= ~is_within(signals, found.rows, _EXCLUDED, around)
    chosen &= ~is_in(found.rows, layers_among(trace, found.rows, found.rows).rows)
    rows, now_ns = found.rows[chosen], found.self_ns[chosen]
    operands: list[Operands | None] = [None] * _FIRST_KIND
    kinds = _recorded_kinds(trace, rows, operands)
    # What a compiler makes of statistics over a batch, or of other layouts, was not measured.
    operands = [
        x._replace(fusible=False) if x is not None and (x.passes > 1 or x.copies) else x
        for x in operands
    ]
    step = signals.steps.owner[rows].astype(np.int64)
    traffic, _ = _traffic(kinds, step, operands, np.zeros(len(rows), dtype=bool))
    inside = traffic.kernel >= 0
    count = len(traffic.fused_bytes)
    operators = np.bincount(traffic.kernel[inside], minlength=count)
    now_bytes = np.bincount(
        traffic.kernel[inside], weights=traffic.now_bytes[inside], minlength=count
    ).astype(np.float64)
    is_fused = (operators >= 2) & (now_bytes > 0)
    kept = np.append(is_fused, np.False_)[traffic.kernel]  # -1 is the last
    number = np.cumsum(is_fused) - 1
    return HostFusion(
        rows[kept],
        now_ns[kept],
        number[traffic.kernel[kept]],
        now_bytes[is_fused],
        traffic.fused_bytes[is_fused],
    )


def _traffic(
    kinds: Int64,
    sequence: Int64,
    operands: list[Operands | None],
    is_estimated: NDArray[np.bool_],
) -> tuple[FusedTraffic, NDArray[np.bool_]]:
    """What all sequences move. Equal sequences are counted once.

    The second result tells whether each fused kernel is estimated.
    """
    known: dict[tuple[bytes, bool], FusedTraffic] = {}
    parts: list[FusedTraffic] = []
    kernel = np.full(len(kinds), -1, dtype=np.int64)
    now = np.zeros(len(kinds))
    fusible = np.flatnonzero(is_in(sequence, distinct(sequence[kinds >= _FIRST_KIND])))
    order = fusible[np.argsort(sequence[fusible], kind="stable")]
    ordered, raw = kinds[order], kinds[order].tobytes()
    begins = np.flatnonzero(np.append(True, np.diff(sequence[order])))[: len(order)]
    by_time = is_estimated[order[begins]]
    width, edges = kinds.itemsize, [*begins.tolist(), len(order)]
    # There may be a sequence for every few operators.
    for begin, end, estimated in zip(edges, edges[1:], by_time.tolist(), strict=False):
        key = raw[begin * width : end * width], estimated
        part = known.get(key)
        if part is None:
            pieces = (operands[kind] for kind in ordered[begin:end].tolist())
            part = known[key] = fused_traffic(pieces, estimated=estimated)
        parts.append(part)

    def joined(column: Callable[[FusedTraffic], Float64 | Int64]) -> Float64:
        return np.concatenate([np.empty(0), *map(column, parts)])

    counts = np.array([len(part.fused_bytes) for part in parts], dtype=np.int64)
    of_part = joined(lambda part: part.kernel).astype(np.int64)
    before = np.repeat(np.cumsum(counts) - counts, np.diff(edges))
    kernel[order] = np.where(of_part >= 0, of_part + before, -1)
    now[order] = joined(lambda part: part.now_bytes)
    return (
        FusedTraffic(
            kernel,
            now,
            joined(lambda part: part.fused_bytes),
            joined(lambda part: part.strict_bytes),
            joined(lambda part: part.launches).astype(np.int64),
        ),
        np.repeat(by_time, counts),
    )


def _fused(
    signals: Signals,
    rows: Int32,
    kernel: Int64,
    traffic: FusedTraffic,
    by_time: NDArray[np.bool_],
) -> FusibleWork:
    """Times of the fused kernels of at least two operators."""
    count = len(traffic.fused_bytes)
    inside, members = kernel >= 0, traffic.kernel >= 0
    duration_ns = signals.trace.events.duration_ns[rows]
    now_ns = np.bincount(kernel[inside], weights=duration_ns[inside], minlength=count).astype(
        np.float64
    )
    now_bytes = np.bincount(
        traffic.kernel[members], weights=traffic.now_bytes[members], minlength=count
    ).astype(np.float64)
    operators = np.bincount(traffic.kernel[members], minlength=count)
    rate = now_bytes / np.maximum(now_ns, 1)
    usual, best = _bandwidths(signals, now_bytes[~by_time], now_ns[~by_time])
    start_ns = traffic.launches * MIN_KERNEL_NS

    def share(moved: Float64, bandwidth: float) -> Float64:
        reached = np.where(by_time, rate, np.clip(bandwidth, rate, rate * _MOST_SPEEDUP))
        with np.errstate(divide="ignore", invalid="ignore"):
            then_ns = np.maximum(moved / reached, np.minimum(start_ns, now_ns))
            return np.clip(np.nan_to_num(then_ns / now_ns, nan=1.0), 0.0, 1.0)

    middle = (traffic.fused_bytes + traffic.strict_bytes) / 2
    is_fused = (operators >= 2) & (now_ns > 0) & (now_bytes > 0)
    number = np.cumsum(is_fused) - 1
    kept = np.append(is_fused, np.False_)[kernel]  # -1 is the last
    return FusibleWork(
        rows[kept],
        number[kernel[kept]],
        operators[is_fused],
        share(middle, usual)[is_fused],
        share(traffic.fused_bytes, best)[is_fused],
        share(traffic.strict_bytes, 0.0)[is_fused],
        now_bytes[is_fused],
        middle[is_fused],
        by_time[is_fused],
    )


def _bandwidths(signals: Signals, moved: Float64, now_ns: Float64) -> tuple[float, float]:
    """The bandwidth that the better kernels of the program reach, and the best of the device.

    In bytes per nanosecond; 0 if unknown.
    """
    facts = signals.device_facts
    peaks = facts.peaks if facts is not None else None
    peak = (peaks.memory_bandwidth_bytes_per_s or 0.0) if peaks is not None else 0.0
    best = peak * (peaks.achievable_bandwidth if peaks is not None else 0.0) / 1e9
    is_long = now_ns >= _LONG_NS
    rates, weights = (moved[is_long] / now_ns[is_long]), now_ns[is_long]
    if not len(rates):
        return 0.0, best
    order = np.argsort(rates)
    passed = np.cumsum(weights[order])
    upper = float(rates[order][np.searchsorted(passed, 0.75 * passed[-1])])
    return (min(upper, best) if best else upper), best


# --- what each row reads and writes -------------------------------------------------------------


def _kinds(signals: Signals) -> tuple[Int64, list[Operands | None], NDArray[np.bool_]]:
    """The kind of each of `work_rows`, the operands of each kind, and which rows lack shapes."""
    trace, rows, operator = signals.trace, work_rows(signals), launchers(signals)
    kinds = _common(signals)
    operands: list[Operands | None] = [None] * _FIRST_KIND
    is_estimated = shapes_of(trace, operator) < 0
    is_open = kinds < 0
    kinds[is_open] = _BARRIER
    is_bound = is_in(kernel_families(signals), _MEMORY_BOUND)
    index = np.flatnonzero(is_open & ~is_estimated)
    if len(index):
        kinds[index] = _recorded_kinds(trace, operator[index], operands)
        is_fusible = np.array([found is not None and found.fusible for found in operands])
        # A library's kernel, or one that was compiled, is complete.
        kinds[index[is_fusible[kinds[index]] & ~is_bound[index]]] = _BARRIER
    index = np.flatnonzero(is_open & is_estimated & is_bound)
    # Times that differ by less than this are not told apart.
    duration_ns = trace.events.duration_ns[rows[index]] // 100 * 100
    names, families = trace.events.name[rows[index]], kernel_families(signals)[index]
    first, group = group_rows(names, duration_ns)
    kinds[index] = group + len(operands)
    for place in first.tolist():
        family = KernelFamily(int(families[place]))
        operands.append(_estimated(trace.strings[names[place]], family, int(duration_ns[place])))
    return kinds, operands, is_estimated


def _recorded_kinds(trace: Trace, operators: Int32, operands: list[Operands | None]) -> Int64:
    """The kind of each operator with recorded inputs; adds what each new kind reads and writes."""
    table = trace.operators
    slot = np.searchsorted(table.row, operators)
    names = trace.events.name[operators]
    columns = (table.shapes[slot], table.dtypes[slot], table.values[slot])
    first, group = group_rows(names, *columns)
    kinds: Int64 = group + len(operands)
    for place in first.tolist():
        texts = (trace.text(int(column[place])) for column in columns)
        operands.append(operands_of(trace.strings[names[place]], *texts))
    return kinds


def _common(signals: Signals) -> Int64:
    """Kinds of rows that are decided in the same way with and without shapes; -1 for the rest."""
    trace, rows = signals.trace, work_rows(signals)
    events, copies = trace.events, trace.copies
    kinds = np.full(len(rows), -1, dtype=np.int64)
    direction = trace.by_event(copies.row, copies.direction, CopyDirection.UNKNOWN)[rows]
    is_kernel = events.kind[rows] == EventKind.KERNEL
    kinds[~is_kernel & (direction != CopyDirection.DEVICE_TO_DEVICE)] = _SKIPPED
    # The host waits for results that it reads, and decides on them what comes next.
    kinds[direction == CopyDirection.DEVICE_TO_HOST] = _BARRIER
    for attention in (unfused_attention(signals).rows, attention_by_order(signals).rows):
        kinds[is_in(rows, attention)] = _SKIPPED
    around = (EventKind.OPERATOR, EventKind.ANNOTATION)
    kinds[is_within(signals, launchers(signals), _EXCLUDED, around)] = _SKIPPED
    kinds[kernel_families(signals) == KernelFamily.OPTIMIZER] = _SKIPPED
    # Kernels on lists of tensors, such as all parameters.
    names = distinct(events.name[rows]).tolist()
    of_lists = [name for name in names if "multi_tensor_apply" in trace.strings[name]]
    kinds[is_in(events.name[rows], of_lists)] = _SKIPPED
    return kinds


def _estimated(name: str, family: KernelFamily, duration_ns: int) -> Operands | None:
    """What an eager kernel reads and writes, in units of the bytes of a nanosecond.

    None for kernels that PyTorch's own operators do not launch.
    """
    reads, stored, writes = _operand_counts(name, family)
    if not reads + stored + writes:
        return None
    extent = Extent(max(duration_ns // (reads + stored + writes), 1), 1)
    return Operands(
        (extent,) * reads,
        (extent,) * stored,
        (extent,) * writes,
        fusible=True,
        copies=family is KernelFamily.COPY and not re.search("float16_copy|WithCast", name),
    )


@lru_cache(maxsize=4096)
def _operand_counts(name: str, family: KernelFamily) -> tuple[int, int, int]:
    """Tensors that a kernel of PyTorch reads, reads from memory in any case, and writes."""
    if "at::native::" not in name and "at_cuda_detail" not in name:
        return 0, 0, 0
    # Elementwise kernels name the number of their tensors, the result included.
    if match := re.search(r"Array<char ?\*, (\d+)", name, re.IGNORECASE):
        return int(match[1]) - 1, 0, 1
    is_backward = re.search("(?i)backward|_grad", name) is not None
    if family is KernelFamily.EMBEDDING:
        return 0, 1, 1
    if family is KernelFamily.REDUCTION:
        return 1, 0, 0
    if re.search(r"<[^<]*(?:FillFunctor)", name):
        return 0, 0, 1
    is_binary = re.search(r"BinaryFunctor|CUDAFunctor_add|binary_internal", name) is not None
    is_binary &= re.search(r"[AB]UnaryFunctor|OnSelf", name) is None
    return 1 + is_binary, int(is_backward), 1
