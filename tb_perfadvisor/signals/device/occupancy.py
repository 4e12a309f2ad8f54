"""How well a kernel's blocks fill the device, and in how many waves they run.

A wave is the number of blocks that fit on all multiprocessors at once. With fewer blocks than
multiprocessors, some multiprocessors are idle. With slightly more than one wave, most of them are
idle during the second wave.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.device.device_work import work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.tables import Float64, Int32, Int64

_WARPS: Final = {
    "7.0": 64, "7.5": 32, "8.0": 64, "8.6": 48, "8.9": 48, "9.0": 64, "10.0": 64, "12.0": 48,
}  # fmt: skip
"""Resident warps on a multiprocessor (NVIDIA, CUDA C++ programming guide, technical
specifications per compute capability)."""
_WARP_THREADS: Final = 32


class Occupancy(Struct, frozen=True):
    """Kernels of the used window with a known grid; columns of shape (n,)."""

    rows: Int32
    blocks: Int64
    waves: Float64
    """Number of waves; below 1 if the blocks do not fill the device. NaN if there is more than one
    block per multiprocessor and it is unknown how many fit."""
    filled_share: Float64
    """Share of the multiprocessors' time in which they have blocks to run."""


@memoized
def occupancy(signals: Signals) -> Occupancy | None:
    """How kernels fill the device; None if its number of multiprocessors is unknown."""
    facts, trace = signals.device_facts, signals.trace
    if facts is None or not facts.multiprocessors:
        return None
    rows = work_rows(signals)
    rows = rows[trace.events.kind[rows] == EventKind.KERNEL]
    table = trace.kernels
    blocks = trace.by_event(table.row, table.grid_blocks, -1)[rows]
    rows, blocks = rows[blocks > 0], blocks[blocks > 0]
    threads = trace.by_event(table.row, table.block_threads, -1)[rows]
    share = np.full(len(trace.events), np.nan)
    share[table.row] = table.occupancy_share
    per_processor = blocks / facts.multiprocessors
    resident = _resident_blocks(share[rows], threads, per_processor, facts.architecture)
    waves = np.where(per_processor <= 1, per_processor, per_processor / resident)
    with np.errstate(invalid="ignore"):
        filled = np.where(per_processor <= 1, per_processor, waves / np.ceil(waves))
        # A single wave of more than one block per multiprocessor uses all of them.
        filled = np.where((per_processor > 1) & (waves <= 1), 1.0, filled)
    return Occupancy(rows, blocks, waves, filled)


def _resident_blocks(
    share: Float64, threads: Int32, per_processor: Float64, architecture: str
) -> Float64:
    """Blocks that run on a multiprocessor at once; NaN if unknown.

    The recorded occupancy (in whole percent) is the share of resident warps, for at most as many
    blocks as there are per multiprocessor. Only if there are more does it tell how many fit.
    """
    max_blocks = _WARPS.get(architecture, np.nan) / np.maximum(-(-threads // _WARP_THREADS), 1)
    recorded = share * max_blocks
    is_limited = per_processor - recorded > 0.05 * per_processor + 0.005 * max_blocks
    # If all blocks fit, they run in one wave.
    resident = np.where(is_limited, np.maximum(np.rint(recorded), 1.0), np.ceil(per_processor))
    return np.where((threads > 0) & ~np.isnan(recorded), resident, np.nan)
