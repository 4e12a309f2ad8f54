"""Broadcasts that repeat an array in memory to match another operand."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.costly_operations import CostlyOperations, FasterReader
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.program.expanded import nonlinear_pairs, readers_of_expanded
from tb_perfadvisor.signals.tpu.memory_time import memory_bandwidth, stored_bytes
from tb_perfadvisor.signals.tpu.product_time import flop_time_ns, product_time_ns
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation
from tb_perfadvisor.trace.hlo_text import Shape
from tb_perfadvisor.units import NS_PER_S

EXPANSION = 8
"""A fusion that writes this many times the elements that it reads mostly repeats them."""
PAIRS = 16
"""A fusion that computes this many times the elements that it reads and writes combines each with
many others, as a matrix product does."""
# A fusion with these does more than expand arrays. Threefry mixes bits of random numbers by `xor`.
_OTHER_WORK = frozenset(
    {"convolution", "dot", "gather", "reduce-window", "rng-bit-generator", "xor"}
)


class BroadcastOverhead(CostlyOperations):
    """Arrays are repeated in memory to match the shape of another operand.

    What it finds
    -------------
    Broadcasts of whole arrays that XLA executes as separate operations, not inside the operation
    that uses them; fusions that expand their operands to eight times the elements or more; and
    fusions that multiply and sum over pairs of elements, as a matrix product would. Constants that
    fill an array do not count, nor do functions of each pair, such as roots, which no product does.

    Why it matters
    --------------
    A vector that is added to a matrix is first expanded to a matrix, which is written and read at
    full size. In another order of computation, the vector stays a vector. Pairs of elements that a
    fusion multiplies and sums go through the vector unit, which has less than a hundredth of the
    matrix unit's rate.

    How it is measured
    ------------------
    High is the time in which the core executes only these operations, and others that read the
    expanded arrays from the device's memory, or write as many elements that come from nothing
    else; without what the operands of fusions, the other arrays
    of the readers, or matrix products of the same elements take at the peaks of the data sheet.
    XLA fuses the products with what uses their results, so high also includes the time that other
    operations spend on the arrays that they exchange with these, by the share of bytes.
    Expected assumes three times as long for that at usual rates, and half of the reading,
    because computing the elements again takes time, too. Low is 0, because later operations may
    need the whole array.

    When to ignore
    --------------
    When several operations use the expanded array and each would expand it again.

    How to verify
    -------------
    The broadcasts are gone from the list of operations, or are inside fusions.

    References:
    ----------
    Google Cloud, "Cloud TPU performance guide", on broadcasting.
    """

    id = "broadcast-overhead"
    title = "Reorder the computation to avoid large broadcasts"

    minimum_share = Limit(0.02, "share", "One broadcast per layer takes about this much.")

    activity = "goes into repeating arrays, and computing with repeated ones"
    noun = "broadcast"
    remaining_share = 0.0
    expected_of_best = 3.0
    breaks_fusion = True
    changes = ("small-operands-first", "einsum")

    def selects(self, operation: XlaOperation) -> bool:
        """Whether an operation expands arrays, or computes with expanded ones."""
        operands = operation.instruction.operands
        if not any(shape.dims for shape in operands):
            return False
        if operation.opcode == "broadcast":
            return True
        if "broadcast" not in operation.inside or operation.inside & _OTHER_WORK:
            return False
        results = operation.instruction.results
        # Sums of products and squares are matrix products; sums of absolute values are not.
        if operation.inside >= {"multiply", "reduce"} and "abs" not in operation.inside:
            if operation.inside_elements >= PAIRS * _elements(*results, *operands):
                return True
        elif "reduce" in operation.inside:
            return False
        return _elements(*results) >= EXPANSION * _elements(*operands)

    def best_ns(
        self, signals: Signals, operation: XlaOperation, *, at_peak: bool = False
    ) -> float | None:
        """The time of what a fusion still has to do: read its operands, and multiply them."""
        bytes_per_s = memory_bandwidth(signals, at_peak=at_peak)
        if operation.opcode == "broadcast" or bytes_per_s is None:
            return None
        instruction = operation.instruction
        kept, product_ns = instruction.operands, None
        if not _expands(operation):
            kept = (*instruction.results, *kept)
            product_ns = flop_time_ns(signals, 2.0 * operation.inside_elements, at_peak=at_peak)
        return max(stored_bytes(*kept) / bytes_per_s * NS_PER_S, product_ns or 0.0)

    def selected(self, signals: Signals) -> list[XlaOperation]:
        """Without what computes more of each pair of elements than products could."""
        needed = nonlinear_pairs(signals)
        return [o for o in super().selected(signals) if o.op not in needed]

    def faster_readers(
        self, signals: Signals, operations: Sequence[XlaOperation]
    ) -> list[FasterReader]:
        """What reads the expanded arrays. At best, it takes what its other arrays take."""
        usual, peak = (memory_bandwidth(signals, at_peak=at_peak) for at_peak in (False, True))
        if usual is None or peak is None:
            return []
        found = []
        expanding = [o for o in operations if _expands(o)]
        for reader, less_bytes in readers_of_expanded(signals, expanding):
            all_bytes = stored_bytes(*reader.instruction.results, *reader.instruction.operands)
            product_ns = product_time_ns(signals, reader, at_peak=True) or 0.0
            kept_ns = max((all_bytes - less_bytes) / peak * NS_PER_S, product_ns)
            found.append(FasterReader(reader, less_bytes / usual * NS_PER_S / 2, kept_ns))
        return [reader for reader in found if reader.saved_ns]


def _expands(operation: XlaOperation) -> bool:
    """Whether an operation writes many times what it reads."""
    instruction = operation.instruction
    is_sum = "reduce" in operation.inside
    return not is_sum or _elements(*instruction.results) >= EXPANSION * _elements(
        *instruction.operands
    )


def _elements(*shapes: Shape) -> int:
    return sum(shape.elements for shape in shapes)
