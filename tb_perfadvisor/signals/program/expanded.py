"""Arrays that are computed from far smaller ones: who reads them, and what is computed of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import running_programs
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import stored_bytes
from tb_perfadvisor.signals.tpu.readers import readers_of
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation

_SMALL = 8
"""What has an eighth of an array's elements or fewer can be expanded to it again."""
_MOST_STEPS = 8
_NONLINEAR = (
    *("abs", "cosine", "divide", "erf", "exponential", "exponential-minus-one", "log"),
    *("log-plus-one", "logistic", "maximum", "minimum", "power", "rsqrt", "sine", "sqrt", "tanh"),
)


@memoized
def nonlinear_pairs(signals: Signals) -> frozenset[int]:
    """Operations, by row of the `HloTable`, that apply a function to each pair of elements.

    Then no matrix product does the same: `1 / (x - y)`, unlike `(x - y)^2`.
    """
    found = set[int]()
    for running in running_programs(signals):
        program = running.program
        for row in program.rows_of(_NONLINEAR):
            for operation in running.of([row]):
                is_sum = "reduce" in operation.inside
                pairs = operation.inside_elements
                if is_sum and 2 * program.shape_of(row).elements >= pairs > 0:
                    found.add(operation.op)
    return frozenset(found)


@memoized
def _returned(signals: Signals) -> frozenset[int]:
    """Operations whose results programs return: these have to be written."""
    return frozenset(
        operation.op
        for running in running_programs(signals)
        for operation in running.of(running.program.is_result.nonzero()[0].tolist())
    )


def readers_of_expanded(
    signals: Signals, expanding: Sequence[XlaOperation]
) -> Iterator[tuple[XlaOperation, int]]:
    """Operations that read or write expanded arrays, with the bytes of these in each.

    An operation that computes as many elements from an expanded array and small ones writes an
    expanded array, too.

    Args:
        signals: The worker's facts.
        expanding: The operations that expand arrays.
    """
    readers: dict[int, XlaOperation] = {}
    less_bytes: Counter[int] = Counter()
    returned = _returned(signals)
    frontier, written = list(expanding), {operation.op for operation in expanding}
    for _ in range(_MOST_STEPS):
        following = []
        expanded_elements: Counter[int] = Counter()
        for reader, shape in readers_of(signals, frontier):
            readers[reader.op] = reader
            less_bytes[reader.op] += stored_bytes(shape)
            expanded_elements[reader.op] += shape.elements
        for op, elements in expanded_elements.items():
            reader = readers[op]
            results, operands = reader.instruction.results, reader.instruction.operands
            other = sum(shape.elements for shape in operands) - elements
            is_expanded = len(results) == 1 and results[0].elements >= elements
            is_map = reader.product is None and op not in written and op not in returned
            if is_map and is_expanded and other * _SMALL <= elements:
                written.add(op)
                less_bytes[op] += stored_bytes(*results)
                following.append(reader)
        frontier = following
        if not frontier:
            break
    for op, reader in readers.items():
        yield reader, less_bytes[op]
