"""Judges the advice on compiled programs: how far it agrees with the compiler's own estimates.

No TPU ran these programs. The profiles and the gains of the fixes are what XLA's compiler
estimates, so this says nothing about how accurate either of them is on a real chip.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from advice_cases import Case, Gain
from advice_verdicts import Estimate, Verdict, judge_report, score
from compiled_pairs.catalog import (
    LEAST_GAIN,
    PAIRS,
    generations_of,
    split_of,
)
from compiled_pairs.pair import CompiledPair
from tb_perfadvisor import analyze
from tb_perfadvisor.report.report import Report

TOLERANCE = 0.03
"""How much more of the step than the compiler says a finding may expect to save."""


@dataclass(frozen=True, slots=True)
class CompiledCase:
    """A profile of a compiled program."""

    case: Case
    pair: CompiledPair
    generation: str
    gain_share: float
    """What the compiler says that the fix gains, of the step; 0 where nothing is to fix."""

    @property
    def is_cause(self) -> bool:
        """Whether there is something to find."""
        return bool(self.case.first)


@dataclass(frozen=True, slots=True)
class Promise:
    """A finding of a program in which little or nothing is to gain."""

    rule_id: str
    severity: str
    expected_share: float


def cases(directory: Path, pairs: Sequence[CompiledPair] = PAIRS) -> Iterator[CompiledCase]:
    """The compiled programs below a directory: each slow one with its gain, and each fixed one."""
    for pair in pairs:
        for generation in sorted(generations_of(pair)):
            folder = directory / generation / pair.name
            steps_ns = {role: _step_ns(folder / role) for role in ("slow", "fixed")}
            slow_ns, fixed_ns = steps_ns["slow"], steps_ns["fixed"]
            if fixed_ns is None:
                continue
            if slow_ns is not None:
                slow_samples, fixed_samples = pair.samples
                saved_ns = slow_ns - fixed_ns * slow_samples / fixed_samples
                yield _case(pair, generation, folder / "slow", Gain(slow_ns, saved_ns, 0.0))
            if slow_ns is not None or pair.kind == "healthy":
                yield _case(pair, generation, folder / "fixed", None)


def _step_ns(folder: Path) -> float | None:
    path = folder / "step.json"
    return json.loads(path.read_text(encoding="utf-8"))["step_ns"] if path.exists() else None


def _case(pair: CompiledPair, generation: str, path: Path, gain: Gain | None) -> CompiledCase:
    share = gain.share if gain is not None else 0.0
    is_cause = pair.kind == "cause" and share >= LEAST_GAIN
    role = "" if gain is not None else ", fixed"
    case = Case(
        name=f"{pair.name}, {generation}{role}",
        source="compiled",
        split=split_of(pair),
        first=pair.first if is_cause else (),
        still_true=pair.still_true if gain is None else (),
        gain=gain if is_cause else None,
        analyze=lambda: analyze(path),
    )
    return CompiledCase(case, pair, generation, max(share, 0.0))


def promises(subject: CompiledCase, report: Report) -> tuple[Promise, ...]:
    """Findings that are rated high, or expect more than the compiler's gain; none for a cause."""
    if subject.is_cause:
        return ()
    step_ns = report.overview.step_time_ns
    found = []
    for finding in report.findings:
        if finding.rule_id in subject.case.still_true:
            continue
        expected_ns = finding.saving.expected_ns if finding.saving is not None else 0
        share = expected_ns / step_ns if step_ns else 0.0
        if finding.severity == "high" or share > subject.gain_share + TOLERANCE:
            found.append(Promise(finding.rule_id, finding.severity, share))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class CompiledVerdict:
    """What the advice got right about a compiled program."""

    subject: CompiledCase
    verdict: Verdict
    promises: tuple[Promise, ...]
    step_ns: int | None = None
    """The step of the report."""


def judge(subject: CompiledCase) -> CompiledVerdict:
    """Analyze a program's profile and compare the report with what the compiler says."""
    report = subject.case.analyze()
    verdict = judge_report(subject.case, report)
    if subject.pair.samples != (1, 1):
        verdict = replace(verdict, estimate=_per_sample(subject.case, report))
    return CompiledVerdict(
        subject, verdict, promises(subject, report), report.overview.step_time_ns
    )


def _per_sample(case: Case, report: Report) -> Estimate | None:
    """What a larger batch is expected to save per sample; None if none is proposed."""
    batches = (f.larger_batch for f in report.findings if f.rule_id in case.accepted)
    batch = next((batch for batch in batches if batch is not None), None)
    if batch is None or case.gain is None:
        return None
    shares = (batch.low_share, batch.expected_share, batch.high_share)
    return Estimate(*(share * case.gain.slow_ns for share in shares))


def summary_table(verdicts: Sequence[CompiledVerdict]) -> Iterator[str]:
    """One row for each half, and one for the targets."""
    yield (
        "| half | causes | cause first | gain in range | width | error | nothing to fix, and traps"
        " | high | too much promised |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for half, name in (("test", "test half"), ("tune", "tuning half")):
        group = [v for v in verdicts if v.subject.case.split == half]
        if not group:
            continue
        figures = score([v.verdict for v in group])
        quiet = [v for v in group if not v.subject.is_cause]
        high = sum(any(p.severity == "high" for p in v.promises) for v in quiet)
        more = sum(
            any(p.expected_share > v.subject.gain_share + TOLERANCE for p in v.promises)
            for v in quiet
        )
        yield (
            f"| {name} | {figures.cases} | {_percent(figures.cause_first)}"
            f" | {_percent(figures.in_range)} | {_number(figures.width)}"
            f" | {_percent(figures.error)} | {len(quiet)} | {high} | {more} |"
        )
    yield "| *target* | | ≥ 85 % | ≥ 80 % | | | | none | none |"


def rule_table(verdicts: Sequence[CompiledVerdict]) -> Iterator[str]:
    """One row for each rule that should find a cause."""
    yield "| rule | half | programs | cause first | gain in range | gain | expected | error |"
    yield "|---|---|---|---|---|---|---|---|"
    groups: dict[tuple[str, str], list[CompiledVerdict]] = {}
    for v in verdicts:
        if v.subject.is_cause:
            key = v.subject.case.first[0], v.subject.case.split
            groups.setdefault(key, []).append(v)
    for (rule, half), group in sorted(groups.items()):
        gains = [100 * v.subject.gain_share for v in group]
        expected = [_expected_percent(v) for v in group]
        errors = [v.verdict.error for v in group if v.verdict.error is not None]
        yield (
            f"| `{rule}` | {half} | {len(group)}"
            f" | {_of(v.verdict.is_cause_first for v in group)}"
            f" | {_of(v.verdict.is_in_range for v in group)}"
            f" | {_range(gains)} | {_range(expected)}"
            f" | {_percent(statistics.median(errors) if errors else None)} |"
        )


def case_table(verdicts: Sequence[CompiledVerdict]) -> Iterator[str]:
    """One row for each program on which the advice and the compiler disagree."""
    yield "| program | half | first | gain | predicted | wrong |"
    yield "|---|---|---|---|---|---|"
    for v in verdicts:
        wrong = list(_wrong(v))
        if not wrong:
            continue
        gain, estimate = v.verdict.case.gain, v.verdict.estimate
        predicted = "–"
        if gain is not None and estimate is not None:
            predicted = " – ".join(
                f"{100 * bound / gain.slow_ns:.0f}"
                for bound in (estimate.low_ns, estimate.expected_ns, estimate.high_ns)
            )
        yield (
            f"| {v.subject.case.name} | {v.subject.case.split} | {v.verdict.first or 'nothing'}"
            f" | {100 * v.subject.gain_share:.0f} % | {predicted} % | {'; '.join(wrong)} |"
        )


def _wrong(v: CompiledVerdict) -> Iterator[str]:
    if v.verdict.is_cause_first is False:
        yield f"cause not first ({v.subject.case.first[0]})"
    if v.verdict.is_in_range is False:
        yield "gain not in range" if v.verdict.estimate else "cause not found"
    for promise in v.promises:
        yield f"{promise.rule_id}, {promise.severity}, {100 * promise.expected_share:.0f} %"


def _expected_percent(v: CompiledVerdict) -> float:
    gain, estimate = v.verdict.case.gain, v.verdict.estimate
    return 100 * estimate.expected_ns / gain.slow_ns if gain and estimate else 0.0


def _range(values: Sequence[float]) -> str:
    low, high = round(min(values)), round(max(values))
    return f"{low} %" if low == high else f"{low} to {high} %"


def _of(answers: Iterable[bool | None]) -> str:
    known = [answer for answer in answers if answer is not None]
    return f"{sum(known)} of {len(known)}" if known else "–"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
