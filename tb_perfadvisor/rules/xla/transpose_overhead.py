"""Transposes and copies to another layout."""

from __future__ import annotations

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.costly_operations import CostlyOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.tpu.grouped_convolutions import rearranging_copies
from tb_perfadvisor.signals.tpu.memory_time import needed_ns
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation


class TransposeOverhead(CostlyOperations):
    """The core moves arrays from one layout to another.

    What it finds
    -------------
    Transposes, and copies whose result has another dimension order or other tiles than the operand.
    Those that grouped convolutions need belong to grouped-convolution.

    Why it matters
    --------------
    A transpose is free only if XLA can produce the array in its new layout from the start. Between
    operations that need different layouts, it reads and writes the whole array.

    How it is measured
    ------------------
    High is all the time in which the core executes only these operations; low is 0. Expected is
    half of the time of transposes, because the algorithm needs some of them. It is also half of the
    time of copies that move an argument or a result because the program transposes it: the
    embedded program shows that without the transposition, the array has the layout that its caller
    uses. The caller may need that order, though. Such a copy may also be what brings the array to
    or from memory on the chip, so no more is expected than its time beyond what its bytes need.

    XLA itself inserts the other copies, and needs most of them: between a matrix product and an
    array with other tiles, for example. Nothing in a profile tells which ones, so nothing is
    expected of them, and if there are no others, there is no estimate.

    When to ignore
    --------------
    When arrays enter in one layout and must leave in another: one conversion is necessary.

    How to verify
    -------------
    The copies are gone, and the arrays keep one layout throughout the step.

    References:
    ----------
    Google Cloud, "Cloud TPU performance guide", on tf.transpose; OpenXLA, "Shapes and layout".
    """

    id = "transpose-overhead"
    title = "Keep one dimension order throughout the step"

    minimum_share = Limit(
        0.03,
        "share",
        "Inputs and results change layout once, which takes a few percent of the step.",
    )

    activity = "goes into moving arrays to another layout"
    noun = "layout change"
    remaining_share = 0.5
    changes = ("native-order", "einsum-order", "transposed-product", "stacked-first")
    moves_data = True

    def remains(self, signals: Signals, operation: XlaOperation) -> float:
        """Nothing is known of XLA's copies, and half of a transpose is expected to go."""
        is_of_program = operation.opcode == "transpose" or operation.is_transposed
        return self.remaining_share if is_of_program else 1.0

    def best_ns(self, signals: Signals, operation: XlaOperation, *, at_peak: bool = False) -> float:
        """What bringing an array to or from memory on the chip takes, which remains."""
        instruction = operation.instruction
        spaces = {s.memory_space for s in (*instruction.operands, *instruction.results) if s.dims}
        # At best, the transfer runs beside other operations, as XLA's prefetches do.
        return 0.0 if at_peak or len(spaces) == 1 else needed_ns(signals, operation)

    def selected(self, signals: Signals) -> list[XlaOperation]:
        """Layout changes, without those that a grouped convolution needs for its groups."""
        of_groups = rearranging_copies(signals)
        return [o for o in super().selected(signals) if o.op not in of_groups]

    def selects(self, operation: XlaOperation) -> bool:
        """Whether an operation only changes an array's layout."""
        if operation.opcode == "transpose":
            return True
        instruction = operation.instruction
        if operation.opcode != "copy" or not (instruction.operands and instruction.results):
            return False
        before, after = instruction.operands[0], instruction.results[0]
        return (before.minor_to_major, before.tiles) != (after.minor_to_major, after.tiles)
