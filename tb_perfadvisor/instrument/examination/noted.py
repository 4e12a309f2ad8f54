"""Turns the operators of a few steps into what is stored of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tb_perfadvisor.instrument.examination.calls import Call, Place, Steps, all_calls
from tb_perfadvisor.machine.facts import Observed, ObservedKind

MOST: Final = 8
"""Places of one kind; those with most time tell enough."""
LEAST_SHARE: Final = 0.01


def total_ns(steps: Steps) -> int:
    """The time of all operators."""
    return max(sum(call.ns for call in all_calls(steps)), 1)


def noted(
    kind: ObservedKind,
    steps: Steps,
    calls: Iterable[Call],
    *,
    amount: Callable[[Sequence[Call]], float] = lambda calls: 1.0,
    also_ns: Callable[[Sequence[Call]], int] = lambda calls: 0,
) -> list[Observed]:
    """One observation for each place that calls some operators, those with most time first.

    Args:
        kind: What was found of them.
        steps: All that was seen.
        calls: Those that it was found of.
        amount: How much of it, of calls at one place.
        also_ns: The time of other operators that belong to them.
    """
    by_place: dict[Place, list[Call]] = defaultdict(list)
    for call in calls:
        if call.place is not None:
            by_place[call.place].append(call)
    whole_ns = total_ns(steps)
    found = []
    for (path, line, function), at_place in by_place.items():
        share = min((sum(each.ns for each in at_place) + also_ns(at_place)) / whole_ns, 1.0)
        if share < LEAST_SHARE:
            continue
        # Those of the backward pass are named after the layer.
        forward = [each for each in at_place if each.kind != "backward"]
        costliest = max(forward or at_place, key=lambda call: call.ns)
        found.append(
            Observed(
                kind=kind,
                operator=operator_of(costliest),
                path=path,
                line=line,
                function=function,
                shapes=shapes_of(costliest),
                calls=round(len(at_place) / max(len(steps), 1)),
                share=share,
                amount=amount(at_place),
            )
        )
    return sorted(found, key=lambda each: -each.share)[:MOST]


def operator_of(call: Call) -> str:
    """Its name in profiles: `aten::mm`."""
    return call.name if "::" in call.name else f"aten::{call.name}"


def shapes_of(call: Call) -> str:
    """`(2000, 2000) × (2000, 64)`."""
    shapes = [str(each.shape).replace(",)", ")") for each in call.inputs if each.shape]
    return " × ".join(shapes[:3])[:200]
