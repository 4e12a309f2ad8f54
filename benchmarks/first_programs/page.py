"""Writes the section on whole programs of *First try* in docs/accuracy.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from first_programs.recipes import Program, judged
from first_try.page import interval


def section(batch: Sequence[Program], when: str) -> Iterator[str]:
    """The lines of docs/accuracy.md.

    Args:
        batch: All programs of the batch.
        when: When they were judged, and with which version.
    """
    rows = judged(batch)
    left_out = [each for each in batch if each.left_out]
    repositories = {each.repository for each in batch}
    waiting = len(batch) - len(rows) - len(left_out)
    is_own = repositories == {"."}
    source = "" if is_own else f" of {len(repositories)} repositories"
    yield (
        f"Judged once, {when}: {len(rows)} of the {len(batch)} programs{source}. "
        f"{len(left_out)} could not be run or measured"
        + (f", {waiting} were not reached." if waiting else ".")
    )
    yield ""
    if is_own:
        yield from pooled([batch])
    else:
        yield "| what | result | target |"
        yield "|---|---|---|"
        for rate in rates(rows):
            yield f"| {rate.what} | {rate.result} | {rate.target} |"
    yield ""
    yield "| program | known cause | best change by hand | said first | predicted | brought |"
    yield "|---|---|---|---|---|---|"
    for each in rows:
        yield _row(each)
    if left_out:
        yield ""
        yield "Not judged:"
        yield ""
        for each in left_out:
            where = "" if is_own else f" ({each.repository})"
            yield f"- {each.name}{where}: {each.left_out}"


@dataclass(frozen=True, slots=True)
class Rate:
    """How often something that should be true of programs is."""

    what: str
    right: int
    number: int
    target: str

    @property
    def result(self) -> str:
        """`9 of 26 = 35 % (95 % interval: 19 % to 54 %)`."""
        if not self.number:
            return "none to judge"
        low, high = interval(self.right, self.number)
        return (
            f"{self.right} of {self.number} = {_percent(self.right / self.number)} "
            f"(95 % interval: {_percent(low)} to {_percent(high)})"
        )


def rates(rows: Sequence[Program]) -> tuple[Rate, ...]:
    """What counts as accuracy.

    Args:
        rows: Programs with a truth and a verdict.
    """
    verdicts = [each.verdict for each in rows if each.verdict is not None]
    applied = [each for each in verdicts if each.is_in_range is not None]
    patched = [each.patch == "helped" for each in verdicts if each.patch]
    healthy = [each for each in rows if each.truth is not None and "healthy" in each.truth.causes]
    ill = [each for each in rows if each not in healthy]
    alarmed = [each.verdict is not None and each.verdict.severity == "high" for each in healthy]
    slower = {
        severity: [each.is_slower for each in applied if each.severity == severity]
        for severity in ("high", "medium")
    }
    return (
        _rate("known cause ranks first", [each.is_right for each in ill], "≥ 80 %"),
        _rate(
            "first finding applied: gain in range",
            [bool(each.is_in_range) for each in applied],
            "≥ 70 %",
        ),
        _rate("first finding applied: slower, *high*", slower["high"], "none"),
        _rate("first finding applied: slower, *medium*", slower["medium"], "at most 1 in 20"),
        _rate("mechanical fixes: patch applies and helps", patched, "≥ 60 %"),
        _rate("recorded by `run` at once", [each.recorded for each in verdicts], "≥ 95 %"),
        _rate("healthy programs with a *high* finding", alarmed, "none"),
    )


def pooled(batches: Sequence[Sequence[Program]]) -> Iterator[str]:
    """The table of all programs of all batches, by framework."""
    rows = [each for batch in batches for each in judged(batch)]
    frameworks = sorted({each.framework for each in rows}, key=str.casefold)
    parts = [rates([each for each in rows if each.framework == name]) for name in frameworks]
    yield f"| what | {' | '.join(frameworks)} | all {len(rows)} programs | target |"
    yield "|---" * (len(frameworks) + 3) + "|"
    for number, rate in enumerate(rates(rows)):
        by_framework = [
            f"{part[number].right} of {part[number].number}" if part[number].number else "–"
            for part in parts
        ]
        yield f"| {rate.what} | {' | '.join(by_framework)} | {rate.result} | {rate.target} |"


def _rate(what: str, found: Sequence[bool], target: str) -> Rate:
    return Rate(what, sum(found), len(found), target)


def _row(program: Program) -> str:
    truth, verdict = program.truth, program.verdict
    assert truth is not None
    assert verdict is not None
    said = f"`{verdict.said}`, {verdict.severity}" if verdict.said else "nothing"
    if not verdict.recorded:
        said = "not recorded at once"
    mark = "" if program.is_right else " ✗"
    predicted = "–"
    if verdict.predicted is not None:
        predicted = " – ".join(_percent(share) for share in verdict.predicted)
    brought = "–" if verdict.gain is None else _percent(verdict.gain)
    best = "not measured" if truth.gain is None else _percent(truth.gain)
    note = f"; {verdict.note}" if verdict.note else ""
    return (
        f"| {program.name} | {' or '.join(truth.causes)} | {truth.change}: {best} "
        f"| {said}{mark} | {predicted} | {brought}{note} |"
    )


def _percent(share: float) -> str:
    return f"{round(share * 100)} %"
