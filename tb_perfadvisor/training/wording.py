"""A run's speed in words. All outputs use the same ones."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.training.pauses import Delay, Regime, Slowdown
from tb_perfadvisor.training.training import ProfileInRun, Rate, Training
from tb_perfadvisor.units import NS_PER_S, format_duration, format_elapsed, format_share

_REASONS = {
    "start": "Slow start",
    "restart": "Restart from an earlier step",
    "evaluation": "Evaluation",
    "recording": "Recording a profile",
    "pause": "Pause without a logged reason: a checkpoint, or input that did not arrive",
}
_STORIES = {
    "start": "The run started slowly",
    "restart": "The run restarted from an earlier step",
    "evaluation": "Evaluation",
    "recording": "Recording profiles",
    "pause": "Pauses without a logged reason",
}
_ONCE = {
    "recording": "Recording a profile",
    "pause": "A pause without a logged reason",
}
"""The reasons as the beginning of a headline."""
_STORY = 0.1
"""Of the run. What costs less is no headline."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
NO_SLOWER = 0.01
"""Steps that are longer by less than this are as long as usual."""


def headline_of(training: Training) -> str:
    """What cost the run most, if that is worth a headline; otherwise the usual step."""
    delay = training.delays[0] if training.delays else None
    share = delay.cost_ns / training.elapsed_ns if delay and training.elapsed_ns else 0.0
    if delay is not None and share >= _STORY:
        return f"{_story_of(delay, training)}: {format_share(share)} of the run"
    if len(training.regimes) > 1:
        before, after = training.regimes[-2:]
        return _changed(before, after, _unit(training))
    return _usual_step(training)


def _unit(training: Training) -> str:
    return "epoch" if training.is_per_epoch else "step"


def _story_of(delay: Delay, training: Training) -> str:
    unit = _unit(training)
    slowdown = delay.slowdown
    if slowdown is None:
        stories = _STORIES | _ONCE if delay.count == 1 else _STORIES
        return stories[delay.reason] + _regularity(delay)
    if slowdown.is_gradual:
        return f"{unit.capitalize()}s became slower little by little, {_from_to(slowdown)}"
    before, after = format_duration(slowdown.before_ns), format_duration(slowdown.after_ns)
    return f"After {unit} {delay.first_step:,}, {unit}s take {after} instead of {before}"


def _changed(before: Regime, after: Regime, unit: str) -> str:
    was, now = format_duration(before.step_ns), format_duration(after.step_ns)
    return f"After {unit} {after.first_step:,}, {unit}s take {now} instead of {was}"


def _usual_step(training: Training) -> str:
    step = format_duration(training.regimes[0].step_ns)
    return f"{step} per {_unit(training)} without the profiler"


def facts_of(training: Training) -> list[str]:
    """Its steps, how far the run got, and what it logged itself."""
    unit = _unit(training)
    facts = []
    if len(training.regimes) > 1:
        parts = ", ".join(
            f"{format_duration(regime.step_ns)} from {regime.first_step:,} to {regime.last_step:,}"
            for regime in training.regimes
        )
        facts.append(f"Time per {unit} without the profiler: {parts}.")
    elif headline_of(training) != _usual_step(training):
        facts.append(f"{_usual_step(training)}.")
    facts.append(
        f"{unit.capitalize()}s {training.first_step:,} to {training.last_step:,} in "
        f"{format_elapsed(training.elapsed_ns)}, by the times at which {plain(training.tag)} "
        "was logged."
    )
    if training.logged_step is not None:
        facts.append(
            f"The run itself logged {format_duration(training.logged_step.median_ns)} per step "
            f"({plain(training.logged_step.tag)})."
        )
    for what, rate in (("samples", training.samples), ("tokens", training.tokens)):
        if rate is not None:
            facts.append(_of_rate(what, rate))
    return facts


def _of_rate(what: str, rate: Rate) -> str:
    scope = {True: " per device", False: " on all devices", None: ""}[rate.per_device]
    return f"{rate.per_second:,.4g} {what} per second{scope} ({plain(rate.tag)})."


def recording_sentence(recording: ProfileInRun, training: Training) -> str:
    """When a profile was recorded, and what that cost."""
    unit = "epoch" if training.is_per_epoch else "step"
    where = (
        "Recorded while nothing was logged"
        if recording.first_step is None
        else f"Recorded after {unit} {recording.first_step:,}"
    )
    if recording.profiled_step_ns is None or recording.step_ns is None:
        return f"{where}."
    step, usual = format_duration(recording.profiled_step_ns), format_duration(recording.step_ns)
    if recording.slowdown is None:
        return f"{where}. Its steps of {step} are not those that take {usual}."
    if recording.varies_ns is not None:
        return (
            f"{where}. Its median step takes {step}, within the usual variation around it: "
            f"{range_text(recording.varies_ns)}, median {usual}."
        )
    if recording.slowdown < NO_SLOWER:
        return f"{where}. Its median step takes {step}, no more than usual: {usual}."
    return (
        f"{where}. Its median step takes {step} instead of {usual}: "
        f"{format_share(recording.slowdown)} slower while recorded."
    )


def delay_label(delay: Delay, *, is_per_epoch: bool) -> str:
    """What cost time, and how regularly; for steps that became slower, where that began."""
    if delay.slowdown is not None:
        return _slower(delay, delay.slowdown, "epoch" if is_per_epoch else "step")
    return _REASONS[delay.reason] + _regularity(delay)


def _regularity(delay: Delay) -> str:
    return f", every {delay.every_steps:,} steps" if delay.every_steps else ""


def _slower(delay: Delay, slowdown: Slowdown, unit: str) -> str:
    before, after = (format_duration(ns) for ns in (slowdown.before_ns, slowdown.after_ns))
    if slowdown.is_gradual:
        return f"{unit.capitalize()}s became slower little by little, {_from_to(slowdown)}"
    # Windows refuses timestamps before 1970, which damaged files may have.
    begin = _EPOCH + timedelta(seconds=slowdown.start_unix_ns // NS_PER_S)
    return (
        f"{unit.capitalize()}s became slower after {unit} {delay.first_step:,} "
        f"({begin:%Y-%m-%d %H:%M} UTC): {after} instead of {before}"
    )


def _from_to(slowdown: Slowdown) -> str:
    before, after = (format_duration(ns) for ns in (slowdown.before_ns, slowdown.after_ns))
    return f"from {before} in the first quarter to {after} in the last"


def range_text(ends_ns: tuple[float, float]) -> str:
    """Two durations: `98.1 ms to 103 ms`."""
    low, high = map(format_duration, ends_ns)
    return f"{low} to {high}"
