"""What a report got right and wrong about a case, as verdicts and tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from advice_cases import Case, Gain
from tb_perfadvisor.report.report import Report

_RATED = ("high", "medium")
_ROUNDING = 0.001
"""A thousandth of a step: drawings and recordings have whole nanoseconds and whole events."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A predicted saving of a step."""

    low_ns: float
    expected_ns: float
    high_ns: float


@dataclass(frozen=True, slots=True)
class Alarm:
    """A significant finding in a healthy program."""

    rule_id: str
    severity: str
    summary: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one report got right."""

    case: Case
    first: str
    """The rule that ranks first; empty without a finding."""
    estimate: Estimate | None
    """Of the labeled cause; None where it was not found."""
    alarms: tuple[Alarm, ...]
    """Only where nothing is to mend."""

    @property
    def is_cause_first(self) -> bool | None:
        """Whether the labeled cause ranks first; None without a label."""
        return self.first in self.case.accepted if self.case.first else None

    @property
    def is_in_range(self) -> bool | None:
        """Whether the range contains the true gain, within its noise."""
        gain, estimate = self.case.gain, self.estimate
        if gain is None:
            return None
        if estimate is None:
            return False
        slack_ns = gain.noise_ns + _ROUNDING * gain.slow_ns
        return estimate.low_ns - slack_ns <= gain.saved_ns <= estimate.high_ns + slack_ns

    @property
    def width(self) -> float | None:
        """The range's width divided by the expected saving; None without a range."""
        if self.case.gain is None or self.estimate is None or self.estimate.expected_ns == 0:
            return None
        return (self.estimate.high_ns - self.estimate.low_ns) / self.estimate.expected_ns

    @property
    def error(self) -> float | None:
        """The error of the expected saving beyond the noise, divided by the true gain."""
        gain = self.case.gain
        if gain is None:
            return None
        expected_ns = self.estimate.expected_ns if self.estimate else 0.0
        beyond_ns = max(0.0, abs(expected_ns - gain.saved_ns) - gain.noise_ns)
        return beyond_ns / abs(gain.saved_ns)


def judge(case: Case) -> Verdict:
    """Analyze a case's capture and compare the report with what is known."""
    return judge_report(case, case.analyze())


def judge_report(case: Case, report: Report) -> Verdict:
    """Compare the report of a case's capture with what is known."""
    findings = [finding for finding in report.findings if finding.refines is None]
    alarms: tuple[Alarm, ...] = ()
    if not case.first:
        alarms = tuple(
            Alarm(finding.rule_id, finding.severity, finding.summary)
            for finding in findings
            if finding.severity in _RATED and finding.rule_id not in case.still_true
        )
    return Verdict(
        case=case,
        first=findings[0].rule_id if findings else "",
        estimate=_estimate(case, report),
        alarms=alarms,
    )


def _estimate(case: Case, report: Report) -> Estimate | None:
    """The saving of the most specific finding that names the labeled cause."""
    savings = {finding.rule_id: finding.saving for finding in reversed(report.findings)}
    for name in (*case.first, *sorted(case.accepted)):
        if (saving := savings.get(name)) is not None:
            return Estimate(saving.low_ns, saving.expected_ns, saving.high_ns)
    return None


@dataclass(frozen=True, slots=True)
class Score:
    """Scores of many verdicts; None if no case has the value."""

    cases: int
    cause_first: float | None
    healthy: int
    high_alarms: int
    medium_alarms: int
    in_range: float | None
    width: float | None
    error: float | None


def score(verdicts: Sequence[Verdict]) -> Score:
    """Count the correct verdicts, and take the medians of widths and errors."""
    healthy = [verdict for verdict in verdicts if verdict.is_cause_first is None]
    alarms = [alarm.severity for verdict in healthy for alarm in verdict.alarms]
    return Score(
        cases=len(verdicts) - len(healthy),
        cause_first=_share(verdict.is_cause_first for verdict in verdicts),
        healthy=len(healthy),
        high_alarms=alarms.count("high"),
        medium_alarms=alarms.count("medium"),
        in_range=_share(verdict.is_in_range for verdict in verdicts),
        width=_median(verdict.width for verdict in verdicts),
        error=_median(verdict.error for verdict in verdicts),
    )


def _share(answers: Iterable[bool | None]) -> float | None:
    known = [answer for answer in answers if answer is not None]
    return sum(known) / len(known) if known else None


def _median(figures: Iterable[float | None]) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return statistics.median(known) if known else None


def summary_table(scores: Mapping[str, Score]) -> Iterator[str]:
    """One row for each group of cases, and one for the targets."""
    yield (
        "| cases | cause first | false alarms, high | medium | true gain in range | width | error |"
    )
    yield "|---|---|---|---|---|---|---|"
    for name, s in scores.items():
        alarms = ["–", "–"]
        if s.healthy:
            counts = (s.high_alarms, s.medium_alarms)
            alarms = [f"{count} in {s.healthy}" for count in counts]
        yield (
            f"| {name} ({s.cases + s.healthy}) | {_percent(s.cause_first)} | {alarms[0]}"
            f" | {alarms[1]} | {_percent(s.in_range)} | {_number(s.width)}"
            f" | {_percent(s.error)} |"
        )
    yield "| *target* | ≥ 95 % | none | ≤ 1 in 20 | ≥ 90 % | ≤ 0.9 | ≤ 20 % |"


def case_table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """One row for each case, over all its repetitions."""
    yield "| case | half | cause first | first | true gain | predicted | in range | width | error |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, group in _by_case(verdicts).items():
        case = group[0].case
        if not case.first:
            continue
        yield (
            f"| {name} | {case.split or '–'} | {_of(verdict.is_cause_first for verdict in group)}"
            f" | {_names(verdict.first for verdict in group)} | {_gain(case.gain)}"
            f" | {_estimates(group)} | {_of(verdict.is_in_range for verdict in group)}"
            f" | {_number(_median(verdict.width for verdict in group))}"
            f" | {_percent(_median(verdict.error for verdict in group))} |"
        )


def misses(verdicts: Sequence[Verdict], explanations: Mapping[str, str]) -> Iterator[str]:
    """The errors by rule, each with its explanation."""
    lines: list[tuple[str, str]] = []
    for name, group in _by_case(verdicts).items():
        why = explanations.get(name, "not explained yet")
        rule = group[0].case.first[0] if group[0].case.first else ""
        half = f" ({group[0].case.split})" if group[0].case.split else ""
        rule = rule or _alarm_rules(group)
        lines += [(rule, f"{name}{half}: {text} – {why}") for text in _wrong(group)]
    for rule in sorted({rule for rule, _ in lines}):
        yield f"- `{rule}`"
        yield from (f"  - {line}" for rule_id, line in lines if rule_id == rule)


def _wrong(group: Sequence[Verdict]) -> Iterator[str]:
    missed = [verdict for verdict in group if verdict.is_cause_first is False]
    if missed:
        first = _names(verdict.first for verdict in missed)
        yield f"cause not first in {len(missed)} of {len(group)} ({first} is)"
    outside = [
        verdict
        for verdict in group
        if verdict.is_in_range is False and verdict.estimate is not None
    ]
    if outside:
        yield (
            f"gain of {_gain(group[0].case.gain)} outside of {_estimates(outside)} in "
            f"{len(outside)} of {len(group)}"
        )
    alarmed = [verdict for verdict in group if verdict.alarms]
    if alarmed:
        alarms = sorted(
            {f"{a.rule_id}, {a.severity}" for verdict in alarmed for a in verdict.alarms}
        )
        yield f"false alarm in {len(alarmed)} of {len(group)} ({'; '.join(alarms)})"


def _alarm_rules(group: Sequence[Verdict]) -> str:
    return _names(alarm.rule_id for verdict in group for alarm in verdict.alarms)


def _by_case(verdicts: Sequence[Verdict]) -> dict[str, list[Verdict]]:
    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault(verdict.case.name, []).append(verdict)
    return groups


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted({name or "nothing" for name in names}))


def _of(answers: Iterable[bool | None]) -> str:
    known = [answer for answer in answers if answer is not None]
    return f"{sum(known)} of {len(known)}" if known else "–"


def _gain(gain: Gain | None) -> str:
    if gain is None:
        return "–"
    return (
        f"{gain.saved_ns / 1e6:.1f} ± {gain.noise_ns / 1e6:.1f} of {gain.slow_ns / 1e6:.1f} ms"
        f" ({100 * gain.share:.0f} %)"
    )


def _estimates(group: Sequence[Verdict]) -> str:
    known = [verdict.estimate for verdict in group if verdict.estimate is not None]
    if not known:
        return "–"
    low, expected, high = (
        statistics.median(getattr(figure, bound) for figure in known) / 1e6
        for bound in ("low_ns", "expected_ns", "high_ns")
    )
    return f"{low:.1f} – **{expected:.1f}** – {high:.1f} ms"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
