"""Calls of the same operator in a loop, none of which needs the result of another."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.examined_operators import (
    examined_work,
    observed_table,
    occurring,
    place_of_observed,
)
from tb_perfadvisor.rules.finding import Column, Finding, Saving
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.host.call_tree import dispatch
from tb_perfadvisor.signals.host.optimizer_loops import optimizer_loop
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, join, minus, total_ns

_SMALL_ELEMENTS = 32_768
"""A core reads 128 KB from its cache in about the time that calling an operator takes."""
_OF_SMALL = (0.4, 0.85, 1.6)
"""The parts of the time of small operators that go, at least, as expected and at most: an estimate.
More than all of it, where the backward pass of each call writes a gradient as large as the whole
tensor."""
_OF_PYTHON = (0.0, 0.5, 1.0)
_BETWEEN = (Cause.LAUNCHING, Cause.FRAMEWORK, Cause.PYTHON, Cause.UNEXPLAINED)
"""Time in which no operator runs. A loop's own is its share of it, if the rest has as much for each
call: an estimate."""
_OF_UPDATES = (0.4, 0.7, 1.0)
"""The parts of updating many parameters that go, where they become one: an estimate. The numbers
stay as many."""
_CALLING = (0.5, 0.9)
"""The parts of calling the operators that go, at least and as expected: where `many-tiny-operators`
measured batches of samples, 0.7 to 1.5 of the dispatch was saved."""


class IndependentCalls(Rule):
    """A loop calls the same operators for each element, and no call needs another's result.

    What it finds
    -------------
    In a PyTorch program, lines that call an operator on inputs of the same sizes three
    times or more, where no call reads, even through others, what another one of them returns: a
    loop over heads, samples, environments, members of an ensemble. Of lookups in tables, selections
    and sums, the sizes may differ, if there are eight or more.

    Why it matters
    --------------
    Each call costs some microseconds of Python, dispatch and allocation, and as much again in the
    backward pass. One call for all of them costs that once, and large operators compute faster.

    How it is measured
    ------------------
    In steps that `perfadvisor run` looked at, each result is followed to the operators that read
    it. The calls that one for all would replace are a part of all forward calls. That part of
    the time for calling operators goes, forward and backward: expected nine tenths of it, at least
    half. High is that part of the whole time of operators. With a device, all of that time counts
    as calling if the calls take longer than what they give to the device, and none otherwise.
    Operators on at most 32,768 elements, and products of at most 262,144 multiplications, take no
    longer than calling them: of their whole time, 85 % is expected to go, at least 40 %, and half
    of the Python around them. On the CPU, the time of each operator counts up to three times that
    of such a call: others may compute for long. If each call has parameters of its own, the
    optimizer has as many fewer to update: 70 % of the time for those is expected to go.

    When to ignore
    --------------
    When the calls use parameters of their own and sizes that cannot be stacked.

    How to verify
    -------------
    The number of operators per step falls, and the step is shorter.

    References:
    ----------
    PyTorch documentation, `torch.vmap` and `torch.bmm`; "PyTorch Performance Tuning Guide".
    """

    id = "independent-calls"
    title = "Make one call of the calls that do not need each other"
    needs = (*(Need.WORK, Need.HOST_EVENTS, Need.PYTORCH, Need.EXAMINED_STEPS),)
    look = "independent calls"

    minimum_share = Limit(
        0.05, "share", "Rewriting a loop is not worth it for less than 5 % of the step."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        found = occurring(signals, "independent")
        if not found:
            return
        share = min(sum(each.share for each in found), 1.0)
        first = found[0]
        spans, calling_ns = _calling(signals)
        spans_ns = total_ns(spans)
        times = (*(part * calling_ns for part in _CALLING), float(spans_ns))
        updating, python = optimizer_loop(signals).steps, EMPTY
        if first.elements is not None and first.elements <= _SMALL_ELEMENTS:
            if signals.device.is_host_only:
                spans_ns = dispatch(signals).like(first.operator)
            python = minus(signals.attribution.of(*_BETWEEN), join(spans, updating))
            parts = zip(_OF_SMALL, _OF_PYTHON, strict=True)
            times = tuple(of * spans_ns + rest * total_ns(python) for of, rest in parts)
        updates_ns = total_ns(updating) * min(sum(each.updates for each in found), 1.0)
        low, expected, high = (
            int(share * time_ns + part * updates_ns)
            for time_ns, part in zip(times, _OF_UPDATES, strict=True)
        )
        if self.is_minor(expected, signals):
            return
        claims = join(spans, python, *((updating,) if updates_ns else ()))
        is_table = first.operator == "aten::embedding"
        yield Finding(
            instance=f"{first.calls:,} operators in {place_of_observed(first)}",
            summary=(
                f"{per_step(int(share * spans_ns), signals)} goes into calls of which one could do"
                f" the work of {first.amount:.0f}: {place_of_observed(first)} calls"
                f" {first.operator} of {first.shapes} again and again, and no call needs the"
                " result of another."
            ),
            saving=Saving(low, expected, high, claims, "modeled"),
            evidence=(observed_table(found, Column("at_once", "Could be one", "count")),),
            remedies=advise(
                "one-table" if is_table else "stacked-elements", "list-operators", "compile"
            ),
        )


def _calling(signals: Signals) -> tuple[Intervals, int]:
    """When operators run, and how much of that calling them takes."""
    if signals.device.is_host_only:
        calling = dispatch(signals)
        return calling.spans, calling.calling_ns
    spans = examined_work(signals)
    examined = signals.trace.facts.examined
    is_host_limited = examined is not None and not examined.on_device
    return spans, total_ns(spans) if is_host_limited else 0
