"""Inverses of matrices that are computed to be multiplied."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.program.graph import FasterOperation, mean_ns
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, xla_operations

_CALLED = ("jit(inv)", "MatrixInverse")
"""How JAX and TensorFlow name what an inverse consists of."""
_FACTOR = "lu"
_INVERSE = (0.15, 0.0, 0.6)
_FACTORS = (0.75, 0.5, 1.0)
"""What remains as expected, at best and at worst. Cholesky takes half the FLOP of LU."""


class ExplicitInverse(FasterOperations):
    """The step inverts a matrix, where it could solve a system of equations.

    What it finds
    -------------
    XLA operations of a matrix inverse, and of its gradient, by the framework's names for them, and
    the factors of matrices.

    Why it matters
    --------------
    An inverse solves one system for each row of the matrix, and its gradient multiplies whole
    matrices. The product with a vector needs one system. A Cholesky factor of a symmetric matrix
    takes half as long as an LU factor, and also yields the determinant.

    How it is measured
    ------------------
    High is all time of these operations, and half of that of the factors, which a solver needs as
    well: Cholesky's take half as long. Expected leaves 15 % of the inverse for solving, low 60 %,
    for systems of many right-hand sides; of the factors, 75 % and all.

    When to ignore
    --------------
    When all elements of the inverse are needed.

    How to verify
    -------------
    The operations are gone, and the results are closer to exact.

    References:
    ----------
    Higham, "Accuracy and Stability of Numerical Algorithms", chapter 14; JAX documentation,
    "jax.numpy.linalg.inv", on solving instead.
    """

    id = "explicit-inverse"
    title = "Solve a linear system instead of inverting its matrix"

    minimum_share = Limit(0.03, "share", "Inverses of small matrices take less than this.")

    needs = (Need.WORK, Need.XLA_OPERATIONS)

    noun = "operation"
    changes = ("solve-with-factor",)

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The operations of inverses, of which a system's solution remains."""
        return [
            FasterOperation(o, expected * now, best * now, worst * now)
            for operations, shares in (
                (_of_inverses(signals), _INVERSE),
                (_factors(signals) if _of_inverses(signals) else (), _FACTORS),
            )
            for expected, best, worst in (shares,)
            for o in operations
            for now in (mean_ns(signals, o),)
        ]

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The matrix, and where it is inverted."""
        found = _of_inverses(signals)
        shapes = [shape for o in found for shape in o.instruction.results if len(shape.dims) > 1]
        largest = max(shapes, key=lambda shape: shape.elements, default=None)
        lines = (signals.trace.text(int(signals.trace.hlo.source_line[o.op])) for o in found)
        line = next(filter(None, lines), "")
        of = f" of {largest}" if largest is not None else ""
        where = f" ({line})" if line else ""
        return f"an inverse{of}{where}", (
            f"{cost} goes into {len(found)} operations of the inverse of a matrix, its"
            f" gradient and its factors{where}."
        )


def _of_inverses(signals: Signals) -> list[XlaOperation]:
    return [
        operation
        for operation in xla_operations(signals)
        if any(name in operation.path for name in _CALLED) and not _is_factor(operation)
    ]


def _factors(signals: Signals) -> list[XlaOperation]:
    return [operation for operation in xla_operations(signals) if _is_factor(operation)]


def _is_factor(operation: XlaOperation) -> bool:
    return operation.path.rstrip(":").rpartition("/")[2] == _FACTOR
