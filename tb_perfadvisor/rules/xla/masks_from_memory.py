"""Masks of attention that are read from memory."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.program.graph import FasterOperation
from tb_perfadvisor.signals.program.read_masks import read_masks, without_masks
from tb_perfadvisor.units import format_bytes


class MasksFromMemory(FasterOperations):
    """Attention reads a mask or a bias that has an element for each score.

    What it finds
    -------------
    Arguments of the program that are added to scores of attention, or choose among them, and that
    have an element for each pair of positions. The embedded program shows how they are used.

    Why it matters
    --------------
    A causal mask, a window, or a bias by distance depends on positions alone: XLA computes it in
    the same operation as the scores. As an argument, it is as large as the scores, and is read,
    often copied to another layout, for each layer.

    How it is measured
    ------------------
    High is the time of copies of the argument, and of reading its bytes. Expected assumes that an
    element takes one byte instead, low half of that. A bias that several samples share may be
    computed once and written: then low is what copies of it take beyond that.

    When to ignore
    --------------
    When the bias is learned, or the mask differs between samples: then pass what it is made of,
    such as lengths or segments, and compare these in the step.

    How to verify
    -------------
    The argument is gone, or small.

    References:
    ----------
    Press, Smith, Lewis, "Train short, test long: attention with linear biases" (2021).
    """

    id = "masks-from-memory"
    title = "Compute attention masks instead of reading them"

    minimum_share = Limit(0.03, "share", "Smaller masks stay on the chip.")

    noun = "operation that reads a mask"
    changes = ("mask-from-positions",)
    reads_less = True

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The operations that read or move masks."""
        return without_masks(signals)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """The largest mask."""
        found = read_masks(signals)
        largest = max(found, key=lambda mask: mask.shape.padded_bytes)
        program = largest.running.program
        line = program.lines.get(largest.users[0], "")
        size = format_bytes(largest.shape.padded_bytes)
        return f"{largest.shape}", (
            f"{cost} goes into operations that read a mask or a bias of attention, {largest.shape}"
            f" of {size}{f', in {line}' if line else ''}."
        )
