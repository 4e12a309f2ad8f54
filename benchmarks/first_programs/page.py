"""Writes the section on whole programs of *First try* in docs/accuracy.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    yield (
        f"Judged once, {when}: {len(rows)} of the {len(batch)} programs of {len(repositories)} "
        f"repositories. {len(left_out)} do not run or cannot be measured"
        + (f", {waiting} were not reached." if waiting else ".")
    )
    yield ""
    yield from _rates(rows)
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
            yield f"- {each.name} ({each.repository}): {each.left_out}"


def _rates(rows: Sequence[Program]) -> Iterator[str]:
    verdicts = [each.verdict for each in rows if each.verdict is not None]
    applied = [each for each in verdicts if each.is_in_range is not None]
    patched = [each for each in verdicts if each.patch]
    healthy = [each for each in rows if each.truth is not None and "healthy" in each.truth.causes]
    ill = [each for each in rows if each not in healthy]
    alarmed = [each for each in healthy if each.verdict and each.verdict.severity == "high"]
    yield "| what | result | target |"
    yield "|---|---|---|"
    yield _rate("known cause ranks first", [each.is_right for each in ill], "≥ 80 %")
    yield _rate(
        "first finding applied: gain in range",
        [bool(each.is_in_range) for each in applied],
        "≥ 70 %",
    )
    for severity, target in (("high", "none"), ("medium", "at most 1 in 20")):
        yield _rate(
            f"first finding applied: slower, *{severity}*",
            [each.is_slower for each in applied if each.severity == severity],
            target,
        )
    yield _rate(
        "mechanical fixes: patch applies and helps",
        [each.patch == "helped" for each in patched],
        "≥ 60 %",
    )
    yield _rate("recorded by `run` at once", [each.recorded for each in verdicts], "≥ 95 %")
    yield f"| healthy programs with a *high* finding | {len(alarmed)} of {len(healthy)} | none |"


def _rate(what: str, found: Sequence[bool], target: str) -> str:
    right, number = sum(found), len(found)
    if not number:
        return f"| {what} | none to judge | {target} |"
    low, high = interval(right, number)
    return (
        f"| {what} | {right} of {number} = {_percent(right / number)} "
        f"(95 % interval: {_percent(low)} to {_percent(high)}) | {target} |"
    )


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
    note = f"; {verdict.note}" if verdict.note else ""
    return (
        f"| {program.name} | {' or '.join(truth.causes)} | {truth.change}: {_percent(truth.gain)} "
        f"| {said}{mark} | {predicted} | {brought}{note} |"
    )


def _percent(share: float) -> str:
    return f"{round(share * 100)} %"
