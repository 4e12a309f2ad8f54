"""Savings by simulating the steps with the fix, if the profile allows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from tb_perfadvisor.note import Note
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.finding import Finding, Saving
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.host.closable_idle import closable_idle
from tb_perfadvisor.trace.intervals import join, total_ns
from tb_perfadvisor.whatif import (
    Async,
    Fix,
    NotReplayable,
    Remove,
    Simulation,
    host_decides,
    most_saved_ns,
    simulation,
    simulation_for,
)
from tb_perfadvisor.whatif.program import HOST_HIDDEN

Found = tuple[Rule, Finding]


def saved_together(signals: Signals) -> Callable[[Sequence[Fix]], int]:
    """A function that simulates how much of the used window fixes save together."""

    def saved_ns(fixes: Sequence[Fix]) -> int:
        steps = simulation(signals)
        return steps.saved_ns(*fixes) if isinstance(steps, Simulation) else 0

    return saved_ns


def simulation_notes(found: Sequence[Found], signals: Signals) -> tuple[Note, ...]:
    """Explain why savings are not simulated; nothing if they never are.

    Savings are never simulated on the CPU, nor from a recorder's totals, whose own note says so.
    """
    savings = [finding.saving for _, finding in found]
    fixes = [saving.fix for saving in savings if saving is not None and saving.fix]
    if not fixes or signals.device.index is None or signals.trace.totals is not None:
        return ()
    results = [simulation_for(signals, *fix) for fix in fixes]
    unfit = [
        result
        for result in results
        if isinstance(result, NotReplayable) and result is not HOST_HIDDEN
    ]
    if not unfit:
        return ()
    return (
        Note(
            "not-simulated",
            "info",
            f"Savings are not simulated: {unfit[0].reason}. They are measured instead, and several "
            "fixes together may save more or less than estimated.",
        ),
    )


def simulate(found: Sequence[Found], signals: Signals) -> list[Found]:
    """Replace the saving of each finding whose fix can be simulated by the simulated one.

    A saving that keeps its fix was simulated. A measured saving becomes simulated; a modeled one
    stays modeled, and the simulation tells how much of it reaches the step. No more is expected
    than the rule's high estimate. If a host that runs ahead closes more idle time later, that is
    the new high end. If recording slowed
    the host down for much of the steps, a model of a faster device is expected to save half of
    what the simulation rules out. With several ranks, the expected saving ends where the next
    rank becomes the slowest.
    """
    return [
        (rule, finding)
        if finding.saving is None
        else (
            rule,
            replace(
                finding,
                saving=_limited_by_other_ranks(_simulated(finding.saving, signals), signals),
            ),
        )
        for rule, finding in found
    ]


def _limited_by_other_ranks(saving: Saving, signals: Signals) -> Saving:
    most_ns = most_saved_ns(signals, saving.claims)
    if saving.expected_ns <= most_ns:
        return saving
    return replace(
        saving,
        low_ns=min(saving.low_ns, most_ns),
        expected_ns=most_ns,
        unproven_ns=min(saving.unproven_ns, most_ns),
    )


def _simulated(saving: Saving, signals: Signals) -> Saving:
    if not saving.fix or saving.basis == "simulated":
        return saving
    steps = simulation_for(signals, *saving.fix)
    if not isinstance(steps, Simulation):
        return replace(saving, fix=())
    realized_ns = int(saving.realized_share * steps.saved_ns(*saving.fix))
    saved_ns = max(realized_ns - saving.elsewhere_ns, 0)
    beyond_ns = saved_ns - saving.high_ns
    saved_ns = min(saved_ns, saving.high_ns)
    if beyond_ns > 0 and any(isinstance(fix, Async | Remove) for fix in saving.fix):
        saving = _closing_later_idle(saving, beyond_ns, signals)
    unproven_ns = 0
    if steps.host_speed_is_unknown and host_decides(*saving.fix) and saving.basis == "modeled":
        # Without a profiler, the host may be fast enough to keep the device busy. Then the model
        # holds in full. It is unknown, so expect half.
        unproven_ns = max(saving.expected_ns - saved_ns, 0) // 2
    return replace(
        saving,
        low_ns=min(saving.low_ns, saved_ns),
        expected_ns=saved_ns + unproven_ns,
        unproven_ns=unproven_ns,
        basis="simulated" if saving.basis == "measured" else saving.basis,
    )


def _closing_later_idle(saving: Saving, beyond_ns: int, signals: Signals) -> Saving:
    """A saving whose high end includes idle time that it is not about, as a replay shows."""
    claims = join(saving.claims, closable_idle(signals))
    return replace(
        saving,
        high_ns=min(saving.high_ns + beyond_ns, total_ns(claims)),
        claims=claims,
        priced=saving.expected_from,
    )
