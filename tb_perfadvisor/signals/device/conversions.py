"""Conversions of types and layouts, and unpacked weights.

Weights stored in 4 or 8 bits are small, but a kernel that writes them out in 16 bits moves more
bytes than 16-bit weights would: it reads the packed ones and writes wide ones, which the product
reads again. A product that unpacks them itself reads the packed ones only.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.device.device_work import (
    is_within,
    kernel_families,
    launchers,
    work_rows,
)
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, KernelFamily, Trace
from tb_perfadvisor.trace.hlo_text import parse_instruction
from tb_perfadvisor.trace.integer_groups import distinct, is_in, places_by_value
from tb_perfadvisor.trace.names import named
from tb_perfadvisor.trace.tables import Int32

_FLOATS = frozenset({"double", "float", "c10::Half", "c10::BFloat16"})


class Casts(Struct, frozen=True):
    """Casts on the device; columns of shape (n,), in order of start."""

    rows: Int32
    is_pure: NDArray[np.bool_]
    """Whether the event only casts; an XLA convert fusion may also compute."""


@memoized
def casts(signals: Signals) -> Casts:
    """Casts that run in the used window."""
    trace, rows = signals.trace, work_rows(signals)
    is_kernel = trace.events.kind[rows] == EventKind.KERNEL
    is_pure = _has_cast_name(trace, trace.events.name[rows])
    is_pure |= _is_casting_copy(trace, launchers(signals))
    is_convert, is_pure_convert = _xla_converts(trace, rows)
    is_pure |= is_pure_convert
    is_cast = is_kernel & (is_pure | is_convert)
    return Casts(rows[is_cast], is_pure[is_cast])


# PyTorch's kernels: copies to a 16-bit or 8-bit type, and copies that cast while loading.
# TensorFlow's: Eigen's conversions between floating-point types, and generated kernels
# (tensorflow/core/kernels/mlir_generated). Others convert masks and indices.
_EIGEN = r"(?:float|double|Eigen::half|Eigen::bfloat16)"
_TARGET = r"TensorAssignOp<Eigen::TensorMap<Eigen::Tensor<[^<>]*>, \d+, Eigen::MakePointer>, "
_SOURCE = rf"Eigen::TensorConversionOp<{_EIGEN}, Eigen::TensorMap<Eigen::Tensor<{_EIGEN} const,"
_GENERATED = r"DT_(?:FLOAT|DOUBLE|HALF|BFLOAT16)"
_KERNEL_NAMES = regex(
    r"(?:bfloat16|float16|float8\w{0,20})_copy_kernel|direct_copy_kernel.{0,400}LoadWithCast"
    rf"|{_TARGET}{_SOURCE}"
    rf"|^Cast_GPU_{_GENERATED}_{_GENERATED}_"
)
_HLO_NAMES = regex(r"(?:loop_|input_|wrapped_)?convert(?:_fusion)?(?:[._]\d+)*$")


def _has_cast_name(trace: Trace, names: Int32) -> NDArray[np.bool_]:
    known = distinct(names).tolist()
    casting = [name for name in known if _KERNEL_NAMES.search(trace.strings[name])]
    return is_in(names, casting)


def _is_casting_copy(trace: Trace, operators: Int32) -> NDArray[np.bool_]:
    """Whether operators copy between different floating-point types."""
    table = trace.operators
    dtypes = trace.by_event(table.row, table.dtypes, -1)
    types = np.where(operators >= 0, dtypes[operators], -1)
    names = np.where(operators >= 0, trace.events.name[operators], -1)
    known = distinct(names[names >= 0]).tolist()
    is_copy = is_in(names, [name for name in known if trace.strings[name] == "aten::copy_"])
    known_types = distinct(types[is_copy & (types >= 0)]).tolist()
    casting = [dtypes for dtypes in known_types if _casts_floats(trace.strings[dtypes])]
    return is_copy & is_in(types, casting)


def _casts_floats(dtypes: str) -> bool:
    target, source, *_ = (*dtypes.split(";"), "")
    return target != source and {target, source} <= _FLOATS


def _xla_converts(trace: Trace, rows: Int32) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether events are XLA converts, and whether these do nothing else."""
    op = trace.operations(rows)
    is_convert, is_pure = np.zeros(len(rows), dtype=bool), np.zeros(len(rows), dtype=bool)
    for number, executions in places_by_value(op):
        if number >= 0 and _HLO_NAMES.match(trace.text(int(trace.hlo.name[number]))):
            is_convert[executions] = True
            is_pure[executions] = _is_pure_convert(trace.text(int(trace.hlo.text[number])))
    return is_convert, is_pure


def _is_pure_convert(text: str) -> bool:
    instruction = parse_instruction(text)
    if instruction is None or len(instruction.results) != 1 or len(instruction.operands) != 1:
        return False
    (result,), (operand,) = instruction.results, instruction.operands
    return result.dims == operand.dims and result.dtype != operand.dtype


# Kernels of cuDNN and MIOpen that move the channel dimension, whichever operator runs them.
_BETWEEN_CHANNEL_ORDERS = regex(
    r"(?i)(?:nchw\w{0,60}tonhwc|nhwc\w{0,60}tonchw|foldednhwc|batched_transpose_\d)"
)
# CuDNN's kernel for converting numbers, element by element.
_TYPE_CONVERSION = regex(r"convertTensor_kernel")
_CONVOLUTION = regex(
    r"^aten::(?:_?convolution\w*|conv\d|conv_transpose|cudnn_convolution|miopen_convolution)"
    r"|^(?:autograd::engine::evaluate_function: )?\w*Conv\w{0,60}Backward\d*$"
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
            signals, launchers(signals)[is_candidate], _CONVOLUTION, (EventKind.OPERATOR,)
        )
        is_layout &= in_convolution | named(signals.trace, rows, _BETWEEN_CHANNEL_ORDERS)
        is_layout |= (family == KernelFamily.COPY) & in_convolution
        is_layout &= ~named(signals.trace, rows, _TYPE_CONVERSION)
    else:
        is_layout |= _is_xla_conversion(signals)[rows]
    conversions: Int32 = rows[is_layout]
    return conversions


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
