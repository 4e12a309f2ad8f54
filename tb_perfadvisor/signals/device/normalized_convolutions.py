"""Convolutions that add a bias, although the next batch normalization subtracts it again."""

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
from tb_perfadvisor.trace.integer_groups import is_in, places_by_value, unique_inverse
from tb_perfadvisor.trace.tables import Int32


class NormalizedConvolutions(Struct, frozen=True):
    """Device work on such biases in the used window; columns of shape (n,)."""

    rows: Int32
    """Device work that adds the bias or sums its gradient, in order of start."""
    convolutions: Int32
    """The convolution whose bias each row works on."""


@memoized
def normalized_convolutions(signals: Signals) -> NormalizedConvolutions:
    """Kernels for biases between a convolution and a batch normalization."""
    events, operators = signals.trace.events, launchers(signals)
    normalized = _normalized_with_bias(signals.trace)
    rows = work_rows(signals)
    if not len(normalized):
        return NormalizedConvolutions(rows[:0], operators[:0])
    # An `add_` in the convolution adds the bias. A `sum` in the autograd node that is linked to the
    # convolution computes the gradient of the bias.
    families = kernel_families(signals)
    adds = (families == KernelFamily.ELEMENTWISE) & _are_named(signals.trace, operators, "add_")
    sums = (families == KernelFamily.REDUCTION) & _are_named(signals.trace, operators, "sum")
    index = np.flatnonzero(adds | sums)
    convolution, operator = np.full(len(index), -1, dtype=np.int32), operators[index]
    while (operator >= 0).any():
        added = np.where(adds[index] & is_in(operator, normalized), operator, -1)
        forward = np.where(sums[index] & (operator >= 0), events.forward[operator], -1)
        summed = np.where(is_in(forward, normalized), forward, -1)
        convolution = np.maximum(convolution, np.maximum(added, summed)).astype(np.int32)
        operator = operator_around(signals, operator)
    is_bias = convolution >= 0
    return NormalizedConvolutions(rows[index[is_bias]], convolution[is_bias])


def _normalized_with_bias(trace: Trace) -> Int32:
    """Convolutions with a bias whose next operator is a batch normalization of their output."""
    events = trace.events
    operators = trace.rows(EventKind.OPERATOR)
    convolutions = operators[_are_named(trace, operators, "convolution")]
    # The third input is the bias, with one number for each channel.
    channels = _size_of_input(trace, convolutions, 2, 0)
    convolutions, channels = convolutions[channels > 0], channels[channels > 0]
    if not _are_named(trace, operators, "batch_norm").any():
        return convolutions[:0]
    is_normalized = np.zeros(len(convolutions), dtype=bool)
    operators_by_track = {
        track: operators[places] for track, places in places_by_value(events.track[operators])
    }
    for track, index in places_by_value(events.track[convolutions]):
        on_track = operators_by_track[track]
        # Skip operators on a single number: batch normalization counts batches with one.
        on_track = on_track[largest_input(trace, on_track) > 1]
        slot = np.searchsorted(events.start_ns[on_track], events.end_ns[convolutions[index]])
        following = np.where(
            slot < len(on_track), on_track[np.minimum(slot, len(on_track) - 1)], np.int32(-1)
        )
        has_same_channels = _size_of_input(trace, following, 0, 1) == channels[index]
        is_normalized[index] = _are_named(trace, following, "batch_norm") & has_same_channels
    normalized: Int32 = convolutions[is_normalized]
    return normalized


def _size_of_input(trace: Trace, operators: Int32, position: int, dimension: int) -> Int32:
    """The size of a dimension of an input of each operator; 0 if there is none."""
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
    """Whether operators are `aten::name`; false for -1."""
    pattern = re.compile(rf"aten::{name}$")
    names = np.where(operators >= 0, trace.events.name[operators], -1)
    known, inverse = unique_inverse(names)
    matches = [pattern.match(trace.text(text)) is not None for text in known.tolist()]
    return np.array(matches, dtype=bool)[inverse]
