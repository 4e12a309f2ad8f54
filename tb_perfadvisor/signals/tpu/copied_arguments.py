"""Arguments of an XLA program that are copied as they are.

XLA copies an argument, in the layout that it has, only if the program overwrites it or returns it:
the caller may still use it, unless it donates it.
"""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.loops import loops
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, executions, xla_operations
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.tables import Int32

# Never executed, so no profile shows them: other arrays in another guise.
_RENAMED = ("bitcast", "get-tuple-element", "constant", "param", "tuple")


@memoized
def copied_arguments(signals: Signals) -> Int32:
    """Executions of such copies in the used window, in order of start."""
    operations = xla_operations(signals)
    module = signals.trace.hlo.module
    computed = {(int(module[o.op]), o.name) for o in operations}
    copies = [
        o
        for o in operations
        if _keeps_layout(o) and (int(module[o.op]), _source(o)) not in computed
    ]
    return executions(signals, copies) if copies else np.empty(0, dtype=np.int32)


@memoized
def passed_copies(signals: Signals) -> Int32:
    """Executions of XLA's own copies of what a trip of a loop passes to the next, by start.

    The program asks for none of them, so that nothing in it avoids them.
    """
    copies = [
        o
        for o in xla_operations(signals)
        if o.opcode == "copy" and not o.path and _source(o).startswith("get-tuple-element")
    ]
    if not copies:
        return np.empty(0, dtype=np.int32)
    rows = executions(signals, copies)
    return rows[is_in(signals.trace.events.parent[rows], loops(signals).row)]


def _keeps_layout(operation: XlaOperation) -> bool:
    instruction = operation.instruction
    return (
        operation.opcode == "copy"
        and instruction.results == instruction.operands
        and len(instruction.operand_names) == 1
        and not _source(operation).startswith(_RENAMED)
    )


def _source(operation: XlaOperation) -> str:
    return next(iter(operation.instruction.operand_names), "")
