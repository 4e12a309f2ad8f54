"""XLA programs that compute in 64-bit numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.costly_operations import operations_table
from tb_perfadvisor.rules.finding import Finding, costliest
from tb_perfadvisor.rules.savings.faster_device_work import faster_device_work
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import time_within
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, executions, xla_operations

_WIDE = ("f64", "c128")
_EXPECTED, _BEST, _WORST = 0.5, 0.25, 0.75
"""What remains of the time: half of the bytes, and twice as many lanes. Caches that hold all of
the narrower arrays bring more; operations on small arrays bring less."""

_BACKWARD = "transpose(jvp"
_SOLVES = re.compile(r"\b(cholesky|eigh?|lu|qr|svd|triangular_solve|solve|householder_product)\b")


class DoublePrecisionProgram(Rule):
    """An XLA program multiplies matrices in 64 bits.

    What it finds
    -------------
    Operations of XLA on the CPU or a TPU whose arrays have 64-bit floating point numbers, in
    programs with matrix products in 64 bits.

    Why it matters
    --------------
    The numbers take twice the memory and bandwidth, and vector instructions compute half as many of
    them at once. A TPU has no 64-bit arithmetic at all and composes it of narrower operations. In
    JAX, one flag turns arrays that NumPy made into 64-bit ones, and everything computed from them.

    How it is measured
    ------------------
    Expected is half of the operations' time, low a quarter, and high three quarters. Where products
    are differentiated backward and nothing is factored, as in the training of a network, 32 bits
    count as no loss: gradients of a batch differ by more than their rounding.

    When to ignore
    --------------
    When the computation needs 64 bits, as in simulations and in solvers of linear systems.

    How to verify
    -------------
    The operations' arrays have 32 bits, and the results are close enough.

    References:
    ----------
    JAX documentation, "Default dtypes and the X64 flag"; Gupta et al., "Deep Learning with Limited
    Numerical Precision" (2015), on rounding in training.
    """

    id = "double-precision-program"
    title = "Compute in 32 bits unless the results need more"
    category = "precision"
    needs = (Need.WORK, Need.XLA_OPERATIONS)

    minimum_share = Limit(0.03, "share", "A loss or a learning rate takes less than this.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when 64-bit operations take a good part of the step."""
        operations = [o for o in xla_operations(signals) if _is_wide(o)]
        if not any(_multiplies(o) for o in operations):
            return
        rows = executions(signals, operations)
        now_ns = signals.trace.events.duration_ns[rows].astype(float)
        expected, best, worst = (
            np.rint(now_ns * share).astype(np.int64) for share in (_EXPECTED, _BEST, _WORST)
        )
        saving = faster_device_work(
            signals, rows, expected, basis="heuristic", least_then_ns=best, most_then_ns=worst
        )
        if self.is_minor(saving.expected_ns, signals):
            return
        cost_ns = time_within(signals, rows, saving.claims)
        table = operations_table("64-bit operations", signals, operations, rows, cost_ns)
        yield Finding(
            summary=(
                f"{per_step(saving.claimed_ns, signals)} goes into {len(operations)} operations on"
                " 64-bit numbers, matrix products among them."
            ),
            saving=saving,
            evidence=(table, costliest("Longest executions", signals.worker, rows, cost_ns)),
            remedies=advise(
                "single-precision-training" if _trains(operations) else "single-precision"
            ),
        )


def _is_wide(operation: XlaOperation) -> bool:
    shapes = (*operation.instruction.results, *operation.instruction.operands)
    return any(shape.dtype in _WIDE and shape.elements > 1 for shape in shapes)


def _multiplies(operation: XlaOperation) -> bool:
    return operation.product is not None or "dot" in (operation.opcode, *operation.inside)


def _trains(operations: Sequence[XlaOperation]) -> bool:
    """Whether the program fits the weights of products, and solves no linear system."""
    if any(_SOLVES.search(operation.path) for operation in operations):
        return False
    return any(_multiplies(o) and _BACKWARD in o.path for o in operations)
