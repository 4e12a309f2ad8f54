"""Judges programs that were written before the advice was looked at: TPU families, and the host.

python benchmarks/judge_families.py compiled DIR   # DIR: of `compiled_pairs.compiling`
python benchmarks/judge_families.py second DIR     # the second batch of families
python benchmarks/judge_families.py host DIR       # DIR: of `host_programs.recording`
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from advice_cases import Case, Gain
from advice_verdicts import Estimate, Verdict
from compiled_advice import TOLERANCE, CompiledCase, CompiledVerdict, cases, judge
from compiled_pairs.families.catalog import FAMILY_PAIRS
from compiled_pairs.pair import CompiledPair, Kind
from compiled_pairs.second_families.catalog import SECOND_FAMILY_PAIRS
from host_programs.catalog import PROGRAMS, HostProgram
from tb_perfadvisor import analyze

_LEAST_GAIN = 0.05
"""On the CPU, less is within the variation between runs."""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("batch", choices=("compiled", "second", "host"))
    parser.add_argument("directory", type=Path)
    given = parser.parse_args()
    read = {"compiled": _compiled, "second": _second, "host": _host}[given.batch]
    verdicts = [_of_own_step(judge(subject)) for subject in read(given.directory)]
    print("\n".join((*_summary(verdicts), "", *_programs(verdicts))))


def _of_own_step(found: CompiledVerdict) -> CompiledVerdict:
    """The verdict with shares of the recorded step, which other programs may have slowed down."""
    gain, estimate = found.verdict.case.gain, found.verdict.estimate
    if gain is None or estimate is None or not found.step_ns:
        return found
    part = gain.slow_ns / found.step_ns
    scaled = Estimate(estimate.low_ns * part, estimate.expected_ns * part, estimate.high_ns * part)
    return replace(found, verdict=replace(found.verdict, estimate=scaled))


def _compiled(directory: Path) -> Iterator[CompiledCase]:
    yield from cases(directory, FAMILY_PAIRS)


def _second(directory: Path) -> Iterator[CompiledCase]:
    yield from cases(directory, SECOND_FAMILY_PAIRS)


def _host(directory: Path) -> Iterator[CompiledCase]:
    for program in PROGRAMS:
        times = directory / program.name / "times.json"
        if not times.exists():
            continue
        found = json.loads(times.read_text(encoding="utf-8"))
        # The least time is the least disturbed one.
        slow_ns, fixed_ns = min(found["slow"]), min(found["fixed"])
        others = statistics.median(found["slow"]) - statistics.median(found["fixed"])
        saved_ns = slow_ns - fixed_ns
        gain = Gain(slow_ns, saved_ns, abs(others * slow_ns / max(found["slow"]) - saved_ns) / 2)
        yield _of_host(program, directory / program.name / "slow", gain)
        if program.first:
            yield _of_host(program, directory / program.name / "fixed", None)


def _of_host(program: HostProgram, path: Path, gain: Gain | None) -> CompiledCase:
    share = gain.share if gain is not None and program.first else 0.0
    is_cause = share >= _LEAST_GAIN
    case = Case(
        name=program.name.replace("_", "-") + (", fixed" if gain is None else ""),
        source="recorded",
        split="test",
        first=program.first if is_cause else (),
        still_true=(),
        gain=gain if is_cause else None,
        analyze=lambda: analyze(path),
    )
    kind: Kind = "cause" if program.first else "healthy"
    pair = CompiledPair(program.name, program.module, kind, program.cause, program.first)
    return CompiledCase(case, pair, "", max(share, 0.0))


def _summary(verdicts: Sequence[CompiledVerdict]) -> Iterator[str]:
    causes = [v for v in verdicts if v.subject.is_cause]
    quiet = [v for v in verdicts if not v.subject.is_cause]
    high = sum(any(p.severity == "high" for p in v.promises) for v in quiet)
    more = sum(
        any(p.expected_share > v.subject.gain_share + TOLERANCE for p in v.promises) for v in quiet
    )
    yield "| what | result | target |"
    yield "|---|---|---|"
    yield f"| cause first | {_of([v.verdict.is_cause_first for v in causes])} | ≥ 75 % |"
    yield f"| gain in range | {_of([v.verdict.is_in_range for v in causes])} | ≥ 70 % |"
    yield f"| nothing to fix, traps and fixed programs | {len(quiet)} | |"
    yield f"| of them with a *high* finding | {high} | none |"
    yield f"| of them with too much promised | {more} | none |"


def _programs(verdicts: Sequence[CompiledVerdict]) -> Iterator[str]:
    yield "| program | what limits it | gain | said first | low – **expected** – high |"
    yield "|---|---|---|---|---|"
    for v in verdicts:
        subject, verdict = v.subject, v.verdict
        if not subject.is_cause and not v.promises:
            continue
        cause = subject.pair.cause if subject.is_cause else "nothing"
        gain = f"{100 * subject.gain_share:.0f} %"
        first = f"`{verdict.first}`" if verdict.first else "nothing"
        right = "" if verdict.is_cause_first in (True, None) else " ✗"
        promised = "; ".join(
            f"`{p.rule_id}`, {p.severity}, {100 * p.expected_share:.0f} %" for p in v.promises
        )
        said = _range(verdict) if subject.is_cause else promised
        yield f"| {verdict.case.name} | {cause} | {gain} | {first}{right} | {said} |"


def _range(verdict: Verdict) -> str:
    gain, estimate = verdict.case.gain, verdict.estimate
    if gain is None or estimate is None:
        return "–"
    low, expected, high = (
        100 * bound / gain.slow_ns
        for bound in (estimate.low_ns, estimate.expected_ns, estimate.high_ns)
    )
    return f"{low:.0f} – **{expected:.0f}** – {high:.0f} %{'' if verdict.is_in_range else ' ✗'}"


def _of(answers: Sequence[bool | None]) -> str:
    right = sum(answer is True for answer in answers)
    return f"{right} of {len(answers)} = {100 * right / max(len(answers), 1):.0f} %"


if __name__ == "__main__":
    main()
