"""Divides the time that disappeared among the findings that claim it.

A comparison shows how much less time each cause takes, but not which change took it away. So each
finding, the best one first, is credited with as much of the time that disappeared from its causes
as it expected to save and no longer expects. If more disappeared, the same is done with the high
ends. What is still left belongs to a finding only if no other claims the same cause. So no
nanosecond is credited twice. The time that a cause takes more than before is divided in proportion
to the expected savings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

from msgspec import Struct

from tb_perfadvisor.signals.core.causes import COMPUTE

COMPUTE_CAUSES = frozenset(cause.value for cause in COMPUTE)
_COMPUTE = "compute"


class Claim(Struct, frozen=True):
    """A finding of the base."""

    rule_id: str
    expected_ns: int
    """What it expects to save, per step."""
    gone_ns: int
    """How much of that the target no longer expects."""
    most_gone_ns: int
    """How much of its high end the target no longer has; at least as much."""
    causes: Sequence[str]
    """The causes of the time that it claims."""


def credit(claims: Sequence[Claim], change_ns: Mapping[str, int]) -> dict[str, int]:
    """How much time each finding is credited with, negative if its causes take more than before.

    Args:
        claims: The findings of the base, each of another rule, the best one first.
        change_ns: The change of each cause, per step; less time is negative.
    """
    left_ns = {group: -change for group, change in _by_group(change_ns).items()}
    groups = {claim.rule_id: set(map(_group, claim.causes)) & set(left_ns) for claim in claims}
    credited = dict.fromkeys(groups, 0)

    def take(rule_id: str, most_ns: int) -> None:
        less = [group for group in sorted(groups[rule_id]) if left_ns[group] > 0]
        amounts = [left_ns[group] for group in less]
        parts = divided(min(max(most_ns, 0), sum(amounts)), amounts)
        for group, part in zip(less, parts, strict=True):
            left_ns[group] -= part
            credited[rule_id] += part

    for claim in claims:
        take(claim.rule_id, claim.gone_ns)
    for claim in claims:
        take(claim.rule_id, claim.most_gone_ns - credited[claim.rule_id])
    for group, rest_ns in left_ns.items():
        sharing = [claim for claim in claims if group in groups[claim.rule_id]]
        if len(sharing) == 1:
            credited[sharing[0].rule_id] += rest_ns
        elif rest_ns < 0 and sharing:
            parts = divided(rest_ns, [max(claim.expected_ns, 1) for claim in sharing])
            for claim, part in zip(sharing, parts, strict=True):
                credited[claim.rule_id] += part
    return credited


def divided(amount: int, weights: Sequence[int]) -> list[int]:
    """Divide an amount in proportion to weights, without a remainder."""
    whole = max(sum(weights), 1)
    # Rounded down, a part never exceeds its weight if the amount does not exceed their sum.
    bounds = [amount * reached // whole for reached in accumulate(weights, initial=0)]
    return [after - before for before, after in pairwise(bounds)]


def _by_group(change_ns: Mapping[str, int]) -> dict[str, int]:
    groups: dict[str, int] = {}
    for cause, change in change_ns.items():
        groups[_group(cause)] = groups.get(_group(cause), 0) + change
    return groups


def _group(cause: str) -> str:
    """All compute is one: in fewer bits it has another cause."""
    return _COMPUTE if cause in COMPUTE_CAUSES else cause


def compared_causes(claimed: Iterable[str]) -> list[str]:
    """The causes whose change belongs to a finding that claims some causes."""
    causes = list(claimed)
    if COMPUTE_CAUSES.isdisjoint(causes):
        return causes
    return [*causes, *sorted(COMPUTE_CAUSES.difference(causes))]
