"""What trials showed, in words."""

from __future__ import annotations

from tb_perfadvisor.proof.results import (
    MARGIN,
    effect_text,
    percent,
    span,
)
from tb_perfadvisor.proof.session import Candidate
from tb_perfadvisor.proof.trial import Trial
from tb_perfadvisor.units import format_duration

_NOTABLE_START_UP_S = 1.0
_NOTABLE_LOAD = 0.1
_MOST_SHOWN = 10.0
"""Times as long; beyond that the runs say nothing."""


def verdict_line(candidate: Candidate, trial: Trial) -> str:
    """What a change brought, in one line."""
    return f"{candidate.name}: {_verdict(trial)}"


def _verdict(trial: Trial) -> str:
    if trial.verdict in ("refused", "failed"):
        return f"{trial.verdict}: {trial.reason}"
    effect = trial.effect
    if trial.verdict == "no difference" and effect is not None:
        return f"no difference within {percent(MARGIN)}: {effect_text(effect)}"
    if trial.verdict == "undecided":
        if effect is None or -effect.low > _MOST_SHOWN:
            return f"undecided: {trial.reason} after {_pairs(trial.pairs)}"
        return f"undecided: {trial.reason} at {effect_text(effect)}"
    return effect_text(effect) if effect is not None else trial.verdict


def detail_lines(candidate: Candidate, trial: Trial) -> list[str]:
    """What was predicted, and what the verdict rests on."""
    lines = []
    if candidate.predicted is not None:
        saved = span(candidate.predicted.low, candidate.predicted.high)
        lines.append(f"predicted: steps take {saved} less time")
    if trial.verdict not in ("refused", "failed"):
        lines.append(f"results: {trial.results.text}")
    if trial.results.advice:
        lines.append(f"to compare them: {trial.results.advice}")
    if trial.base_step_ns is not None and trial.step_ns is not None:
        lines.append(
            f"step {format_duration(trial.base_step_ns)} → {format_duration(trial.step_ns)}, "
            f"{_pairs(trial.pairs)} of {trial.steps_per_run} steps each"
            + (", in turns" if trial.in_turns else "")
            + (f", {trial.repeated} more repeated" if trial.repeated else "")
        )
    if trial.load is None:
        lines.append("load by other programs: not measured here")
    elif trial.load >= _NOTABLE_LOAD:
        lines.append(f"other programs used {percent(trial.load)} of the cores meanwhile")
    if trial.base_start_up_s is not None and trial.start_up_s is not None:
        more = trial.start_up_s - trial.base_start_up_s
        if abs(more) >= _NOTABLE_START_UP_S:
            lines.append(
                f"start-up and warm-up: {trial.base_start_up_s:.1f} s → {trial.start_up_s:.1f} s"
            )
    lines.append(
        f"equal per step: {', '.join(trial.counted)}"
        if trial.counted
        else "work per step: nothing could be counted"
    )
    return lines


def _pairs(count: int) -> str:
    return f"{count} pair{'' if count == 1 else 's'} of runs"
