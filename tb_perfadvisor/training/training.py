"""What the scalars of a run say about its speed: the whole run, where a profile shows a moment."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from tb_perfadvisor.training.metrics import Kind, Metric, RunScalars, ScalarSeries, find_metrics
from tb_perfadvisor.training.pauses import (
    Delay,
    Regime,
    find_delays,
    find_regimes,
    is_usual_interval,
    usual_steps_around,
)
from tb_perfadvisor.training.progress import Progress, find_progress, overlaps


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
