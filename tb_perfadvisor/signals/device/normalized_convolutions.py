"""Convolutions that add a bias which the batch normalization behind them takes away again."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.operator_shapes import largest_input, parse_shapes, shapes_of
from tb_perfadvisor.signals.device.device_work import (
    kernel_families,
    launchers,
    operator_around,
    work_rows,
)
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, KernelFamily, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in, unique_inverse
from tb_perfadvisor.trace.tables import Int32


class NormalizedConvolutions(Struct, frozen=True):
    """Work on such biases in the used window."""

    rows: Int32
    """Device work that adds the bias or sums its gradient, in order of start."""
    convolutions: Int32
    """Whose bias each works on."""


@memoized
def normalized_convolutions(signals: Signals) -> NormalizedConvolutions:
    """The kernels of biases between a convolution and a batch normalization."""
    events, operators = signals.trace.events, launchers(signals)
    found = _with_bias(signals.trace)
    rows = work_rows(signals)
    if not len(found):
        return NormalizedConvolutions(rows[:0], operators[:0])
    # The bias is added by an `add_` in the convolution; its gradient is a `sum` in the node that
    # autograd links to the convolution.
    families = kernel_families(signals)
    adds = (families == KernelFamily.ELEMENTWISE) & _are_named(signals.trace, operators, "add_")
    sums = (families == KernelFamily.REDUCTION) & _are_named(signals.trace, operators, "sum")
    index = np.flatnonzero(adds | sums)
    owner, at = np.full(len(index), -1, dtype=np.int32), operators[index]
    while (at >= 0).any():
        itself = np.where(adds[index] & is_in(at, found), at, -1)
        forward = np.where(sums[index] & (at >= 0), events.forward[at], -1)
        hit = np.maximum(itself, np.where(is_in(forward, found), forward, -1))
        owner = np.maximum(owner, hit).astype(np.int32)
        at = operator_around(signals, at)
    kept = owner >= 0
    return NormalizedConvolutions(rows[index[kept]], owner[kept])


def _with_bias(trace: Trace) -> Int32:
    """Convolutions with a bias whose next operator is a batch normalization of their output."""
    events = trace.events
    operators = trace.rows(EventKind.OPERATOR)
    convolutions = operators[_are_named(trace, operators, "convolution")]
    channels = _channels(trace, convolutions)
    convolutions, channels = convolutions[channels > 0], channels[channels > 0]
    if not _are_named(trace, operators, "batch_norm").any():
        return convolutions[:0]
    found = np.zeros(len(convolutions), dtype=bool)
    for track in distinct(events.track[convolutions]).tolist():
        own = np.flatnonzero(events.track[convolutions] == track)
        others = operators[events.track[operators] == track]
        # The count of batches is an operator on a single number.
        others = others[largest_input(trace, others) > 1]
        after = np.searchsorted(events.start_ns[others], events.end_ns[convolutions[own]])
        following = np.where(
            after < len(others), others[np.minimum(after, len(others) - 1)], np.int32(-1)
        )
        is_normalized = _are_named(trace, following, "batch_norm")
        is_normalized &= _normalized_channels(trace, following) == channels[own]
        found[own] = is_normalized
    chosen: Int32 = convolutions[found]
    return chosen


def _channels(trace: Trace, convolutions: Int32) -> Int32:
    """The size of each convolution's bias; 0 without one."""
    return _read(trace, convolutions, 2, 0)


def _normalized_channels(trace: Trace, operators: Int32) -> Int32:
    return _read(trace, operators, 0, 1)


def _read(trace: Trace, operators: Int32, position: int, dimension: int) -> Int32:
    """A dimension of an input of each operator; 0 where there is none."""
    texts, inverse = unique_inverse(shapes_of(trace, operators))
    sizes = []
    for text in texts.tolist():
        inputs = parse_shapes(trace.text(text))
        shape = inputs[position] if position < len(inputs) else ()
        sizes.append(min(shape[dimension], 2**31 - 1) if dimension < len(shape) else 0)
    return np.array(sizes, dtype=np.int32)[inverse]


def _are_named(
    trace: Trace, operators: Int32, name: str
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether operators are PyTorch's of some name; -1 is none."""
    pattern = re.compile(rf"aten::{name}$")
    names = np.where(operators >= 0, trace.events.name[operators], -1)
    known, inverse = unique_inverse(names)
    matches = [pattern.match(trace.text(one)) is not None for one in known.tolist()]
    return np.array(matches, dtype=bool)[inverse]
