"""What waits for the device cost, and where the program waits: for all rules about them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.rules.base import Saving
from tb_perfadvisor.rules.evidence.evidence import Cell, Column, Events, Table, costliest
from tb_perfadvisor.rules.evidence.wait_causes import cause_of
from tb_perfadvisor.signals import HOST_CAUSED, Cause, Signals
from tb_perfadvisor.signals.host.wait_sites import WaitSite
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, intersect, total_ns, union
from tb_perfadvisor.whatif import Async, Simulation, simulation


def saving_without(signals: Signals, chosen: NDArray[np.bool_]) -> Saving:
    """What the steps would save without some waits.

    Args:
        signals: The worker's.
        chosen: Which of its `synchronizations`.
    """
    waits = signals.synchronizations
    if not chosen.any():
        return Saving(0, 0, 0, EMPTY, "measured")
    induced = _induced(signals, chosen)
    steps = simulation(signals)
    claims = _claims(signals)
    if isinstance(steps, Simulation):
        fix = Async(waits.row[chosen])
        saved_ns = steps.saved_ns(fix)
        if saved_ns <= total_ns(claims):
            low_ns = min(total_ns(induced), saved_ns)
            return Saving(low_ns, saved_ns, saved_ns, claims, "simulated", (fix,))
    inside = intersect(induced, signals.attribution.intervals[Cause.SYNCHRONIZATION])
    return Saving(total_ns(inside), total_ns(induced), total_ns(induced), induced, "measured")


def most_saved_ns(signals: Signals) -> int:
    """More than this `saving_without` expects of no waits; known without re-timing the steps."""
    return total_ns(_claims(signals)) if len(signals.synchronizations) else 0


def costliest_waits(signals: Signals, chosen: NDArray[np.bool_]) -> Events:
    """Those that induce most idle; the longest, where none does at once."""
    waits = signals.synchronizations
    guilty = chosen & (waits.induced_ns > 0)
    cost = waits.induced_ns if guilty.any() else waits.duration_ns
    shown = guilty if guilty.any() else chosen
    return costliest("The costliest waits", signals.worker, waits.row[shown], cost[shown])


def by_site(title: str, sites: tuple[WaitSite, ...]) -> Table:
    """Waits by call site; columns in which the profile tells nothing are left out."""
    said: list[tuple[Column, list[Cell]]] = [
        (Column("cause", "What waits"), [_label(site) for site in sites]),
        (Column("node", "Backward of"), [site.forward or site.node or None for site in sites]),
        (Column("operator", "Operator"), [_operator(site) for site in sites]),
        (Column("call", "Call"), [" + ".join(site.calls) for site in sites]),
        (Column("module", "Module"), [site.module for site in sites]),
        (Column("source", "Source line"), [site.line for site in sites]),
    ]
    kept = [(column, cells) for column, cells in said if any(cell is not None for cell in cells)]
    sums: list[tuple[Column, list[Cell]]] = [
        (Column("count", "Times", "count"), [site.count for site in sites]),
        (Column("duration_ns", "In the call", "ns"), [site.duration_ns for site in sites]),
        (Column("induced_ns", "Idle induced", "ns"), [site.induced_ns for site in sites]),
    ]
    columns = kept + sums
    return Table(
        title,
        tuple(column for column, _ in columns),
        tuple(zip(*(cells for _, cells in columns), strict=True)),
    )


def mostly(sites: tuple[WaitSite, ...]) -> str:
    """The one or two known causes that induce most idle, as a clause; empty without any."""
    cost: dict[str, int] = {}
    for site in sites:
        label = _label(site)
        if label is not None:
            cost[label] = cost.get(label, 0) + site.induced_ns
    first = sorted(cost, key=lambda label: -cost[label])[:2]
    return f" (mostly {' and '.join(first)})" if first else ""


def _label(site: WaitSite) -> str | None:
    cause = cause_of(site)
    return cause.label if cause is not None else None


def _operator(site: WaitSite) -> str | None:
    """The operator that the program called, and the one in it that waits."""
    if not site.operators:
        return None
    inner, outer = site.operators[0], site.operators[-1]
    return outer if inner == outer else f"{outer} > {inner}"


def _claims(signals: Signals) -> Intervals:
    # Without the waits the host runs ahead, and any idle that it causes later may close.
    return signals.attribution.of(*HOST_CAUSED, Cause.QUEUED, Cause.BETWEEN_STEPS)


def _induced(signals: Signals, chosen: NDArray[np.bool_]) -> Intervals:
    waits = signals.synchronizations
    begun = signals.trace.events.start_ns[waits.row[chosen]]
    return intersect(signals.host_idle, union(begun, waits.until_ns[chosen]))
