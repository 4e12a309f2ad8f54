"""Operations that repeat elements, or only move them."""

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
from tb_perfadvisor.signals.program.useful_work import nonlinear_pairs, readers_of_expanded
from tb_perfadvisor.signals.tpu.memory_time import memory_bandwidth, needed_ns, stored_bytes
from tb_perfadvisor.signals.tpu.product_time import flop_time_ns, product_time_ns
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation, operands_of, readers_of
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
    """Arrays are repeated in memory to match the shape of another operand."""

    id = "broadcast-overhead"
    title = "Reorder the computation to avoid large broadcasts"

    refines = "excess-work"

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
    """The core moves elements around instead of computing."""

    id = "data-shuffling"
    title = "Move fewer elements around"
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "Embeddings, their gradients and a scan over layers take a few percent."
    )

    far = 4.0
    """Models of products and of memory are hardly ever off by as much."""

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
