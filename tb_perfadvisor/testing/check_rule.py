"""Check the contract of a rule on two traces: a slow one, and one with the fix.

check_rule(InputStall, slow=SLOW, fixed=FIXED, saves="4ms")
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.engine.analyze import completed, missing_of, needs_of
from tb_perfadvisor.engine.savings import estimated, simulate
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.finding import Events, Finding, Series, Span, Table
from tb_perfadvisor.signals import Need, Options, Signals, reference_worker, why_missing
from tb_perfadvisor.signals.workload.workload import (
    INFERENCE_LIBRARIES,
    SERVERS,
    Aspect,
    Fact,
    Part,
    Workload,
    workload,
)
from tb_perfadvisor.testing.builder import run_of
from tb_perfadvisor.testing.lanes import draw
from tb_perfadvisor.testing.variants import renamed, shifted, stretched, without
from tb_perfadvisor.trace import EventKind, Run, Trace
from tb_perfadvisor.trace.intervals import join, total_ns, union
from tb_perfadvisor.units import NS_PER_MS, NS_PER_S, NS_PER_US

Subject = str | Trace | Run

_DURATION = regex(r"([\d.]+)\s*(ns|us|µs|ms|s)$")
_UNIT_NS = {"ns": 1, "us": NS_PER_US, "µs": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S}
_SHIFT_NS = 86_399_000_000_001


class Checked(Struct, frozen=True):
    """A rule's findings on the slow trace, for further assertions."""

    findings: tuple[Finding, ...]
    signals: Signals
    """Of the reference worker."""

    @property
    def expected_ns(self) -> float:
        """The expected saving per step."""
        return _per_step(self, "expected_ns")


def check_rule(
    rule: type[Rule],
    *,
    slow: Subject,
    fixed: Subject,
    saves: str | int | None = None,
    tolerance: float = 0.0,
    exactly: bool = True,
    scales: bool = True,
    settings: Mapping[str, float] | None = None,
    options: Options | None = None,
    fixed_applies: bool = True,
    **attributes: Any,
) -> Checked:
    """Check a rule's contract.

    Args:
        rule: The rule.
        slow: A drawing, a trace or a run on which the rule must find something.
        fixed: The same program with the fix; the rule must pass.
        saves: What the fix saves per step (`4ms`, or nanoseconds): the difference between
            the steps of the drawings, which the estimate must bracket. None if the rule
            estimates nothing.
        tolerance: By how much the bracket may miss that difference, as a share of it.
        exactly: Whether replaying the slow trace must save exactly that. Set it to False if the
            fixed trace shows a different change from the one that is replayed.
        scales: Whether doubling all times doubles the saving. Set it to False if the estimate
            depends on rates (bandwidth, peaks).
        settings: Values for the rule's limits.
        options: What the user would specify, such as the link bandwidth.
        fixed_applies: Whether the rule applies to the fixed trace. The fix may remove what the
            rule is about.
        attributes: Arguments for `draw`.

    Raises:
        AssertionError: Names the part of the contract that the rule breaks.
    """
    slow_run, fixed_run = _run(slow, attributes), _run(fixed, attributes)

    def found(run: Run) -> Checked | None:
        return _apply(rule, run, settings, options)

    checked = found(slow_run)
    assert checked is not None, _why_not_applicable(rule, "slow", slow_run, options)
    assert checked.findings, f"{rule.id} finds nothing in the slow trace"
    after = found(fixed_run)
    if fixed_applies:
        assert after is not None, _why_not_applicable(rule, "fixed", fixed_run, options)
    summaries = [finding.summary for finding in after.findings] if after else []
    assert not summaries, f"{rule.id} still finds something in the fixed trace: {summaries}"
    for finding in checked.findings:
        _check_finding(rule, finding, checked.signals)
    _check_width(rule, checked)
    if saves is not None:
        fixed_ns = _fixed_step_ns(fixed_run, options)
        _check_saving(rule, checked, fixed_ns, saves, tolerance, exactly=exactly)
    _check_indifference(rule, checked, slow_run, found)
    if scales and saves is not None:
        _check_scaling(rule, checked, slow_run, found)
    _check_needs(rule, slow_run, found, options)
    return checked


def find(
    rule: type[Rule],
    subject: Subject,
    *,
    settings: Mapping[str, float] | None = None,
    options: Options | None = None,
    **attributes: Any,
) -> tuple[Finding, ...] | None:
    """A rule's findings; None if it is not applicable."""
    checked = _apply(rule, _run(subject, attributes), settings, options)
    return None if checked is None else checked.findings


def _run(subject: Subject, attributes: Mapping[str, Any]) -> Run:
    if isinstance(subject, Run):
        return subject
    return run_of(draw(subject, **attributes) if isinstance(subject, str) else subject)


def _apply(
    rule: type[Rule],
    run: Run,
    settings: Mapping[str, float] | None,
    options: Options | None,
) -> Checked | None:
    """Run a rule as the engine does, but let exceptions through."""
    signals = reference_worker(run, options)
    if missing_of(rule, signals):
        return None
    configured = rule(settings)
    findings = tuple(configured.check(signals))
    for finding in findings:
        _check_that_a_remedy_fits(rule, finding, signals)
    shown = [(configured, completed(finding, signals)) for finding in findings]
    found = simulate(shown, signals)
    return Checked(tuple(finding for _, finding in found), signals)


def _why_not_applicable(rule: type[Rule], which: str, run: Run, options: Options | None) -> str:
    """Name the needs that a trace lacks, with the reason for each."""
    signals = reference_worker(run, options)
    missing = missing_of(rule, signals)
    lacks = "; ".join(f"Need.{one.need.name}: {one.reason}" for one in missing)
    return f"{rule.id} does not apply to the {which} trace ({lacks})"


def _check_that_a_remedy_fits(rule: type[Rule], finding: Finding, signals: Signals) -> None:
    """Whatever framework, compiler or input the program has besides what was drawn."""
    drawn = workload(signals)
    impossible = (*SERVERS, *INFERENCE_LIBRARIES) if drawn.has(Part.TRAINING) else ()
    for part in (None, *Part):
        if part in impossible or (part and part.aspect in (Aspect.MODE, Aspect.HARDWARE)):
            continue
        parts = () if part is None else (part, Part.SERVER) if part in SERVERS else (part,)
        facts = tuple(Fact(part, "added") for part in parts if not drawn.has(part))
        program = Workload(drawn.base, (*drawn.facts, *facts))
        assert any(remedy.fits(program) for remedy in finding.remedies), (
            f"{rule.id}: a finding without a remedy"
            f"{f' for a program with {part.label}' if part else ''}"
        )


def _check_finding(rule: type[Rule], finding: Finding, signals: Signals) -> None:
    assert finding.summary.strip(), f"{rule.id}: an empty summary"
    assert "\n" not in finding.summary, f"{rule.id}: a summary is one line"
    assert finding.remedies, f"{rule.id}: a finding without a remedy"
    assert finding.evidence, f"{rule.id}: a finding without evidence"
    assert finding.saving is not None or finding.severity is not None, (
        f"{rule.id}: neither a saving nor a severity"
    )
    for remedy in finding.remedies:
        if remedy.snippet and remedy.language == "python":
            ast.parse(remedy.snippet)
    if finding.saving is not None:
        claims = finding.saving.claims
        assert np.array_equal(claims, union(claims[:, 0], claims[:, 1])), (
            f"{rule.id}: claims are not sorted, disjoint intervals"
        )
        window = signals.attribution
        assert len(claims) == 0 or (
            claims[0, 0] >= window.window_start_ns and claims[-1, 1] <= window.window_end_ns
        ), f"{rule.id}: claims time outside the used steps"
    for evidence in finding.evidence:
        _check_evidence(rule, evidence, signals.run)


def _check_width(rule: type[Rule], checked: Checked) -> None:
    """No range that a report shows is wider than four times the expected saving, or it says so."""
    found = [(rule(), finding) for finding in checked.findings]
    for _, finding in estimated(found, checked.signals):
        saving = finding.saving
        if saving is not None and saving.basis != "heuristic":
            assert saving.high_ns - saving.low_ns <= 4 * saving.expected_ns, (
                f"{rule.id}: {saving.low_ns} to {saving.high_ns} ns is too wide a range for an"
                f" expected saving of {saving.expected_ns} ns, {saving.basis}"
            )


def _check_evidence(rule: type[Rule], evidence: object, run: Run) -> None:
    if isinstance(evidence, Events):
        trace = run.traces[evidence.worker]
        assert len(evidence.rows), f"{rule.id}: {evidence.title!r} has no rows"
        assert 0 <= evidence.rows.min() <= evidence.rows.max() < len(trace.events), (
            f"{rule.id}: {evidence.title!r} has rows that the trace lacks"
        )
    elif isinstance(evidence, Span):
        trace = run.traces[evidence.worker]
        assert evidence.start_ns < evidence.end_ns <= trace.duration_ns, (
            f"{rule.id}: {evidence.title!r} lies outside the trace"
        )
    elif isinstance(evidence, Table):
        assert evidence.rows, f"{rule.id}: {evidence.title!r} is an empty table"
        width = len(evidence.columns)
        assert all(len(row) == width for row in evidence.rows), (
            f"{rule.id}: {evidence.title!r} has ragged rows"
        )
        numbers = [cell for row in evidence.rows for cell in row if isinstance(cell, float)]
        assert all(isfinite(number) for number in numbers), (
            f"{rule.id}: {evidence.title!r} has numbers that are none"
        )
    elif isinstance(evidence, Series):
        assert all(isfinite(x) and isfinite(y) for x, y in evidence.points), (
            f"{rule.id}: {evidence.title!r} has points that are none"
        )
    else:
        raise AssertionError(f"{rule.id}: {type(evidence).__name__} is no evidence")


def _check_saving(
    rule: type[Rule],
    checked: Checked,
    fixed_ns: float,
    saves: str | int,
    tolerance: float,
    *,
    exactly: bool,
) -> None:
    drawn_ns = _nanoseconds(saves)
    true_ns = _step_ns(checked.signals) - fixed_ns
    assert abs(true_ns - drawn_ns) <= 1, (
        f"the drawings differ by {true_ns:.0f} ns a step, not by {saves}"
    )
    low, high = _per_step(checked, "low_ns"), _per_step(checked, "high_ns")
    slack = tolerance * drawn_ns + 1  # the mean per step may be a fraction
    assert low - slack <= true_ns <= high + slack, (
        f"{rule.id} estimates {low:.0f} to {high:.0f} ns a step, the fix saves {true_ns:.0f} ns"
    )
    bases = {finding.saving.basis for finding in checked.findings if finding.saving is not None}
    if exactly and bases == {"simulated"}:
        expected = checked.expected_ns
        assert abs(expected - true_ns) <= 1, (
            f"{rule.id}, replayed, saves {expected:.0f} ns a step, the fix saves {true_ns:.0f} ns"
        )


def _check_indifference(
    rule: type[Rule], checked: Checked, run: Run, found: Callable[[Run], Checked | None]
) -> None:
    def expect_same(what: str, changed: Run) -> None:
        other = found(changed)
        assert other is not None, f"{rule.id}: not applicable after {what}"
        assert _savings(other) == _savings(checked), f"{rule.id}: {what} changes its savings"

    # Without step markers the window is the whole trace, which cannot be shifted.
    if all(len(trace.rows(EventKind.STEP)) for trace in run.traces):
        expect_same("shifting the clock", _each(run, lambda trace: shifted(trace, _SHIFT_NS)))
    expect_same("renaming the tracks", _each(run, renamed))
    ranks = [trace.source.rank for trace in run.traces]
    if len(ranks) > 1 and None not in ranks:
        reversed_ranks = [
            replace(trace, source=replace(trace.source, rank=rank))
            for trace, rank in zip(run.traces, reversed(ranks), strict=True)
        ]
        expect_same("permuting the ranks", run_of(*reversed_ranks, name=run.name))


def _check_scaling(
    rule: type[Rule], checked: Checked, run: Run, found: Callable[[Run], Checked | None]
) -> None:
    doubled = found(_each(run, lambda trace: stretched(trace, 2)))
    assert doubled is not None, f"{rule.id}: not applicable at twice the time"
    once = _per_step(checked, "expected_ns")
    twice = _per_step(doubled, "expected_ns")
    # Rounding to whole nanoseconds may cost two.
    assert abs(twice - 2 * once) <= 2 * max(len(checked.findings), 1), (
        f"{rule.id}: at twice the time it saves {twice:.0f} ns, not {2 * once:.0f} ns"
    )


def _check_needs(
    rule: type[Rule],
    run: Run,
    found: Callable[[Run], Checked | None],
    options: Options | None,
) -> None:
    stated = {Need.LINK_BANDWIDTH, Need.COLLECTIVE_SIZES} if options else set()
    for need in needs_of(rule, reference_worker(run, options)):
        if need in stated:  # what the user specifies need not be in the trace
            continue
        stripped = [without(trace, need) for trace in run.traces]
        traces = tuple(trace for trace in stripped if trace is not None)
        if len(traces) < len(stripped):
            continue
        rest = replace(run, traces=traces)
        suffices = rule.suffices
        if suffices and why_missing(reference_worker(rest, options), suffices) is None:
            continue
        other = found(rest)
        assert other is None or not other.findings, (
            f"{rule.id} finds something without {need.value}, which it says it needs"
        )


def _each(run: Run, change: Callable[[Trace], Trace]) -> Run:
    return replace(run, traces=tuple(change(trace) for trace in run.traces))


def _savings(checked: Checked) -> list[tuple[int, int, int] | None]:
    return [
        None if saving is None else (saving.low_ns, saving.expected_ns, saving.high_ns)
        for saving in (finding.saving for finding in checked.findings)
    ]


def _per_step(checked: Checked, bound: str) -> float:
    """A bound on the savings of all findings: at most the time that they claim together."""
    savings = [finding.saving for finding in checked.findings if finding.saving is not None]
    if not savings:
        return 0.0
    claimed_ns = total_ns(join(*(saving.claims for saving in savings)))
    total: int = min(sum(getattr(saving, bound) for saving in savings), claimed_ns)
    return total / checked.signals.steps.count


def _step_ns(signals: Signals) -> float:
    return signals.steps.window_ns / signals.steps.count


def _fixed_step_ns(run: Run, options: Options | None) -> float:
    return _step_ns(reference_worker(run, options))


def _nanoseconds(duration: str | int) -> int:
    if isinstance(duration, int):
        return duration
    match = _DURATION.match(duration.strip())
    if match is None:
        raise ValueError(f"not a duration: {duration!r} (say 4ms or 250us)")
    return round(float(match[1]) * _UNIT_NS[match[2]])
