"""Operations that only move elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.costly_operations import CostlyOperations, FasterReader
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.program.graph import mean_ns, running_programs
from tb_perfadvisor.signals.program.moved_rows import (
    copies_for,
    other_form_ns,
    readers_of_weights,
    reading_ns,
    slice_moves,
)
from tb_perfadvisor.signals.tpu.memory_time import needed_ns
from tb_perfadvisor.signals.tpu.product_time import flop_time_ns
from tb_perfadvisor.signals.tpu.readers import operands_of, readers_of
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation

_SHUFFLING = ("gather", "scatter", "sort", "dynamic-slice", "dynamic-update-slice")
# A fusion of nothing else moves elements as well: these compute indices, or change the type. Custom
# calls in fusions are hints, such as that indices are within bounds.
_MOVING = frozenset(
    {
        *_SHUFFLING,
        *("add", "and", "broadcast", "clamp", "compare", "concatenate", "convert", "copy", "iota"),
        *("custom-call", "or", "pad", "reshape", "select", "shift-left", "shift-right-logical"),
        *("slice", "subtract", "transpose"),
    }
)
_PRODUCTS = frozenset({"dot", "convolution"})
# How JAX names what `approx_max_k` does: a reduction to some maxima, and a sort of them.
_APPROXIMATE = "approx_top_k"
_MOST_UNROLLED = 64
"""Larger programs take minutes to compile. Models have fewer layers than this, but more steps."""


class DataShuffling(CostlyOperations):
    """The core moves elements around instead of computing.

    What it finds
    -------------
    Gathers, scatters, sorts, dynamic slices and dynamic updates of slices, also in fusions that
    do nothing else.

    Why it matters
    --------------
    They read and write small pieces at positions that are only known at run time, while a TPU's
    memory and vector unit are made for large blocks.

    How it is measured
    ------------------
    High is the time in which the core executes only these operations, minus what their bytes need
    at the bandwidth of the memory; of a sort, nothing has to remain, because what replaces it
    returns a few elements. For a gather or a scatter, it is also no more than a product with a
    one-hot matrix would save, because nothing else replaces it, unless it runs in a loop and
    depends on nothing that the loop computes: then all rows can be gathered before the loop, at two
    to five cycles for each. XLA
    fuses nothing with these operations, so high also includes the time that those before and after
    them spend on the arrays that they exchange, by the share of bytes. Expected is at most half of
    the time, because the algorithm needs some of these operations; low is 0, or half of what is
    expected where another form is known to take a quarter of the time or less. A scatter that adds
    four rows or more to each row of a table can be a gather of as many rows and a sum, at two to
    five cycles for a row; low is 0, because only the data show whether each sums up about as many.
    If whole matrices of weights are gathered, as many as there are or more, it takes less to
    multiply all rows by all of them: nothing of the gather is expected to remain, and the products
    read the table instead. If an operation takes
    several times what its bytes need, the finding names it with that ratio. The small sort at the
    end of an approximate maximum does not count, nor do the slices that each trip of a loop of more
    than 64 trips takes and stores.

    When to ignore
    --------------
    When it is the model's own work: a large embedding, a beam search.

    How to verify
    -------------
    Their share of the step falls.

    References:
    ----------
    Google Cloud, "Cloud TPU performance guide"; OpenXLA, "Operation semantics", on Gather and
    DynamicUpdateSlice.
    """

    id = "data-shuffling"
    title = "Move fewer elements around"
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "Embeddings, their gradients and a scan over layers take a few percent."
    )

    far = Limit(4.0, "ratio", "Models of products and of memory are hardly ever off by as much.")

    needs = (Need.WORK, Need.XLA_OPERATIONS)

    activity = "goes into gathers, scatters, sorts and slices at run-time indices"
    noun = "operation"
    remaining_share = 0.5
    breaks_fusion = True
    changes = ("approximate-top-k", "gather-before-loop", "unrolled-layers", "one-hot-lookup")
    moves_data = True

    def selected(self, signals: Signals) -> list[XlaOperation]:
        """What moves elements, and what prepares gathers.

        That is what could run before a loop with them, and copies to the layout that they need.
        """
        found = {o.op: o for o in super().selected(signals)}
        if signals.device.is_host_only:
            # The processor reads rows of tables about as fast as other arrays.
            return [o for o in found.values() if _sorts(o)]
        for operation in _in_long_loops(signals):
            if not (_gathers(operation) or _scatters(operation) or _sorts(operation)):
                found.pop(operation.op, None)
        for operation in [o for o in found.values() if o.op in slice_moves(signals)]:
            found |= {copy.op: copy for copy in copies_for(signals, operation)}
        pending = [o for o in found.values() if o.is_known_before_loop and _gathers(o)]
        while pending:
            # What is known before the loop depends on nothing else.
            for operation in operands_of(signals, pending.pop()):
                if operation.op not in found:
                    found[operation.op] = operation
                    pending.append(operation)
        return list(found.values())

    def selects(self, operation: XlaOperation) -> bool:
        """Whether an operation only moves elements between positions that the data determine."""
        if _sorts(operation) and _APPROXIMATE in operation.path:
            return False
        if operation.opcode in _SHUFFLING or operation.category in _SHUFFLING:
            return True
        if _scatters(operation) and not operation.inside & _PRODUCTS:
            return True  # each row costs more than what is computed of it
        return bool(operation.inside & set(_SHUFFLING)) and operation.inside <= _MOVING

    def best_ns(self, signals: Signals, operation: XlaOperation, *, at_peak: bool = False) -> float:
        """The time that the bytes of the elements need, or a product that does the same."""
        if at_peak and _sorts(operation):
            return 0.0
        memory_ns = needed_ns(signals, operation, at_peak=at_peak)
        moves = slice_moves(signals).get(operation.op)
        if operation.is_known_before_loop:
            # Before the loop, each row takes its cycles as well.
            rows_ns = reading_ns(signals, moves, at_best=at_peak) if moves is not None else None
            return memory_ns if rows_ns is None else float(np.fmax(memory_ns, rows_ns))
        if moves is not None and moves.copies_weights:
            return 0.0
        # Only a product with a one-hot matrix replaces a gather or a scatter, or a sum of rows.
        other_ns = (
            flop_time_ns(signals, _one_hot_flop(operation), at_peak=at_peak)
            if moves is None
            else other_form_ns(signals, moves, at_peak=at_peak)
        )
        return memory_ns if other_ns is None else float(np.fmax(memory_ns, other_ns))

    def remains(self, signals: Signals, operation: XlaOperation) -> float:
        """Half, but nothing of a gather of matrices that are multiplied where they are instead."""
        moves = slice_moves(signals).get(operation.op)
        is_copy = moves is not None and moves.copies_weights
        return 0.0 if is_copy else self.remaining_share

    def changes_of(self, signals: Signals, operations: Sequence[XlaOperation]) -> tuple[str, ...]:
        """Other forms of what is found come first."""
        moves = [m for o in operations if (m := slice_moves(signals).get(o.op)) is not None]
        special = {
            "all-matrices": any(m.copies_weights for m in moves),
            "rows-of-sums": any(m.adds_up_many for m in moves),
        }
        return (*(change for change, fits in special.items() if fits), *self.changes)

    def sure_share(self, signals: Signals, operation: XlaOperation) -> float:
        """Half of what is expected, where another form is known to take far less."""
        for gather in (operation, *(o for o, _ in readers_of(signals, [operation]))):
            moves = slice_moves(signals).get(gather.op)
            if moves is not None and not gather.is_known_before_loop:
                far_ns = self.far * self.best_ns(signals, gather)
                is_far = mean_ns(signals, gather) >= far_ns
                # Whether each row sums up about as many others shows in the data only.
                return 0.5 if is_far and not moves.adds_up_many else 0.0
        return 0.0

    def faster_readers(
        self, signals: Signals, operations: Sequence[XlaOperation]
    ) -> list[FasterReader]:
        """Products by gathered matrices: they read each matrix of the table once instead."""
        return [FasterReader(*found) for found in readers_of_weights(signals, operations)]


def _in_long_loops(signals: Signals) -> Iterator[XlaOperation]:
    """The operations of loops with more trips than a program can be unrolled to.

    Each trip has to slice its inputs, and to store its results.
    """
    for running in running_programs(signals):
        yield from running.of(np.flatnonzero(running.program.runs > _MOST_UNROLLED).tolist())


def _one_hot_flop(operation: XlaOperation) -> float:
    """FLOP of a product that does the same as a gather or a scatter of rows; 0 for others.

    Each row that is moved is multiplied by as many zeros and ones as the table has rows.
    """
    instruction = operation.instruction
    tables = [shape for shape in instruction.operands if len(shape.dims) > 1]
    if not tables or not (_gathers(operation) or _scatters(operation)):
        return 0.0
    if _gathers(operation):
        table = max(tables, key=lambda shape: shape.elements)
        elements = sum(shape.elements for shape in instruction.results)
    else:
        table = max(instruction.results, key=lambda shape: shape.elements)
        rows_to_add = [shape for shape in tables if shape.dims != table.dims]
        elements = (rows_to_add or tables)[-1].elements
    rows = table.elements // max(table.dims[-1] if table.dims else 1, 1)
    return 2.0 * elements * rows


def _gathers(operation: XlaOperation) -> bool:
    return "gather" in (operation.opcode, *operation.inside)


def _scatters(operation: XlaOperation) -> bool:
    return "scatter" in (operation.opcode, *operation.inside)


def _sorts(operation: XlaOperation) -> bool:
    return "sort" in (operation.opcode, operation.category, *operation.inside)
