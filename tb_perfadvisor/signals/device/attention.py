"""Attention that is not fused, by its operators or by the order of kernels.

The scores are the output of one batched product, the input of a softmax, and an operand of another
batched product: the same shape three times on one thread. Operators between them on a matrix of
this size (scale, mask, dropout, casts) belong to the attention layer, and so does the backward work
that autograd links to the forward operators. A model tells how long a fused kernel would take.

Without shapes, attention is a softmax between two products with only memory-bound kernels between
them: scaling, mask, softmax, dropout and casts, or their gradients. A fused kernel keeps the scores
on the chip: these kernels go, and the products stay.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.hardware import Peaks
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.operators import (
    Shape,
    largest_input,
    parse_shapes,
    shapes_of,
)
from tb_perfadvisor.signals.core.placement import has_ancestor
from tb_perfadvisor.signals.core.precision import width_of_types
from tb_perfadvisor.signals.device.device_work import kernel_families, launchers, work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, KernelFamily, Precision, Trace
from tb_perfadvisor.trace.integer_groups import (
    distinct,
    group_rows,
    is_in,
    places_by_value,
    unique_inverse,
)
from tb_perfadvisor.trace.names import named
from tb_perfadvisor.trace.nesting import nearest
from tb_perfadvisor.trace.tables import Float64, Int32, Int64

ATTENTION_PRODUCTS = ("aten::bmm", "aten::baddbmm", "aten::baddbmm_")
_SOFTMAX = ("aten::_softmax", "aten::_safe_softmax")
_BACKWARD_FLOP = 2.5
"""Relative to forward: five products instead of two, since the scores are recomputed."""
_BACKWARD_TRAFFIC = 2.0
"""Relative to forward: reads inputs, output and its gradient, and writes three gradients."""
_PEAKS = {
    Precision.BITS_16: ("bf16", "fp16"),
    # Unless TF32 is allowed, fused kernels multiply 32-bit numbers on the vector units.
    Precision.BITS_32: ("fp32",),
}
_ITEM_BYTES = {Precision.BITS_16: 2, Precision.BITS_32: 4}


class AttentionLayers(Struct, frozen=True):
    """Executions of attention layers; columns of shape (n,) unless stated otherwise."""

    first: Int32
    """The product that computes the scores."""
    last: Int32
    """The product that consumes them."""
    sizes: Int64
    """Heads times batch size, queries, keys, head size, value size; shape (n, 5)."""
    rows: Int32
    """Device work of all layers, in order of start; shape (work,)."""
    layer: Int32
    """The layer that each row belongs to; shape (work,)."""
    is_backward: NDArray[np.bool_]
    """Whether each row is backward work; shape (work,)."""


@memoized
def unfused_attention(signals: Signals) -> AttentionLayers:
    """Unfused attention layers, and their device work in the used window."""
    return layers_among(signals.trace, work_rows(signals), launchers(signals))


def layers_among(trace: Trace, rows: Int32, operators: Int32) -> AttentionLayers:
    """Unfused attention layers, and which rows are their work, each done for one of `operators`."""
    first, last, sizes = _layers(trace)
    layer = np.full(len(rows), -1, dtype=np.int32)
    if len(first):
        layer = _forward_layer(trace, operators, first, last, sizes)
    is_forward = layer >= 0
    if is_forward.any():
        node = _backward_node(trace, operators)
        forward = np.where(node >= 0, trace.events.forward[node], -1)
        backward_layer = _forward_layer(trace, forward, first, last, sizes)
        layer = np.where(is_forward, layer, backward_layer)
    in_layer = layer >= 0
    return AttentionLayers(
        first,
        last,
        sizes,
        rows[in_layer],
        layer[in_layer].astype(np.int32),
        ~is_forward[in_layer],
    )


def _layers(trace: Trace) -> tuple[Int32, Int32, Int64]:
    """Pairs of products around a softmax, in order of start, and their sizes."""
    events = trace.events
    operators = trace.rows(EventKind.OPERATOR)

    def named(wanted: tuple[str, ...]) -> Int32:
        return operators[trace.is_any_of(events.name[operators], *wanted)]

    softmax = named(_SOFTMAX)
    # A safe softmax calls a plain one.
    is_outer = ~has_ancestor(events.parent, softmax, is_in(np.arange(len(events)), softmax))
    softmax = softmax[is_outer]
    if not len(softmax):
        no_rows = np.empty(0, dtype=np.int32)
        return no_rows, no_rows, np.empty((0, 5), dtype=np.int64)
    product = named(ATTENTION_PRODUCTS)
    scores = _dims(trace, softmax, _softmax_dims)
    factors = _dims(trace, product, _product_dims)
    # Only operators of one thread and one shape of scores belong together.
    columns = (softmax, scores), (product, factors[:, [0, 1, 3]]), (product, factors[:, :3])
    kinds = np.concatenate(
        [np.column_stack((events.track[rows], shapes)) for rows, shapes in columns]
    )
    _, kind = group_rows(*kinds.T)
    ends = np.cumsum([len(rows) for rows, _ in columns])
    of_softmax, of_producer, of_consumer = np.split(kind, ends[:-1])
    producers_by_kind, consumers_by_kind = (
        {number: product[places] for number, places in places_by_value(of_product)}
        for of_product in (of_producer, of_consumer)
    )
    layers: list[tuple[int, int, tuple[int, ...]]] = []
    for number, places in places_by_value(of_softmax):
        rows, shape = softmax[places], scores[places[0]]
        producers = producers_by_kind.get(number)
        consumers = consumers_by_kind.get(number)
        if not shape.all() or producers is None or consumers is None:
            continue
        before = np.searchsorted(producers, rows) - 1
        after = np.searchsorted(consumers, rows)
        # Products beyond another softmax of this shape belong to that softmax.
        previous = np.concatenate(([-1], rows[:-1]))
        following = np.concatenate((rows[1:], [len(events)]))
        is_layer = (before >= 0) & (after < len(consumers))
        first = producers[np.maximum(before, 0)]
        last = consumers[np.minimum(after, len(consumers) - 1)]
        is_layer &= (first > previous) & (last < following)
        slot = np.searchsorted(product, (first, last))
        size, value = factors[slot[0], 2], factors[slot[1], 3]
        layers.extend(
            (int(first[i]), int(last[i]), (*shape.tolist(), int(size[i]), int(value[i])))
            for i in np.flatnonzero(is_layer).tolist()
        )
    layers.sort()
    return (
        np.array([first for first, _, _ in layers], dtype=np.int32),
        np.array([last for _, last, _ in layers], dtype=np.int32),
        np.array([sizes for _, _, sizes in layers], dtype=np.int64).reshape(-1, 5),
    )


def _dims(
    trace: Trace, operators: Int32, read: Callable[[tuple[Shape, ...]], tuple[int, ...]]
) -> Int64:
    """One row per operator: what a function reads from the shapes of its inputs."""
    texts, inverse = unique_inverse(shapes_of(trace, operators))
    sizes = [read(parse_shapes(trace.text(text))) for text in texts.tolist()]
    width = len(read(()))
    return np.array(sizes, dtype=np.int64).reshape(-1, width)[inverse]


def _softmax_dims(inputs: tuple[Shape, ...]) -> tuple[int, ...]:
    """Matrices, rows and columns of a softmax's input; zeros if unknown."""
    shape = inputs[0] if inputs else ()
    return (prod(shape[:-2]), *shape[-2:]) if len(shape) >= 3 else (0, 0, 0)


def _product_dims(inputs: tuple[Shape, ...]) -> tuple[int, ...]:
    """Matrices, rows, inner size and columns of a batched product; zeros if unknown."""
    factors = [shape for shape in inputs if len(shape) == 3][-2:]
    if len(factors) < 2 or factors[0][2] != factors[1][1]:
        return (0, 0, 0, 0)
    return (*factors[0], factors[1][2])


def _forward_layer(
    trace: Trace, operators: Int32, first: Int32, last: Int32, sizes: Int64
) -> Int32:
    """The layer that each forward operator belongs to; -1 for none."""
    events = trace.events
    layer_of_operator = np.full(len(operators), -1, dtype=np.int32)
    known = np.flatnonzero(operators >= 0)
    known_by_track = {
        track: known[places] for track, places in places_by_value(events.track[operators[known]])
    }
    for track, on_track in places_by_value(events.track[first]):
        here = known_by_track.get(track, known[:0])
        slot = np.searchsorted(first[on_track], operators[here], side="right") - 1
        is_between = (slot >= 0) & (operators[here] <= last[on_track[np.maximum(slot, 0)]])
        index = here[is_between]
        layer = np.full(len(operators), -1, dtype=np.int64)
        layer[index] = on_track[slot[is_between]]
        scores = sizes[layer[index], :3].prod(axis=1)
        is_part = largest_input(trace, operators[index]) == scores
        is_part |= is_in(operators[index], (*first.tolist(), *last.tolist()))
        layer_of_operator[index[is_part]] = layer[index[is_part]]
    return layer_of_operator


def _backward_node(trace: Trace, operators: Int32) -> Int32:
    """The innermost event at or around each operator with a link to a forward one; -1 for none."""
    events = trace.events
    around = nearest(events.parent, events.forward >= 0)
    return np.where(operators >= 0, around[operators], np.int32(-1))


def fused_attention_ns(
    signals: Signals, attention: AttentionLayers, peaks: Peaks, efficiency: float
) -> Float64:
    """Time of a fused kernel, forward and backward of each layer in turn; NaN if unknown.

    These layers are computed operator by operator. The kernel reaches the share `efficiency` of the
    peak rate.
    """
    heads, queries, keys, size, value = attention.sizes.astype(np.float64).T
    flop = 2 * heads * queries * keys * (size + value)
    elements = heads * (queries + keys) * (size + value)
    rate, item_bytes = _rates_and_sizes(signals, attention, peaks)
    bandwidth = peaks.memory_bandwidth_bytes_per_s or np.nan
    forward = np.fmax(
        flop / (rate * efficiency), elements * item_bytes / (bandwidth * peaks.achievable)
    )
    backward = np.fmax(
        _BACKWARD_FLOP * flop / (rate * efficiency),
        _BACKWARD_TRAFFIC * elements * item_bytes / (bandwidth * peaks.achievable),
    )
    fused: Float64 = np.column_stack((forward, backward)).ravel() * 1e9
    fused[np.isnan(np.repeat(rate, 2))] = np.nan
    return fused


def _rates_and_sizes(
    signals: Signals, attention: AttentionLayers, peaks: Peaks
) -> tuple[Float64, Float64]:
    """Peak rate and bytes per element of each layer's data type; NaN where unknown."""
    table = signals.trace.operators
    types = signals.trace.by_event(table.row, table.dtypes, -1)[attention.first]
    rate, item_bytes = np.full(len(types), np.nan), np.full(len(types), np.nan)
    for text in distinct(types).tolist():
        width = width_of_types(signals.trace.text(text))
        known = (peaks.flop_per_s(name, tensor=name != "fp32") for name in _PEAKS.get(width, ()))
        rate[types == text] = next((peak for peak in known if peak is not None), np.nan)
        item_bytes[types == text] = _ITEM_BYTES.get(width, np.nan)
    return rate, item_bytes


_ON_SCORES: Final = (
    KernelFamily.SOFTMAX,
    KernelFamily.ELEMENTWISE,
    KernelFamily.COPY,
    KernelFamily.RANDOM,
)
_MOST_BETWEEN: Final = 12
"""Kernels on the scores: scale, mask, casts, softmax, dropout and its mask, in both widths."""


class OrderedAttention(Struct, frozen=True):
    """Memory-bound kernels on the scores; columns of shape (n,), in order of start."""

    rows: Int32
    layer: Int64
    """The execution of an attention layer that each belongs to, forward or backward; from 0."""


# The last layer of a classifier and its loss.
_OTHER_SOFTMAX: Final = regex(r"(?i)log_?soft_?max")


@memoized
def attention_by_order(signals: Signals) -> OrderedAttention:
    """Kernels on the scores of unfused attention in the used window; none if shapes are known."""
    trace, events, rows = signals.trace, signals.trace.events, work_rows(signals)
    families = kernel_families(signals)
    none = OrderedAttention(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64))
    if (trace.operators.shapes >= 0).any() or not (families == KernelFamily.SOFTMAX).any():
        return none
    is_kernel = events.kind[rows] == EventKind.KERNEL
    index = np.flatnonzero(is_kernel)
    index = index[np.lexsort((events.start_ns[rows[index]], events.track[rows[index]]))]
    family, track = families[index], events.track[rows[index]]
    is_product = _is_batched_product(signals, rows[index], family, launchers(signals)[index])
    is_bound = is_in(family, _ON_SCORES) & ~named(trace, rows[index], _OTHER_SOFTMAX)
    is_softmax = family == KernelFamily.SOFTMAX
    # Everything else ends a stretch; the number of ends before a kernel is its stretch.
    ends = np.flatnonzero(~is_bound)
    stretch = np.searchsorted(ends, np.arange(len(index)))
    softmaxes = np.bincount(stretch[is_bound & is_softmax], minlength=len(ends) + 1)
    first, last = ends[:-1], ends[1:]
    is_layer = (softmaxes[1:-1] == 1) & is_product[first] & is_product[last]
    is_layer &= (track[first] == track[last]) & (last - first - 1 <= _MOST_BETWEEN)
    number = np.full(len(ends) + 1, -1, dtype=np.int64)
    chosen = np.flatnonzero(is_layer)
    if len(chosen) < 2:  # attention comes in layers
        return none
    number[chosen + 1] = np.arange(len(chosen))
    layer = np.where(is_bound, number[stretch], -1)
    inside = layer >= 0
    found = rows[index[inside]]
    order = np.argsort(found, kind="stable")
    return OrderedAttention(found[order], layer[inside][order])


def _is_batched_product(
    signals: Signals, rows: Int32, family: NDArray[np.uint8], operators: Int32
) -> NDArray[np.bool_]:
    """Whether kernels are matrix products that may be batched, as far as operators are known."""
    trace = signals.trace
    is_product = family == KernelFamily.MATMUL
    names = np.where(operators >= 0, trace.events.name[operators], -1)
    known = distinct(names[names >= 0]).tolist()
    single = [name for name in known if trace.strings[name] not in ("aten::bmm", "aten::baddbmm")]
    may_be: NDArray[np.bool_] = is_product & ~is_in(names, single)
    return may_be
