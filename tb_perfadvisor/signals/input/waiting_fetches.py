"""Fetches that the device waits for, and who loads what they fetch."""

from __future__ import annotations

import re
from typing import NamedTuple

from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import overlap_ns
from tb_perfadvisor.trace.tables import Int32, Int64

# An iterator's name lists the chain from the last transformation; tf.data adds a root.
_LAST_PREFETCH = re.compile(r"Iterator::(?:Root|Model)::Prefetch$")


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


def ends_in_prefetch(signals: Signals) -> bool:
    """Whether a pipeline in the recorder's list of stages ends in a prefetch."""
    totals = signals.trace.totals
    stages = totals.input_stages if totals is not None else ()
    return any(_LAST_PREFETCH.match(stage.name) for stage in stages)
