"""Kinds of XLA operations that take much of a TPU core's time."""

from __future__ import annotations

import math
import re
from math import inf
from typing import ClassVar

import msgspec
import numpy as np

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.costly_operations import CostlyOperations
from tb_perfadvisor.rules.declared import declared
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.tpu.grouped_convolutions import (
    grouped_convolutions,
    grouping_of,
    rearranging_copies,
)
from tb_perfadvisor.signals.tpu.memory_time import needed_ns
from tb_perfadvisor.signals.tpu.product_time import flop_time_ns, product_time_ns
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation
from tb_perfadvisor.trace.hlo_text import Shape


class GroupedConvolution(CostlyOperations):
    """Grouped convolutions take longer than a convolution of all channels with all channels."""

    id = "grouped-convolution"
    title = "Replace grouped convolutions with regular ones"

    minimum_share = Limit(
        0.03, "share", "A single grouped convolution after the input takes a few percent of a step."
    )

    activity = "goes into grouped convolutions and their copies"
    noun = "operation"
    remaining_share = 0.25
    expected_of_best = 2.0
    changes = ("one-group", "depthwise-convolution")

    def selects(self, operation: XlaOperation) -> bool:
        """Whether an operation is a convolution with groups of several channels."""
        grouping = grouping_of(operation.product) if operation.product is not None else None
        return grouping is not None and grouping.channels > 1

    def selected(self, signals: Signals) -> list[XlaOperation]:
        columns = (column.tolist() for column in (signals.hlo.op, signals.hlo.total_ns))
        total_ns = dict(zip(*columns, strict=True))
        count = dict(zip(signals.hlo.op.tolist(), signals.hlo.count.tolist(), strict=True))
        operations: dict[int, XlaOperation] = {}
        for found in grouped_convolutions(signals):
            parts = (found.operation, *found.copies)
            best_ns = self.best_ns(signals, found.operation) or 0.0
            if sum(total_ns[o.op] for o in parts) > best_ns * count[found.operation.op]:
                operations |= {o.op: o for o in parts}
        return list(operations.values())

    def best_ns(
        self, signals: Signals, operation: XlaOperation, *, at_peak: bool = False
    ) -> float | None:
        """The time of a convolution with one group; None if unknown, and for copies."""
        grouping = grouping_of(operation.product) if operation.product is not None else None
        if grouping is None:
            return None
        compute_ns = flop_time_ns(signals, grouping.whole_flop, at_peak=at_peak)
        if compute_ns is None:
            return None
        return max(compute_ns, needed_ns(signals, operation, at_peak=at_peak))


_BOUNDS = r"\[(\d{1,18}):(\d{1,18})(?::\d+)?\]"


class SliceOfPaddedDim(CostlyOperations):
    """Slices along a tiled dimension cut through its tiles."""

    id = "slice-of-padded-dim"
    title = "Slice arrays at tile boundaries"

    minimum_share = Limit(0.02, "share", "The slices of a loss or a mask take about this much.")

    activity = "goes into slicing arrays inside their tiles"
    noun = "slice"
    remaining_share = 0.5
    changes = ("packed-leading-dimension", "aligned-slices")
    moves_data = True

    def best_ns(
        self, signals: Signals, operation: XlaOperation, *, at_peak: bool = False
    ) -> float | None:
        """What the bytes of the slice take; infinite if unknown, which promises nothing."""
        needed = needed_ns(signals, operation, at_peak=at_peak)
        return needed if needed > 0 else inf

    def selects(self, operation: XlaOperation) -> bool:
        """Whether an operation slices an array inside its tiles."""
        instruction = operation.instruction
        if not instruction.operands or not instruction.results:
            return False
        source = instruction.operands[0]
        if operation.opcode == "slice":
            listed = instruction.attributes.partition("slice={")[2].partition("}")[0]
            bounds = [(int(low), int(high)) for low, high in re.findall(_BOUNDS, listed)]
        elif operation.opcode == "dynamic-slice":
            # The start is unknown, but a size that is not a multiple of the tile cuts through one.
            bounds = [(0, size) for size in instruction.results[0].dims]
        else:
            return False
        return len(bounds) == len(source.dims) and any(
            _cuts(source, dim, tile, *bounds[dim]) for dim, tile in _tiled(source)
        )


def _tiled(shape: Shape) -> list[tuple[int, int]]:
    """Tiled dimensions and their tile sizes."""
    return list(zip(shape.minor_to_major, reversed(shape.tile), strict=False))


def _cuts(shape: Shape, dim: int, tile: int, low: int, high: int) -> bool:
    size = shape.dims[dim]
    is_whole = low == 0 and high == size
    return not is_whole and (low % tile != 0 or (high % tile != 0 and high != size))


_SLOW = (
    r"(?i)(?:^|[/(_])(?:threefry\w*|gumbel|multinomial|randomstandardnormal"
    r"|statelessrandomnormal\w*|statelessmultinomial|truncatednormal|randomgamma|randompoisson)"
    r"|jit\(_?(?:truncated_)?(?:normal|gamma|poisson|beta|dirichlet)(?:_real)?\)"
)

# Threefry mixes bits by rotations. XLA names the result after what it is used for.
_ROTATIONS = frozenset({"shift-left", "shift-right-logical", "xor"})
_DRAWN = _SLOW + r"|(?i:uniform|bernoulli|random_bits|dropout|randint)"


class SlowRandom(CostlyOperations):
    """Drawing random numbers takes a good part of the step."""

    id = "slow-random"
    title = "Use a faster random number generator"

    minimum_share = Limit(0.02, "share", "Dropout with a fast generator takes less than this.")

    activity = "goes into operations that draw random numbers"
    noun = "operation"
    remaining_share = 0.5
    expected_of_best = 1.3
    changes = ("hardware-generator", "cheaper-distributions")

    def selects(self, operation: XlaOperation) -> bool:
        """Whether an operation draws from a slow distribution or with a slow generator."""
        pattern = _DRAWN if operation.inside >= _ROTATIONS else _SLOW
        return any(re.search(pattern, path) for path in operation.paths)

    def remains(self, signals: Signals, operation: XlaOperation) -> float:
        """Nothing is expected where another generator than Threefry draws already."""
        is_fast = operation.inside and not operation.inside >= _ROTATIONS
        return 1.0 if is_fast and "threefry" not in "".join(operation.paths) else 0.5

    def best_ns(
        self, signals: Signals, operation: XlaOperation, *, at_peak: bool = False
    ) -> float | None:
        """The time of the operation without drawing: of its bytes, and of the product inside."""
        memory_ns = needed_ns(signals, operation, at_peak=at_peak)
        if operation.product is None:
            return memory_ns
        product_ns = product_time_ns(signals, operation, at_peak=at_peak)
        # Without the device's rates, nothing tells what drawing adds to the product.
        return math.inf if product_ns is None else float(np.fmax(product_ns, memory_ns))


class TransposeOverhead(CostlyOperations):
    """The core moves arrays from one layout to another."""

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
    is_priced = False
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


class Operations(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Operations by opcode, by the start of their name, or by the framework's name for them."""

    opcodes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """How their names start."""
    path: str = ""
    """A pattern of what the framework calls them."""
    other_path: str = ""
    """A pattern of what it calls others that the first one matches."""

    def include(self, operation: XlaOperation) -> bool:
        """Whether an operation is one of them."""
        if operation.opcode in self.opcodes or operation.name.startswith(self.names):
            return True
        if not self.path or re.search(self.path, operation.path) is None:
            return False
        return not self.other_path or re.search(self.other_path, operation.path) is None


class NamedOperations(CostlyOperations):
    """Evaluator of the rules for which names tell the operations apart."""

    is_priced = False

    operations: ClassVar[Operations]
    """Those that the rule is about."""

    def selects(self, operation: XlaOperation) -> bool:
        """Whether an operation is of this kind."""
        return self.operations.include(operation)


RULES = declared(NamedOperations, __name__)
