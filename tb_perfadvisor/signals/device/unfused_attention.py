"""Attention computed operator by operator: softmax(Q Kᵀ) V as products around a softmax.

The scores are the matrix that a batched product makes, a softmax normalizes and another batched
product takes: the same shape three times on one thread. Whatever works on a matrix of that size
in between (scale, mask, dropout, casts) belongs to it, and so does its backward work, which
autograd links to the forward operators.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.operator_shapes import (
    Shape,
    largest_input,
    parse_shapes,
    shapes_of,
)
from tb_perfadvisor.signals.device.device_work import launchers, work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in, unique_inverse
from tb_perfadvisor.trace.tables import Int32, Int64

_PRODUCTS = ("aten::bmm", "aten::baddbmm")
_SOFTMAX = ("aten::_softmax", "aten::_safe_softmax")


class AttentionLayers(Struct, frozen=True):
    """Attention layers, one an execution; columns of shape (n,)."""

    first: Int32
    """The operator that makes the scores."""
    last: Int32
    """The operator that takes them."""
    sizes: Int64
    """Heads times batch, queries, keys, size of a head, size of a value; shape (n, 5)."""
    rows: Int32
    """Device work of all of them, in order of start; shape (work,)."""
    layer: Int32
    """Whose work each is; shape (work,)."""
    is_backward: NDArray[np.bool_]
    """Shape (work,)."""


@memoized
def unfused_attention(signals: Signals) -> AttentionLayers:
    """The attention layers whose device work runs in the used window."""
    trace = signals.trace
    first, last, sizes = _layers(trace)
    rows, operators = work_rows(signals), launchers(signals)
    layer = np.full(len(rows), -1, dtype=np.int32)
    if len(first):
        layer = _forward_layer(trace, operators, first, last, sizes)
    is_forward = layer >= 0
    if is_forward.any():
        node = _backward_node(trace, operators)
        forward = np.where(node >= 0, trace.events.forward[node], -1)
        behind = _forward_layer(trace, forward, first, last, sizes)
        layer = np.where(is_forward, layer, behind)
    kept = layer >= 0
    return AttentionLayers(
        first, last, sizes, rows[kept], layer[kept].astype(np.int32), ~is_forward[kept]
    )


def _layers(trace: Trace) -> tuple[Int32, Int32, Int64]:
    """Products that make and take what a softmax normalizes, in order of start."""
    events = trace.events
    operators = trace.rows(EventKind.OPERATOR)
    strings = trace.strings
    names = distinct(events.name[operators]).tolist()

    def named(wanted: tuple[str, ...]) -> Int32:
        return operators[is_in(events.name[operators], [n for n in names if strings[n] in wanted])]

    softmax = named(_SOFTMAX)
    nothing = np.empty(0, dtype=np.int32)
    if not len(softmax):
        return nothing, nothing, np.empty((0, 5), dtype=np.int64)
    product = named(_PRODUCTS)
    scores = _dims(trace, softmax, _scores)
    factors = _dims(trace, product, _factors)
    found: list[tuple[int, int, tuple[int, ...]]] = []
    for track in distinct(events.track[softmax]).tolist():
        on_track = events.track[product] == track
        mine = events.track[softmax] == track
        for shape in np.unique(scores[mine], axis=0):
            at = softmax[mine & (scores == shape).all(axis=1)]
            makes = product[on_track & (factors[:, [0, 1, 3]] == shape).all(axis=1)]
            takes = product[on_track & (factors[:, :3] == shape).all(axis=1)]
            if not shape.all() or not len(makes) or not len(takes):
                continue
            before = np.searchsorted(makes, at) - 1
            after = np.searchsorted(takes, at)
            # What lies beyond another softmax of this shape belongs to that one.
            previous = np.concatenate(([-1], at[:-1]))
            following = np.concatenate((at[1:], [len(events)]))
            is_layer = (before >= 0) & (after < len(takes))
            one, two = makes[np.maximum(before, 0)], takes[np.minimum(after, len(takes) - 1)]
            is_layer &= (one > previous) & (two < following)
            slot = np.searchsorted(product, (one, two))
            size, value = factors[slot[0], 2], factors[slot[1], 3]
            found.extend(
                (int(one[i]), int(two[i]), (*shape.tolist(), int(size[i]), int(value[i])))
                for i in np.flatnonzero(is_layer).tolist()
            )
    found.sort()
    return (
        np.array([one for one, _, _ in found], dtype=np.int32),
        np.array([two for _, two, _ in found], dtype=np.int32),
        np.array([sizes for _, _, sizes in found], dtype=np.int64).reshape(-1, 5),
    )


def _dims(
    trace: Trace, operators: Int32, read: Callable[[tuple[Shape, ...]], tuple[int, ...]]
) -> Int64:
    """What is read of the shapes of some operators' inputs; one row each."""
    texts, inverse = unique_inverse(shapes_of(trace, operators))
    return np.array([read(parse_shapes(trace.text(t))) for t in texts.tolist()])[inverse]


def _scores(inputs: tuple[Shape, ...]) -> tuple[int, ...]:
    """Matrices, rows and columns of what a softmax takes; zeros where unknown."""
    shape = inputs[0] if inputs else ()
    return (prod(shape[:-2]), *shape[-2:]) if len(shape) >= 3 else (0, 0, 0)


def _factors(inputs: tuple[Shape, ...]) -> tuple[int, ...]:
    """Matrices, rows, inner size and columns of a batched product; zeros where unknown."""
    factors = [shape for shape in inputs if len(shape) == 3][-2:]
    if len(factors) < 2 or factors[0][2] != factors[1][1]:
        return (0, 0, 0, 0)
    return (*factors[0], factors[1][2])


def _forward_layer(
    trace: Trace, operators: Int32, first: Int32, last: Int32, sizes: Int64
) -> Int32:
    """The layer that each operator belongs to; -1 for none."""
    events = trace.events
    found = np.full(len(operators), -1, dtype=np.int32)
    for track in distinct(events.track[first]).tolist():
        own = np.flatnonzero(events.track[first] == track)
        slot = np.searchsorted(first[own], operators, side="right") - 1
        layer = own[np.maximum(slot, 0)]
        is_between = (slot >= 0) & (operators <= last[layer])
        is_between &= events.track[operators] == track
        index = np.flatnonzero(is_between)
        scores = sizes[layer[index], :3].prod(axis=1)
        is_piece = largest_input(trace, operators[index]) == scores
        is_piece |= operators[index] == first[layer[index]]
        found[index[is_piece]] = layer[index[is_piece]]
    return found


def _backward_node(trace: Trace, operators: Int32) -> Int32:
    """The innermost event around each operator that is linked to a forward one; -1 for none."""
    events = trace.events
    node = operators.astype(np.int32)
    while True:
        climbs = (node >= 0) & (events.forward[node] < 0)
        if not climbs.any():
            return node
        node = np.where(climbs, events.parent[node], node)
