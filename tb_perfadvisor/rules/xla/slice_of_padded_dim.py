"""Slices that cut through tiles."""

from __future__ import annotations

import re
from math import inf

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.costly_operations import CostlyOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import needed_ns
from tb_perfadvisor.signals.tpu.xla_operations import XlaOperation
from tb_perfadvisor.trace.hlo_text import Shape

_BOUNDS = r"\[(\d{1,18}):(\d{1,18})(?::\d+)?\]"


class SliceOfPaddedDim(CostlyOperations):
    """Slices along a tiled dimension cut through its tiles.

    What it finds
    -------------
    Slices and dynamic slices that begin or end inside a tile of their operand: at an index that is
    not a multiple of 128 or 8, along a dimension that the layout tiles.

    Why it matters
    --------------
    Part of a tile cannot be copied as a block: every row is shifted and rewritten. Today's compiler
    mostly hides that behind the transfer, but not always. Along other dimensions, or at tile
    boundaries, a slice copies blocks.

    How it is measured
    ------------------
    A slice takes at least the time in which main memory moves what it reads and writes, wherever it
    begins and ends. High is the time beyond that, expected is at most half of the slice's time, low
    is 0. By XLA's TPU compiler, most slices take no longer than their bytes: then nothing is
    reported, although they cut through tiles.

    When to ignore
    --------------
    When the data dictate the offset, as in a sliding window.

    How to verify
    -------------
    The bounds of the slices are multiples of the tile, or lie along another dimension.

    References:
    ----------
    Google Cloud, "Cloud TPU performance guide", on slicing padded dimensions; OpenXLA, "Tiled
    layout"; this project's documentation, "What shapes cost on TPUs".
    """

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
