"""Savings by re-timing the steps with the fix, where a profile allows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.finding import Finding, Saving
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.trace import Note
from tb_perfadvisor.whatif import (
    Fix,
    NotReplayable,
    Simulation,
    host_decides,
    most_saved_ns,
    simulation,
    simulation_for,
)
from tb_perfadvisor.whatif.program import HOST_HIDDEN

Found = tuple[Rule, Finding]


def saved_together(signals: Signals) -> Callable[[Sequence[Fix]], int]:
    """What fixes save of the used window when they are re-timed together."""

    def saved_ns(fixes: Sequence[Fix]) -> int:
        found = simulation(signals)
        return found.saved_ns(*fixes) if isinstance(found, Simulation) else 0

    return saved_ns


def simulation_notes(found: Sequence[Found], signals: Signals) -> tuple[Note, ...]:
    """Why savings that could be re-timed are not; nothing where none ever is.

    That is on the CPU, and of a recorder's sums, which say themselves that they have no order.
    """
    fixes = [one.saving.fix for _, one in found if one.saving is not None and one.saving.fix]
    if not fixes or signals.device.index is None or signals.trace.totals is not None:
        return ()
    tried = [simulation_for(signals, *fix) for fix in fixes]
    unfit = [
        steps for steps in tried if isinstance(steps, NotReplayable) and steps is not HOST_HIDDEN
    ]
    if not unfit:
        return ()
    return (
        Note(
            "not-re-timed",
            "info",
            f"Savings are not simulated: {unfit[0].reason}. They are what was measured, and what "
            "several fixes save together may be more or less than their union.",
        ),
    )


def simulate(found: Sequence[Found], signals: Signals) -> list[Found]:
    """Give each finding whose fix can be re-timed the saving that this shows.

    What is left with a fix has been re-timed; what has been measured becomes simulated, while a
    model remains one, of which re-timing tells how much reaches the step. It is never more than
    the rule's highest estimate: beyond that it would rest on what the profile does not show.
    Where recording held the host up for a good part of the steps, a model of a faster device is
    expected to give half of what re-timing does not let through. Of several ranks, expected is no
    more than until the next one comes last.
    """
    return [
        (rule, finding)
        if finding.saving is None
        else (
            rule,
            replace(finding, saving=_beside_others(_simulated(finding.saving, signals), signals)),
        )
        for rule, finding in found
    ]


def _beside_others(saving: Saving, signals: Signals) -> Saving:
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
    found = simulation_for(signals, *saving.fix)
    if not isinstance(found, Simulation):
        return replace(saving, fix=())
    saved_ns = min(found.saved_ns(*saving.fix), saving.high_ns)
    unproven_ns = 0
    if found.host_speed_is_unknown and host_decides(*saving.fix) and saving.basis == "modeled":
        # Without a profiler the host may be so fast that the device sets the pace, which saves
        # what the model says. Nobody knows: halfway.
        unproven_ns = max(saving.expected_ns - saved_ns, 0) // 2
    return replace(
        saving,
        low_ns=min(saving.low_ns, saved_ns),
        expected_ns=saved_ns + unproven_ns,
        unproven_ns=unproven_ns,
        basis="simulated" if saving.basis == "measured" else saving.basis,
    )
