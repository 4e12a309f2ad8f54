"""Fetches that the device waits for, and who loads what they fetch."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct, unique_inverse
from tb_perfadvisor.trace.intervals import intersect, overlap_ns, total_ns, union
from tb_perfadvisor.trace.tables import Int32, Int64

# An iterator's name lists the chain from the last transformation; tf.data adds a root.
_LAST_PREFETCH = re.compile(r"Iterator::(?:Root|Model)::Prefetch$")
_SINGLE_PROCESS = "_SingleProcessDataLoaderIter"
"""torch/utils/data/dataloader.py: the iterator that `num_workers=0` makes."""
_FEWEST_WORKERS = 4
"""Two to four for each device are usual, and batches take unequal time."""
_MOST_WORKERS = 16
"""More than this seldom pays: each takes memory and a share of the cores."""


class WaitingFetches(NamedTuple):
    """Fetches during which the device waits for input; columns of shape (n,)."""

    rows: Int32
    idle_ns: Int64
    has_workers: bool
    """Whether any of them fetches from worker processes of PyTorch's DataLoader."""
    is_in_process: bool
    """Whether all of them load in the process that fetches."""


def waiting_fetches(signals: Signals) -> WaitingFetches:
    """The fetches of a rank during which its device waits."""
    trace, claims = signals.trace, signals.attribution.intervals[Cause.INPUT]
    rows = trace.rows(EventKind.INPUT_WAIT, EventKind.INFEED_WAIT)
    idle_ns = overlap_ns(claims, trace.events.start_ns[rows], trace.events.end_ns[rows])
    rows, idle_ns = rows[idle_ns > 0], idle_ns[idle_ns > 0]
    names = {trace.text(name) for name in distinct(trace.events.name[rows]).tolist()}
    return WaitingFetches(
        rows,
        idle_ns,
        has_workers=any("MultiProcessing" in name for name in names),
        is_in_process=bool(names) and all("SingleProcess" in name for name in names),
    )


def fetches_without_workers(signals: Signals) -> Int32:
    """Fetches of the steps' thread from a DataLoader that loads in the same process; rows."""
    trace, rows = signals.trace, signals.trace.rows(EventKind.INPUT_WAIT)
    rows = rows[trace.events.track[rows] == signals.step_track]
    names, place = unique_inverse(trace.events.name[rows])
    is_single = [_SINGLE_PROCESS in trace.strings[name] for name in names.tolist()]
    single: Int32 = rows[np.array(is_single, dtype=bool)[place]]
    return single


def workers_to_keep_up(signals: Signals) -> int:
    """As many workers as load in the time of everything else what the steps' thread loads now."""
    events, rows = signals.trace.events, fetches_without_workers(signals)
    fetches = union(events.start_ns[rows], events.end_ns[rows])
    waiting = intersect(signals.attribution.intervals[Cause.INPUT], fetches)
    others_ns = signals.attribution.window_ns - total_ns(waiting)
    needed = -(-total_ns(fetches) // max(others_ns, 1))
    return min(max(needed, _FEWEST_WORKERS), _MOST_WORKERS)


def ends_in_prefetch(signals: Signals) -> bool:
    """Whether a pipeline in the recorder's list of stages ends in a prefetch."""
    totals = signals.trace.totals
    stages = totals.input_stages if totals is not None else ()
    return any(_LAST_PREFETCH.match(stage.name) for stage in stages)
