"""What a late rank spends more time on than the ranks that wait for it."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.causes import COMPUTE, Cause
from tb_perfadvisor.signals.ranks.rank_summary import CAUSES
from tb_perfadvisor.signals.ranks.ranks import Ranks
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.tables import Float64

MORE_WORK = 1.1
"""A rank with this many times the others' work has more work. Batches of whole samples may differ
by one sample, and sequences sorted by length by a few percent."""
_NOT_OWN = (Cause.COMMUNICATION, Cause.QUEUED)
"""Causes that make no rank late: they depend on other ranks, or on work queued earlier."""


class Excess(Struct, frozen=True):
    """Time of one cause that a worker spends per step, and what the others spend."""

    cause: Cause
    own_ns: float
    """Per step."""
    others_ns: float
    """Per step; the median of the workers in time."""
    even_ns: float
    """Per step, with an equal share of all ranks' work; `others_ns` if the worker does not have
    more work, and for causes that are not work."""
    work: float | None = None
    """Its work as a multiple of the others', if that makes it compute longer."""
    same_operators: bool = False
    """Whether it spends the time on as many operators as the others: each takes longer."""


def excess_by_cause(ranks: Ranks, worker: int, late: tuple[int, ...]) -> tuple[Excess, ...]:
    """Causes on which a late worker spends more than the median of those in time, largest first.

    Programs that share the cores of one host take turns. A longer compute time then says nothing
    about a program's own work, unless its shapes show that it has more.

    Args:
        ranks: All ranks.
        worker: The late worker.
        late: All late workers; they are not part of the median.
    """
    totals = np.stack([summary.cause_total_ns for summary in ranks.summaries]).astype(np.float64)
    steps: Float64 = np.array([summary.step_count for summary in ranks.summaries], dtype=np.float64)
    per_step = totals / steps[:, None]
    in_time = np.setdiff1d(np.arange(len(ranks)), (*late, worker))
    if len(in_time) == 0:
        return ()
    median = np.median(per_step[in_time], axis=0)
    work, even_share = _work_of(ranks, worker, in_time)
    ignored: tuple[Cause, ...] = _NOT_OWN
    if work is None and share_cores(ranks):
        ignored = (*_NOT_OWN, Cause.HOST_COMPUTE)
    excesses = []
    for cause, own_ns, others_ns in zip(
        CAUSES, per_step[worker].tolist(), median.tolist(), strict=True
    ):
        if own_ns <= others_ns or cause in ignored:
            continue
        if work is not None and cause in (*COMPUTE, Cause.HOST_COMPUTE):
            excesses.append(
                Excess(cause, own_ns, others_ns, max(others_ns, even_share * own_ns), work)
            )
        else:
            same = cause in _OF_OPERATORS and _runs_as_many_operators(ranks, worker, in_time)
            excesses.append(Excess(cause, own_ns, others_ns, others_ns, same_operators=same))
    return tuple(sorted(excesses, key=lambda excess: excess.others_ns - excess.own_ns))


_OF_OPERATORS = (Cause.FRAMEWORK, Cause.LAUNCHING)
_AS_MANY = 0.02
"""Ranks of one program differ by a few operators, such as those of logging."""


def _runs_as_many_operators(ranks: Ranks, worker: int, in_time: NDArray[np.int64]) -> bool:
    """Whether a worker runs as many operators per step as the median of those in time."""
    count = np.array([s.host_operators / s.step_count for s in ranks.summaries])
    usual = float(np.median(count[in_time]))
    return usual > 0 and abs(float(count[worker]) - usual) <= _AS_MANY * usual


def preempted_more_ns(ranks: Ranks, worker: int, late: tuple[int, ...]) -> float:
    """Idle time per step while a late worker's calls lost their core, above the median in time.

    Args:
        ranks: All ranks.
        worker: The late worker.
        late: All late workers; they are not part of the median.
    """
    per_step = np.array([s.preempted_ns / s.step_count for s in ranks.summaries])
    in_time = np.setdiff1d(np.arange(len(ranks)), (*late, worker))
    usual_ns = float(np.median(per_step[in_time])) if len(in_time) else 0.0
    return max(float(per_step[worker]) - usual_ns, 0.0)


def _work_of(ranks: Ranks, worker: int, in_time: NDArray[np.intp]) -> tuple[float | None, float]:
    """A worker's work as a multiple of the others', and an equal share as a fraction of its own.

    None if it does not have more work, or if a rank recorded no shapes.
    """
    known = [summary.matrix_flop for summary in ranks.summaries if summary.matrix_flop is not None]
    if len(known) < len(ranks):
        return None, 1.0
    flop = np.array(known)
    work = float(flop[worker] / np.median(flop[in_time]))
    return (work, float(flop.mean() / flop[worker])) if work >= MORE_WORK else (None, 1.0)


def share_cores(ranks: Ranks) -> bool:
    """Whether all ranks compute on the cores of one host."""
    hosts = {source.host for source in ranks.sources}
    return len(hosts) == 1 and all(summary.device_kind is None for summary in ranks.summaries)


def extra_by_step(ranks: Ranks, worker: int, late: tuple[int, ...]) -> Float64:
    """Time that a worker spends above the median of those in time, in each common step.

    Compute does not count for ranks that share the cores of one host: which of them computes longer
    changes from step to step.
    """
    in_time = np.setdiff1d(np.arange(len(ranks)), (*late, worker))
    common = ranks.common_steps()
    if len(in_time) == 0 or len(common) == 0:
        return np.empty(0)
    ignored = (*_NOT_OWN, Cause.HOST_COMPUTE) if share_cores(ranks) else _NOT_OWN
    is_counted = [cause not in ignored for cause in CAUSES]
    spent = np.stack(
        [
            summary.cause_ns[is_counted].sum(axis=0)[is_in(ranks.steps_of_worker(at), common)]
            for at, summary in enumerate(ranks.summaries)
        ]
    )
    return np.asarray(spent[worker] - np.median(spent[in_time], axis=0), dtype=np.float64)
