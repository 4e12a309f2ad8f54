"""How well a kernel's blocks fill the device: in how many waves they run.

A device runs as many blocks at once as fit on its multiprocessors: a wave. With fewer blocks than
multiprocessors some have nothing to do; with a little more than one wave, most wait for the rest.
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
    """Kernels of the used window whose grid is known; columns of shape (n,)."""

    rows: Int32
    blocks: Int64
    waves: Float64
    """Of blocks; below 1 where they do not fill the device once. NaN above one block for each
    multiprocessor where nobody knows how many fit."""
    filled_share: Float64
    """Of the multiprocessors' time, what has blocks to run: less than 1 in the last wave."""


@memoized
def occupancy(signals: Signals) -> Occupancy | None:
    """How kernels fill the device; None where its multiprocessors are unknown."""
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
    fitting = _fitting(share[rows], threads, per_processor, facts.architecture)
    waves = np.where(per_processor <= 1, per_processor, per_processor / fitting)
    with np.errstate(invalid="ignore"):
        filled = np.where(per_processor <= 1, per_processor, waves / np.ceil(waves))
        # One wave that leaves room on each multiprocessor still uses all of them.
        filled = np.where((per_processor > 1) & (waves <= 1), 1.0, filled)
    return Occupancy(rows, blocks, waves, filled)


def _fitting(share: Float64, threads: Int32, per_processor: Float64, architecture: str) -> Float64:
    """Blocks that a multiprocessor holds at once; NaN where unknown.

    The recorder's occupancy (in whole percent) is of resident warps, of no more blocks than
    there are on average: it tells how many fit only where there are more.
    """
    blocks_of_all = _WARPS.get(architecture, np.nan) / np.maximum(-(-threads // _WARP_THREADS), 1)
    resident = share * blocks_of_all
    is_limited = per_processor - resident > 0.05 * per_processor + 0.005 * blocks_of_all
    # With fewer blocks than fit they all run in one wave.
    fitting = np.where(is_limited, np.maximum(np.rint(resident), 1.0), np.ceil(per_processor))
    return np.where((threads > 0) & ~np.isnan(resident), fitting, np.nan)
