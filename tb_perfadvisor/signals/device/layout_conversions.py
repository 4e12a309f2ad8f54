"""Device work that only rearranges a tensor for another memory layout."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.signals.device.device_work import (
    is_within,
    kernel_families,
    launchers,
    work_rows,
)
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, KernelFamily
from tb_perfadvisor.trace.hlo_text import parse_instruction
from tb_perfadvisor.trace.integer_groups import distinct, is_in, unique_inverse
from tb_perfadvisor.trace.tables import Int32


@cache
def _between_channel_orders() -> re.Pattern[str]:
    """Kernels of cuDNN and MIOpen that move the channel dimension, whichever operator runs them."""
    return re.compile(r"(?i).*(?:nchw\w*tonhwc|nhwc\w*tonchw|foldednhwc|batched_transpose_\d)")


@cache
def _type_conversion() -> re.Pattern[str]:
    """CuDNN's kernel for converting numbers, element by element."""
    return re.compile(r".*convertTensor_kernel")


@cache
def _convolution() -> re.Pattern[str]:
    return re.compile(
        r"aten::(?:_?convolution\w*|conv\d|conv_transpose|cudnn_convolution|miopen_convolution)"
        r"|(?:autograd::engine::evaluate_function: )?\w*Conv(?:olution)?\w*Backward\d*$"
    )


@memoized
def layout_conversions(signals: Signals) -> Int32:
    """Rows of layout conversions in the used window, in order of start.

    In PyTorch, these are conversions for convolutions: kernels of cuDNN and MIOpen that reorder
    dimensions, and copies that a convolution makes of its operands. In other frameworks, these are
    transposes and XLA copies between layouts. Empty on a TPU, which has other rules for this.
    """
    rows = work_rows(signals)
    facts = signals.device_facts
    if facts is None or facts.kind == "tpu":
        return rows[:0]
    family = kernel_families(signals)
    is_layout = family == KernelFamily.LAYOUT
    if signals.trace.source.framework == "pytorch":
        is_candidate = is_layout | (family == KernelFamily.COPY)
        in_convolution = np.zeros(len(rows), dtype=bool)
        in_convolution[is_candidate] = is_within(
            signals, launchers(signals)[is_candidate], _convolution(), (EventKind.OPERATOR,)
        )
        is_layout &= in_convolution | _is_named(signals, rows, _between_channel_orders())
        is_layout |= (family == KernelFamily.COPY) & in_convolution
        is_layout &= ~_is_named(signals, rows, _type_conversion())
    else:
        is_layout |= _is_xla_conversion(signals)[rows]
    conversions: Int32 = rows[is_layout]
    return conversions


def _is_named(signals: Signals, rows: Int32, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    names, inverse = unique_inverse(signals.trace.events.name[rows])
    strings = signals.trace.strings
    matches = [pattern.match(strings[name]) is not None for name in names.tolist()]
    return np.array(matches, dtype=bool)[inverse]


def _is_xla_conversion(signals: Signals) -> NDArray[np.bool_]:
    """Whether events execute an XLA transpose or a copy to another layout; shape (events,)."""
    trace = signals.trace
    is_conversion = np.zeros(len(trace.events), dtype=bool)
    for text in distinct(trace.hlo.text):
        instruction = parse_instruction(trace.text(int(text)))
        if instruction is None or not (instruction.results and instruction.operands):
            continue
        before, after = instruction.operands[0], instruction.results[0]
        if instruction.opcode == "transpose" or (
            instruction.opcode == "copy" and before.minor_to_major != after.minor_to_major
        ):
            ops = np.flatnonzero(trace.hlo.text == text)
            is_conversion[trace.hlo_events.row[is_in(trace.hlo_events.op, ops)]] = True
    return is_conversion
