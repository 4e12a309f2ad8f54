"""Device work that changes the number format of tensors."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.hlo import parse_instruction
from tb_perfadvisor.signals.device.device_work import launchers, work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.tables import Int32

_FLOATS = frozenset({"double", "float", "c10::Half", "c10::BFloat16"})


class Casts(Struct, frozen=True):
    """Columns of shape (n,), in order of start."""

    rows: Int32
    is_pure: NDArray[np.bool_]
    """Whether it does nothing else; XLA's converts may compute in the wider format besides."""


@memoized
def casts(signals: Signals) -> Casts:
    """The casts that run in the used window."""
    trace, rows = signals.trace, work_rows(signals)
    is_kernel = trace.events.kind[rows] == EventKind.KERNEL
    by_name = _named(trace, trace.events.name[rows])
    by_operator = _of_operators(trace, launchers(signals))
    hlo = _of_hlo(trace, rows)
    is_cast = is_kernel & (by_name | by_operator | (hlo > 0))
    return Casts(rows[is_cast], (by_name | by_operator | (hlo == 2))[is_cast])


@cache
def _kernel_names() -> re.Pattern[str]:
    # PyTorch's own kernels: copies to a 16-bit or 8-bit type, and copies that cast as they load.
    return re.compile(
        r"(?:bfloat16|float16|float8\w*)_copy_kernel|direct_copy_kernel.*LoadWithCast"
    )


@cache
def _hlo_names() -> re.Pattern[str]:
    return re.compile(r"(?:loop_|input_|wrapped_)?convert(?:_fusion)?(?:[._]\d+)*$")


def _named(trace: Trace, names: Int32) -> NDArray[np.bool_]:
    known = distinct(names)
    casting = [one for one in known.tolist() if _kernel_names().search(trace.strings[one])]
    return is_in(names, casting)


def _of_operators(trace: Trace, operators: Int32) -> NDArray[np.bool_]:
    """Whether copies have a source of another floating-point type than their target."""
    table = trace.operators
    dtypes = trace.by_event(table.row, table.dtypes, -1)
    types = np.where(operators >= 0, dtypes[operators], -1)
    names = np.where(operators >= 0, trace.events.name[operators], -1)
    copying = [n for n in distinct(names[names >= 0]).tolist() if _is_copy(trace.strings[n])]
    is_copy = is_in(names, copying)
    casting = [
        one for one in distinct(types[is_copy & (types >= 0)]).tolist()
        if _differs(trace.strings[one])
    ]  # fmt: skip
    return is_copy & is_in(types, casting)


def _is_copy(name: str) -> bool:
    return name == "aten::copy_"


def _differs(dtypes: str) -> bool:
    first, _, rest = dtypes.partition(";")
    second = rest.partition(";")[0]
    return first != second and {first, second} <= _FLOATS


def _of_hlo(trace: Trace, rows: Int32) -> NDArray[np.int8]:
    """0 for what is no XLA convert, 1 for one that computes besides, 2 for a mere one."""
    op = trace.operations(rows)
    found = np.zeros(len(rows), dtype=np.int8)
    for one in distinct(op[op >= 0]).tolist():
        if _hlo_names().match(trace.text(int(trace.hlo.name[one]))):
            found[op == one] = 2 if _is_mere(trace.text(int(trace.hlo.text[one]))) else 1
    return found


def _is_mere(text: str) -> bool:
    instruction = parse_instruction(text)
    if instruction is None or len(instruction.results) != 1 or len(instruction.operands) != 1:
        return False
    (result,), (operand,) = instruction.results, instruction.operands
    return result.dims == operand.dims and result.dtype != operand.dtype
