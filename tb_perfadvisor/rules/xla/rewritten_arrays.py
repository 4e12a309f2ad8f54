"""Arrays that an XLA program writes whole, to change a part of them."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.program.graph import FasterOperation
from tb_perfadvisor.signals.program.updates import rewritten_arrays, updates
from tb_perfadvisor.units import format_bytes

_HOW = {
    "where": "a choice over all positions",
    "concatenate": "joining old and new elements",
    "dense": "adding a gradient for all rows",
    "gather": "moving all rows into another order",
}


class RewrittenArrays(FasterOperations):
    """The step writes whole arrays to change a few of their elements.

    What it finds
    -------------
    Arguments that the program returns with a part changed, but not by an update in place: a choice
    by position (`where(arange == i, new, old)`), old elements with new ones appended, rows in
    another order, or a table to which a gradient for all rows is added, although only the rows that
    were looked up have one. The embedded program shows how a result is computed from the argument.

    Why it matters
    --------------
    `dynamic_update_slice` and `scatter` write what changes. Everything else reads and writes all of
    it.

    How it is measured
    ------------------
    By the bytes of the arrays at the bandwidth of the device's memory. A choice writes the array
    once; it is also read, which other operations may need: expected is one pass, low half of it,
    high two, or three if a part is cut out and joined with new elements. Copies to another layout
    on the way go, too: 90 % of their time is expected, and half at least. A gradient for all rows
    is filled with zeros and read, and the table is read and written: of these four passes, 3.5 are
    expected, and two at least. An array that is put into another order is read and written by each
    operation on the way; a part of it may have to move, so that 65 % of these passes are expected,
    and 30 % at least.

    When to ignore
    --------------
    When most elements change in each step.

    How to verify
    -------------
    The operations that take the array's time are updates of a slice, or of rows.

    References:
    ----------
    JAX documentation, "jax.lax.dynamic_update_slice" and "jax.numpy.ndarray.at".
    """

    id = "rewritten-arrays"
    title = "Update arrays in place"

    minimum_share = Limit(0.03, "share", "Smaller arrays take less than this either way.")

    noun = "operation on the array"
    changes = ("slice-in-place", "rows-of-gradient", "order-by-index")

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The operations that write the arrays."""
        return rewritten_arrays(signals)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """Which arrays are written, and how."""
        found = [update for update in updates(signals) if update.how in _HOW]
        size = format_bytes(sum(update.shape.padded_bytes for update in found))
        largest = max(found, key=lambda update: update.shape.padded_bytes)
        how = _HOW[largest.how]
        return f"{size} by {how}", (
            f"{cost} goes into {len(found)} arrays of {size} in all, which are written whole to"
            f" change a part of them, by {how}: the largest is {largest.shape}."
        )
