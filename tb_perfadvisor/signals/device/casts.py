"""Device work that changes the number format of tensors."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.device.device_work import launchers, work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.hlo_text import parse_instruction
from tb_perfadvisor.trace.integer_groups import distinct, is_in, places_by_value
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


@cache
def _kernel_names() -> re.Pattern[str]:
    # PyTorch's kernels: copies to a 16-bit or 8-bit type, and copies that cast while loading.
    # TensorFlow's: Eigen's conversions between floating-point types, and generated kernels
    # (tensorflow/core/kernels/mlir_generated). Others convert masks and indices.
    eigen = r"(?:float|double|Eigen::half|Eigen::bfloat16)"
    target = r"TensorAssignOp<Eigen::TensorMap<Eigen::Tensor<[^<>]*>, \d+, Eigen::MakePointer>, "
    source = rf"Eigen::TensorConversionOp<{eigen}, Eigen::TensorMap<Eigen::Tensor<{eigen} const,"
    generated = r"DT_(?:FLOAT|DOUBLE|HALF|BFLOAT16)"
    return re.compile(
        r"(?:bfloat16|float16|float8\w*)_copy_kernel|direct_copy_kernel.*LoadWithCast"
        rf"|{target}{source}"
        rf"|^Cast_GPU_{generated}_{generated}_"
    )


@cache
def _hlo_names() -> re.Pattern[str]:
    return re.compile(r"(?:loop_|input_|wrapped_)?convert(?:_fusion)?(?:[._]\d+)*$")


def _has_cast_name(trace: Trace, names: Int32) -> NDArray[np.bool_]:
    known = distinct(names).tolist()
    casting = [name for name in known if _kernel_names().search(trace.strings[name])]
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
        if number >= 0 and _hlo_names().match(trace.text(int(trace.hlo.name[number]))):
            is_convert[executions] = True
            is_pure[executions] = _is_pure_convert(trace.text(int(trace.hlo.text[number])))
    return is_convert, is_pure


def _is_pure_convert(text: str) -> bool:
    instruction = parse_instruction(text)
    if instruction is None or len(instruction.results) != 1 or len(instruction.operands) != 1:
        return False
    (result,), (operand,) = instruction.results, instruction.operands
    return result.dims == operand.dims and result.dtype != operand.dtype
