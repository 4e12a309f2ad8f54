"""The ranks view: where the time of each rank goes, and which ranks wait for which."""

from __future__ import annotations

import msgspec
import numpy as np

from tb_perfadvisor.signals import Signals, ranks_of
from tb_perfadvisor.signals.ranks.rank_summary import CAUSES
from tb_perfadvisor.signals.ranks.stragglers import lateness, waiting_for, waits_by_step
from tb_perfadvisor.trace.tables import Int64

MAX_PAIRS = 65_536
"""Cells of each map of waits. Columns of pairs are the ranks that others wait for most."""


class RanksView(msgspec.Struct, frozen=True, kw_only=True):
    """All ranks in the order of the report's `workers`; unknown values are null."""

    causes: list[str]
    total_ns: list[list[int]]
    """`total_ns[cause][worker]`: mean per used step."""
    step_ns: list[int]
    """Per worker: the mean step time."""
    clock_skew_ns: list[int] | None
    """Per worker: how far its wall clock is ahead of the median rank's."""
    collectives: int
    """How many collectives in used steps were matched over all ranks of their group."""
    times_late: list[int] | None
    """Per worker: in how many of these collectives it was late."""
    late_ns: list[int] | None
    """Per worker, per step: how long the median rank waited for it, without compute."""
    waiting_ns: list[int] | None
    """Per worker, per step: how long it waited itself."""
    late: list[int]
    """Workers that are late more than by chance."""
    waited_for: list[int]
    """The workers that others wait for, the most waited for first: the columns of `pairs_ns`."""
    pairs_ns: list[list[int]]
    """`pairs_ns[column][worker]`: how long a worker waits for the column's worker, per step."""
    step_index: list[int]
    step_waiting_ns: list[list[int | None]] | None
    """`step_waiting_ns[step][worker]`: how long a worker waits in a step of `step_index`; null for
    one without collectives in it. Null if there are too many."""
    critical: list[int]
    """Per step of `step_index`: the worker that waits least."""


def make_ranks_view(signals: Signals) -> RanksView | None:
    """The ranks view; None for a single rank."""
    ranks = ranks_of(signals)
    if len(ranks) < 2:
        return None
    steps = np.array([summary.step_count for summary in ranks.summaries])
    totals = np.stack([summary.cause_total_ns for summary in ranks.summaries], axis=1)
    used = np.flatnonzero(totals.sum(axis=1))
    found = lateness(signals)

    def per_step(values: Int64) -> list[int]:
        mean: list[int] = np.rint(values / signals.steps.count).astype(np.int64).tolist()
        return mean

    pairs = waiting_for(ranks, MAX_PAIRS // len(ranks)) if found is not None else None
    by_step = waits_by_step(ranks)
    has_map = by_step.waiting_ns.size <= MAX_PAIRS
    return RanksView(
        causes=[CAUSES[index].value for index in used.tolist()],
        total_ns=np.rint(totals[used] / steps).astype(np.int64).tolist(),
        step_ns=[round(summary.window_ns / summary.step_count) for summary in ranks.summaries],
        clock_skew_ns=ranks.clocks.skew_ns.tolist() if ranks.clocks.skew_is_known else None,
        collectives=found.collectives if found is not None else 0,
        times_late=found.times_late.tolist() if found is not None else None,
        late_ns=per_step(found.late_ns) if found is not None else None,
        waiting_ns=per_step(found.waiting_ns) if found is not None else None,
        late=list(found.late) if found is not None else [],
        waited_for=[worker for worker, _ in pairs] if pairs is not None else [],
        pairs_ns=[per_step(column) for _, column in pairs] if pairs is not None else [],
        step_index=by_step.number.tolist(),
        step_waiting_ns=[
            [None if waited_ns < 0 else waited_ns for waited_ns in of_step]
            for of_step in by_step.waiting_ns.tolist()
        ]
        if has_map
        else None,
        critical=by_step.critical.tolist(),
    )
