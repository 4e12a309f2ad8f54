"""Whether a recording got slower, decided from a few numbers of each of two recordings.

A log folder may have thousands of recordings. A mark in their table must not need the facts of a
whole comparison, so a recording's steps are thinned to a few, and two recordings are compared only
if they state the same work on the same machine. The verdict is that of the comparison: fewer steps
make its interval wider, so a mark never says more than the comparison would.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tb_perfadvisor.comparison.interval import NOISE_SHARE, change_interval
from tb_perfadvisor.comparison.run_facts import RunFacts, steps_by_kind
from tb_perfadvisor.contract.pace import Mark, MarkVerdict, Pace

_MOST_STEPS = 40
"""Of each kind: enough to tell a change of a few percent, and small beside the report."""


def pace_of(facts: RunFacts) -> Pace | None:
    """The pace of a recording; None if it has no steps, or does not tell how fast they are."""
    if not facts.step_ns or facts.is_truncated or facts.not_to_act_on:
        return None
    kinds = steps_by_kind(facts)
    typical = sum(len(steps) * float(np.median(steps)) for steps in kinds.values())
    setup = facts.setup
    return Pace(
        step_ns={kind: _thinned(steps) for kind, steps in kinds.items()},
        typical_ns=round(typical / facts.steps),
        setup=msgspec.json.encode(
            [
                *(facts.is_synthetic, facts.step_source, setup.framework, setup.device),
                *(setup.devices_used, setup.world_size, setup.workers, setup.batch),
            ]
        ).decode(),
    )


def mark(base_id: str, base: Pace, target: Pace) -> Mark | None:
    """How a recording compares with another.

    Args:
        base_id: The other recording.
        base: Its pace.
        target: The pace of the recording.

    Returns:
        None if they cannot be compared by their steps alone.
    """
    if base.setup != target.setup or base.step_ns.keys() != target.step_ns.keys():
        return None
    if not base.typical_ns:
        return None
    verdict: MarkVerdict = "inconclusive"
    interval = change_interval(base.step_ns, target.step_ns)
    if interval is not None and interval[0] > NOISE_SHARE:
        verdict = "slower"
    elif interval is not None and interval[1] < -NOISE_SHARE:
        verdict = "faster"
    share = target.typical_ns / base.typical_ns - 1
    return Mark(base=base_id, change_share=share, verdict=verdict)


def _thinned(steps: list[int]) -> list[int]:
    ordered = sorted(steps)
    if len(ordered) <= _MOST_STEPS:
        return ordered
    places = (np.arange(_MOST_STEPS) + 0.5) / _MOST_STEPS * len(ordered)
    return [ordered[int(place)] for place in places]
