"""Evidence from the whole run, which the recorder timed without a trace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from tb_perfadvisor.advice import Remedy
from tb_perfadvisor.rules.finding import Evidence, Finding, Series, severity_by_share
from tb_perfadvisor.signals.steps.timed_run import RunCost
from tb_perfadvisor.trace.tables import Float64
from tb_perfadvisor.units import format_share

_NEARLY_ALL = 0.95


def run_finding(
    cost: RunCost,
    title: str,
    summary: str,
    evidence: Sequence[Evidence],
    remedies: Sequence[Remedy],
    ranks: Sequence[int] = (),
) -> Finding:
    """What costs time over the run, whatever the recorded steps show."""
    return Finding(
        title=title,
        summary=summary,
        severity=severity_by_share(cost.run_share),
        run_share=cost.run_share,
        evidence=tuple(evidence),
        remedies=tuple(remedies),
        ranks=tuple(ranks),
    )


def with_run(finding: Finding, cost: RunCost, evidence: Sequence[Evidence]) -> Finding:
    """A finding about recorded steps with what the same costs over the run."""
    share, where = format_share(cost.run_share), steps_of(cost)
    return replace(
        finding,
        summary=f"{finding.summary} Over the whole run it is {share} of the time, {where}.",
        evidence=(*finding.evidence, *evidence),
    )


def steps_of(cost: RunCost) -> str:
    """The affected steps in words: `in steps 101 to 200 (33.3 % of all)`."""
    parts, places = cost.parts, np.flatnonzero(cost.affected)
    if cost.affected.all():
        return "in all steps"
    if cost.steps_share >= _NEARLY_ALL:
        return "in nearly all steps"
    first, last = int(parts.first_step[places[0]]) + 1, int(parts.end_step[places[-1]])
    is_one = len(places) == places[-1] - places[0] + 1
    share = format_share(cost.steps_share)
    return f"{'in' if is_one else 'in parts of'} steps {first:,} to {last:,} ({share} of all)"


def run_series(title: str, cost: RunCost, values: Float64) -> Series:
    """A value per step over the run, where it is known."""
    known = ~np.isnan(values)
    steps = (cost.parts.first_step[known] + 1).tolist()
    points = zip(map(float, steps), values[known].tolist(), strict=True)
    return Series(title, "count", "ns", tuple(points))
