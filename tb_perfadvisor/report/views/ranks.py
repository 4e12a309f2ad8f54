"""All ranks beside one another: where their steps' time goes, and who waits for whom."""

from __future__ import annotations

import msgspec
import numpy as np

from tb_perfadvisor.signals import Signals, ranks_of
from tb_perfadvisor.signals.ranks.rank_summary import CAUSES
from tb_perfadvisor.signals.ranks.stragglers import critical_of_steps, lateness, waiting_for
from tb_perfadvisor.trace.tables import Int64

MAX_PAIRS = 65_536
"""Cells of the matrix of who waits for whom; its columns are those waited for most."""


class RanksView(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks in the order of the report's `workers`; what is unknown is null."""

    causes: list[str]
    total_ns: list[list[int]]
    """`total_ns[cause][worker]`: per step, the mean of its used steps."""
    step_ns: list[int]
    """Per worker: the mean step."""
    clock_skew_ns: list[int] | None
    """Per worker: how far its wall clock is ahead of the middle one's."""
    collectives: int
    """How many were matched over all ranks of their group, in used steps."""
    times_late: list[int] | None
    """Per worker: in how many of those it came late."""
    late_ns: list[int] | None
    """Per worker and step: how long the middle rank waited for it, compute left out."""
    waiting_ns: list[int] | None
    """Per worker and step: how long it waited itself."""
    late: list[int]
    """Workers that are late by more than chance."""
    waited_for: list[int]
    """The workers that were last, those waited for most first: columns of `pairs_ns`."""
    pairs_ns: list[list[int]]
    """`pairs_ns[column][worker]`: per step, how long a worker waited for that of the column."""
    step_index: list[int]
    critical: list[int]
    """Per step of `step_index`: the worker that waited least in it."""


def make_ranks_view(signals: Signals) -> RanksView | None:
    """The ranks of a run; None of one alone."""
    ranks = ranks_of(signals)
    if len(ranks) < 2:
        return None
    steps = np.array([one.step_count for one in ranks.summaries])
    totals = np.stack([one.cause_total_ns for one in ranks.summaries], axis=1)
    used = np.flatnonzero(totals.sum(axis=1))
    found = lateness(signals)

    def per_step(values: Int64) -> list[int]:
        mean: list[int] = np.rint(values / signals.steps.count).astype(np.int64).tolist()
        return mean

    pairs = waiting_for(ranks, MAX_PAIRS // len(ranks)) if found is not None else None
    index, critical = critical_of_steps(ranks)
    return RanksView(
        causes=[CAUSES[one].value for one in used.tolist()],
        total_ns=np.rint(totals[used] / steps).astype(np.int64).tolist(),
        step_ns=[round(one.window_ns / one.step_count) for one in ranks.summaries],
        clock_skew_ns=ranks.clocks.skew_ns.tolist() if ranks.clocks.skew_is_known else None,
        collectives=found.collectives if found is not None else 0,
        times_late=found.times_late.tolist() if found is not None else None,
        late_ns=per_step(found.late_ns) if found is not None else None,
        waiting_ns=per_step(found.waiting_ns) if found is not None else None,
        late=list(found.late) if found is not None else [],
        waited_for=[worker for worker, _ in pairs] if pairs is not None else [],
        pairs_ns=[per_step(column) for _, column in pairs] if pairs is not None else [],
        step_index=index.tolist(),
        critical=critical.tolist(),
    )
