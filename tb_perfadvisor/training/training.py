"""What the scalars of a run say about its speed: the whole run, where a profile shows a moment."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

import numpy as np
from msgspec import Struct

from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.training.metrics import Kind, Metric, RunScalars, ScalarSeries, find_metrics
from tb_perfadvisor.training.pauses import (
    Delay,
    Regime,
    Slowdown,
    find_delays,
    find_regimes,
    is_usual_interval,
    usual_steps_around,
)
from tb_perfadvisor.training.progress import Progress, find_progress, overlaps
from tb_perfadvisor.units import NS_PER_S, format_duration, format_elapsed, format_share


class RunOptions(Struct, frozen=True):
    """Facts about a run that the user gave."""

    price_per_device_hour: float | None = None
    """In any currency."""
    total_steps: int | None = None
    """The step at which the run will end."""


_NS_PER = {"s": 1e9, "ms": 1e6}
_SAME_STEPS = (0.7, 4.0)
"""Steps of a profile relative to those that were logged. Shorter ones are parts of them, as with
gradients that are accumulated over several batches; no profiler makes steps five times as long."""


class Rate(Struct, frozen=True):
    """A throughput that the run logged itself."""

    tag: str
    per_second: float
    """Median."""
    per_device: bool | None
    """None if the tag leaves it open."""


class StepTime(Struct, frozen=True):
    """A step time that the run logged itself."""

    tag: str
    median_ns: float


class ProfileInRun(Struct, frozen=True):
    """A profile of the run, beside the steps around it."""

    capture_id: str
    session: str
    start_ns: int
    """Unix time."""
    end_ns: int
    first_step: int | None
    """The step before which the interval with the recording began; None if the run logged nothing
    around it."""
    profiled_step_ns: float | None
    """Median time per step in the profile; None without steps."""
    step_ns: float | None
    """Usual time per step shortly before and after, without the profiler; None if the run logged
    nothing around it, or only epochs."""
    slowdown: float | None
    """How much slower the steps were while recorded: 0.2 is 20 %. None if either time is unknown,
    or if they cannot be of the same steps."""
    varies_ns: tuple[float, float] | None
    """The range of nine of ten intervals around the recording, if the profile's steps lie in it:
    recording them made no difference that can be told from their variation."""
    regime: int
    """The part of the run that it was recorded in, an index of `Training.regimes`."""


class Training(Struct, frozen=True):
    """The speed of a run over its life. Times per step are medians."""

    tag: str
    """The tag whose times were used."""
    is_per_epoch: bool
    """Whether a "step" is an epoch here, because nothing was logged more often."""
    first_step: int
    last_step: int
    intervals: int
    start_ns: int
    """Unix time of the first logged step."""
    elapsed_ns: int
    regimes: tuple[Regime, ...]
    """Parts of equal pace, in order of time; one unless steps became slower or faster."""
    logged_step: StepTime | None
    samples: Rate | None
    tokens: Rate | None
    delays: tuple[Delay, ...]
    recordings: tuple[ProfileInRun, ...]


class Profile(Struct, frozen=True):
    """When a profile was recorded, and how long its steps took."""

    session: str
    start_ns: int
    """Unix time."""
    end_ns: int
    step_ns: float | None
    """Median."""
    capture_id: str = ""


def describe_training(scalars: RunScalars, profiles: Sequence[Profile] = ()) -> Training | None:
    """The speed of a run; None if it logged nothing from which that follows."""
    progress = find_progress(scalars.series)
    if progress is None:
        return None
    spans = [(profile.start_ns, profile.end_ns) for profile in profiles]
    regimes = find_regimes(progress, is_usual_interval(progress))
    metrics = find_metrics(scalars.series)
    return Training(
        tag=progress.tag,
        is_per_epoch=progress.is_per_epoch,
        first_step=int(progress.first_step.min()),
        last_step=int((progress.first_step + progress.steps).max()),
        intervals=len(progress),
        start_ns=int(progress.start_ns[0]),
        elapsed_ns=int(progress.end_ns[-1] - progress.start_ns[0]),
        regimes=regimes,
        logged_step=_logged_step(scalars, metrics),
        samples=_rate(scalars, metrics, "samples-per-second"),
        tokens=_rate(scalars, metrics, "tokens-per-second"),
        delays=find_delays(progress, scalars.series, spans),
        recordings=tuple(_recording(progress, regimes, profile) for profile in profiles),
    )


def _logged_step(scalars: RunScalars, metrics: dict[Kind, tuple[str, Metric]]) -> StepTime | None:
    if "step-time" in metrics:
        tag, metric = metrics["step-time"]
        median = _median(scalars.series[tag])
        return None if median is None else StepTime(tag, median * _NS_PER[metric.unit])
    if "steps-per-second" in metrics:
        tag, _ = metrics["steps-per-second"]
        median = _median(scalars.series[tag])
        return None if median is None else StepTime(tag, 1e9 / median)
    return None


def _rate(scalars: RunScalars, metrics: dict[Kind, tuple[str, Metric]], kind: Kind) -> Rate | None:
    if kind not in metrics:
        return None
    tag, metric = metrics[kind]
    median = _median(scalars.series[tag])
    per_device = None if metric.devices is None else metric.devices == "one"
    return None if median is None else Rate(tag, median, per_device)


def _median(series: ScalarSeries) -> float | None:
    """The median of the positive numbers; None without any."""
    values = series.value[np.isfinite(series.value) & (series.value > 0)]
    return float(np.median(values)) if len(values) else None


def _recording(progress: Progress, regimes: Sequence[Regime], profile: Profile) -> ProfileInRun:
    around = np.flatnonzero(overlaps(progress, profile.start_ns, profile.end_ns))
    usual, slowdown, varies_ns = None, None, None
    if not progress.is_per_epoch:
        usual = usual_steps_around(progress, profile.start_ns, profile.end_ns)
    if usual is not None and usual.median_ns > 0 and profile.step_ns is not None:
        ratio = profile.step_ns / usual.median_ns
        slowdown = ratio - 1 if _SAME_STEPS[0] <= ratio <= _SAME_STEPS[1] else None
        if slowdown is not None and usual.low_ns < profile.step_ns < usual.high_ns:
            varies_ns = usual.low_ns, usual.high_ns
    return ProfileInRun(
        capture_id=profile.capture_id,
        session=profile.session,
        start_ns=profile.start_ns,
        end_ns=profile.end_ns,
        first_step=int(progress.first_step[around[0]]) if len(around) else None,
        profiled_step_ns=profile.step_ns,
        step_ns=None if usual is None else usual.median_ns,
        slowdown=slowdown,
        varies_ns=varies_ns,
        regime=sum(regime.start_ns <= profile.start_ns for regime in regimes[1:]),
    )


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
