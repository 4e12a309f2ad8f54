"""Operators that a program could do without, by what their tensors hold."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

import numpy as np
from msgspec.structs import replace

from tb_perfadvisor.advice import advise
from tb_perfadvisor.machine.facts import Observed, ObservedKind
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Basis, Column, Finding, Saving, Table
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.core.causes import COMPUTE
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import Intervals, single, total_ns
from tb_perfadvisor.trace.tables import Int32

_BACKWARD: Final = "autograd::engine::evaluate_function"

Parts = tuple[float, float, float]
"""The parts of an operator's time that a change saves: at least, as expected, and at most."""


class ExaminedOperators(Rule):
    """Base of the rules that read what `perfadvisor run` found in the tensors of a few steps.

    What an operator takes is its share of all operators in those steps, of the time that operators
    take in the recorded ones: see `examined_work`.
    """

    needs: ClassVar[tuple[Need, ...]] = (
        *(Need.WORK, Need.HOST_EVENTS, Need.PYTORCH, Need.EXAMINED_STEPS),
    )
    kinds: ClassVar[tuple[ObservedKind, ...]]
    """What was found."""
    changes: ClassVar[tuple[str, ...]]
    basis: ClassVar[Basis] = "modeled"
    amount: ClassVar[Column | None] = None
    """What the amounts of the observations are."""

    minimum_share = Limit(
        0.05, "share", "Changing what a program computes is not worth it for less than 5 %."
    )

    @abstractmethod
    def parts(self, observed: Observed, signals: Signals) -> Parts:
        """The parts of its operators' time that the change saves."""

    @abstractmethod
    def describe(self, observed: Observed, cost: str) -> str:
        """What the costliest of the observations shows; begins with what all of them cost."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding if the operators would save a good part of the step."""
        found = occurring(signals, *self.kinds)
        if not found:
            return
        if self.amount is None and signals.device.is_host_only:
            found = _as_recorded(found, signals)
        work_ns = total_ns(examined_work(signals))
        low, expected, high = (
            int(sum(each.share * self.parts(each, signals)[end] for each in found) * work_ns)
            for end in range(3)
        )
        if self.is_minor(expected, signals):
            return
        # Where operators go, so does the Python between them.
        whole = single(signals.attribution.window_start_ns, signals.attribution.window_end_ns)
        cost = per_step(int(min(sum(each.share for each in found), 1.0) * work_ns), signals)
        yield Finding(
            instance=self.named(found[0]),
            summary=self.describe(found[0], cost),
            saving=Saving(low, expected, high, whole, self.basis),
            evidence=(observed_table(found, self.amount),),
            remedies=advise(*self.chosen(found[0])),
        )

    def named(self, observed: Observed) -> str:
        """The costliest of the observations, in a title."""
        return f"{observed.operator} in {place_of_observed(observed)}"

    def chosen(self, costliest: Observed) -> tuple[str, ...]:
        """The changes that help with the costliest of the observations."""
        return self.changes


def occurring(signals: Signals, *kinds: ObservedKind) -> tuple[Observed, ...]:
    """What was found of operators that run in this recording, too, the costliest first.

    One program's recordings may show its training, and its evaluation.
    """
    trace, examined = signals.trace, signals.trace.facts.examined
    names = distinct(trace.events.name[trace.rows(EventKind.OPERATOR)]).tolist()
    recorded = {trace.strings[name] for name in names}
    has_backward = any(name.startswith(_BACKWARD) for name in recorded)
    return tuple(
        each
        for each in (examined.all_of(*kinds) if examined is not None else ())
        # A look at TensorFlow names functions.
        if each.operator in recorded or not each.operator.startswith("aten::")
        if has_backward or each.kind != "dropped gradients"
    )


def _as_recorded(found: Sequence[Observed], signals: Signals) -> tuple[Observed, ...]:
    """None takes more than its operator takes in the recording: others may have grown since."""
    events, work_ns = signals.trace.events, max(total_ns(examined_work(signals)), 1)
    rows = signals.trace.rows(EventKind.OPERATOR)
    rows = rows[signals.steps.owner[rows] >= 0]
    ns = np.bincount(events.name[rows], weights=events.duration_ns[rows])
    part = {signals.trace.strings[name]: float(ns[name]) / work_ns for name in np.flatnonzero(ns)}
    most = [part.get(each.operator, 1.0) / (each.amount or 1.0) for each in found]
    return tuple(
        replace(each, share=min(each.share, share)) for each, share in zip(found, most, strict=True)
    )


def calling_lines(signals: Signals, rows: Int32) -> tuple[Observed, ...]:
    """The lines of the program that take most of their time in some operators, costliest first.

    A recording without stacks has no others: they are of the steps that were looked at.
    """
    trace, names = signals.trace, set[str]()
    while len(rows):  # an operator may be called by the one that was seen
        names |= {trace.strings[name] for name in distinct(trace.events.name[rows]).tolist()}
        rows = trace.events.parent[rows]
        rows = rows[rows >= 0]
    return tuple(each for each in occurring(signals, "lines") if each.operator in names)


def examined_work(signals: Signals) -> Intervals:
    """When operators are what the used steps wait for.

    On the CPU, when they run. With a device, when it computes, and if the calls limit the steps,
    also when it waits for the next one.
    """
    attribution, examined = signals.attribution, signals.trace.facts.examined
    if signals.device.is_host_only:
        return attribution.intervals[Cause.HOST_COMPUTE]
    if examined is not None and examined.on_device:
        return attribution.of(*COMPUTE)
    return attribution.of(*COMPUTE, Cause.LAUNCHING, Cause.FRAMEWORK)


def place_of_observed(observed: Observed) -> str:
    """`train.py:52 forward`."""
    return f"{observed.path}:{observed.line} {observed.function}".strip()


def observed_table(found: Sequence[Observed], amount: Column | None) -> Table:
    """What was found, line by line."""
    columns = (
        Column("operator", "Operator"),
        Column("place", "Where"),
        Column("shapes", "Inputs"),
        Column("calls", "Per step", "count"),
        Column("share", "Of all operators", "share"),
    )
    rows = tuple(
        (
            *(each.operator, place_of_observed(each), each.shapes or None),
            *(each.calls, each.share),
            *((each.amount,) if amount is not None else ()),
        )
        for each in found
    )
    more = (amount,) if amount is not None else ()
    return Table("In the tensors of a few steps", (*columns, *more), rows)
