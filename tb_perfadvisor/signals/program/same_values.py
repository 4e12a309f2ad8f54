"""Values of an XLA program that are the same numbers.

XLA repeats cheap instructions in each fusion that needs their result. So an array that the program
computes once is several values, which no pass of the compiler joins again.
"""

from __future__ import annotations

from tb_perfadvisor.signals.program.graph import MOVES, origin
from tb_perfadvisor.trace.program import Program

POINTWISE = frozenset(
    {
        *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "remainder"),
        *("negate", "abs", "sign", "floor", "ceil", "convert", "select", "and", "or", "not", "xor"),
        *("exponential", "exponential-minus-one", "log", "log-plus-one", "logistic"),
        *("sqrt", "rsqrt", "cbrt", "sine", "cosine", "tanh", "tan", "erf", "is-finite"),
    }
)
"""Their results depend on nothing but the operands, element by element."""
_IN_ANY_ORDER = frozenset({"add", "multiply", "maximum", "minimum", "and", "or", "xor"})
_MOST_OPERANDS = 3
_MOST_STEPS = 64

_Key = tuple[object, ...]


class SameValues:
    """Finds values that are computed alike from the same ones, however these were moved."""

    def __init__(self, program: Program) -> None:
        """Nothing is known yet of the program's values."""
        self._program = program
        self._found: dict[int, int] = {}
        self._first: dict[_Key, int] = {}

    def of(self, row: int, steps: int = _MOST_STEPS) -> int:
        """A value that is the same for all that are computed alike: the first that was asked for.

        Args:
            row: The value.
            steps: How far back is looked at most; what lies beyond is taken for different.
        """
        row = origin(self._program, row, MOVES)
        if row not in self._found:
            key = self._key(row, steps)
            self._found[row] = row if key is None else self._first.setdefault(key, row)
        return self._found[row]

    def _key(self, row: int, steps: int) -> _Key | None:
        """What makes a value what it is; None for values that are like no other."""
        program, name = self._program, self._program.name_of(row)
        if not steps or (name not in POINTWISE and name != "broadcast"):
            return None
        sides = [side for slot in range(_MOST_OPERANDS) if (side := program.operands(row, slot))]
        # The state of a loop comes from two places.
        if not sides or any(len(side) != 1 for side in sides):
            return None
        shape = program.shape_of(row)
        operands = [self.of(side[0], steps - 1) for side in sides]
        if name in _IN_ANY_ORDER:
            operands.sort()
        return name, shape.dtype, shape.dims, program.dimensions.get(row), *operands
