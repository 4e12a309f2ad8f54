"""What scalars say about a run, in words. All outputs use the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

from tb_perfadvisor.contract import model
from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.training.pauses import Delay, Slowdown
from tb_perfadvisor.training.training import Rate, Recording, Training
from tb_perfadvisor.units import NS_PER_S, format_duration, format_elapsed, format_share

_REASONS = {
    "start": "Slow start",
    "restart": "Restart from an earlier step",
    "evaluation": "Evaluation",
    "recording": "Recording a profile",
    "pause": "Pause without a logged reason: a checkpoint, or input that did not arrive",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NO_SLOWER = 0.01
"""Steps that are longer by less than this are as long as usual."""


def sentences_of(info: model.WholeRunInfo) -> list[str]:
    """The step without the profiler, what savings mean in it, and what it costs."""
    return [
        _true_step(info),
        *_real_saving(info),
        *([] if info.cost is None else _cost(info.cost)),
    ]


def _true_step(info: model.WholeRunInfo) -> str:
    step, profiled = format_duration(info.step_ns), format_duration(info.profiled_step_ns)
    if info.slowdown is None:
        return (
            f"The run logged {step} per step around this profile, whose steps take {profiled}: "
            "they are not the same steps, as with gradients accumulated over several batches."
        )
    if info.varies_ns is not None:
        return (
            f"{step} per step without the profiler. The recorded steps took {profiled}, within the "
            f"usual variation around them: {_range(info.varies_ns)}."
        )
    if info.slowdown < -_NO_SLOWER:
        return (
            f"{step} per step without the profiler, by the times at which the run logged. "
            f"The recorded steps were shorter: {profiled}."
        )
    if info.slowdown < _NO_SLOWER:
        return f"{step} per step without the profiler, and as much with it."
    slower = format_share(info.slowdown)
    return f"{step} per step without the profiler; steps were {slower} slower while recorded."


def _real_saving(info: model.WholeRunInfo) -> Iterator[str]:
    saving = info.saving
    if saving is None or not saving.expected_ns:
        return
    steps = info.last_step - info.first_step
    rest = ""
    if saving.rest_ns:
        rest = f", and {format_elapsed(saving.rest_ns)} over the {info.steps_left:,} steps left"
    yield (
        f"All findings together save about {format_duration(saving.expected_ns)} of these "
        f"{format_duration(info.step_ns)}: {format_elapsed(saving.logged_ns)} over "
        f"{steps:,} such steps, as many as the run has logged{rest}."
    )


def _cost(cost: model.CostInfo) -> Iterator[str]:
    devices = f"{cost.devices:,} device{'s' if cost.devices > 1 else ''}"
    saved = f"; the findings save about {money(cost.saved_per_day)} of it"
    yield (
        f"{devices} at {money(cost.price_per_device_hour)} an hour: about {money(cost.per_day)} a "
        f"day{saved if cost.saved_per_day else ''}. The steps logged so far cost "
        f"{money(cost.logged)}."
    )
    if cost.per_million_tokens is not None:
        yield f"A million tokens cost {money(cost.per_million_tokens)}."
    elif cost.per_million_samples is not None:
        yield f"A million samples cost {money(cost.per_million_samples)}."


def money(amount: float | None) -> str:
    """An amount in the currency of the price: `$41`, `$2.50`, `$0.0031`."""
    if amount is None:
        return "unknown"
    if amount >= 99.5:
        return f"${amount:,.0f}"
    return f"${amount:.2f}" if amount >= 0.995 or amount == 0 else f"${amount:.2g}"


def headline_of(training: Training) -> str:
    """The usual step."""
    unit = "epoch" if training.is_per_epoch else "step"
    return f"{format_duration(training.step_ns)} per {unit} without the profiler"


def facts_of(training: Training) -> list[str]:
    """How far the run got, and what it logged itself."""
    unit = "epoch" if training.is_per_epoch else "step"
    facts = [
        f"{unit.capitalize()}s {training.first_step:,} to {training.last_step:,} in "
        f"{format_elapsed(training.elapsed_ns)}, by the times at which {plain(training.tag)} "
        "was logged."
    ]
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


def recording_sentence(recording: Recording, training: Training) -> str:
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
            f"{where}. Its steps take {step}, which is within the usual variation around it: "
            f"{_range(recording.varies_ns)}, median {usual}."
        )
    if recording.slowdown < _NO_SLOWER:
        return f"{where}. Its steps take {step}, no more than usual: {usual}."
    return (
        f"{where}. Its steps take {step} instead of {usual}: "
        f"{format_share(recording.slowdown)} slower while recorded."
    )


def _range(ends_ns: tuple[float, float]) -> str:
    low, high = map(format_duration, ends_ns)
    return f"{low} to {high}"


def delay_label(delay: Delay, *, is_per_epoch: bool) -> str:
    """What cost time, and how regularly; for steps that became slower, where that began."""
    if delay.slowdown is not None:
        return _slower(delay, delay.slowdown, "epoch" if is_per_epoch else "step")
    regular = f", every {delay.every_steps:,} steps" if delay.every_steps else ""
    return _REASONS[delay.reason] + regular


def _slower(delay: Delay, slowdown: Slowdown, unit: str) -> str:
    before, after = (format_duration(ns) for ns in (slowdown.before_ns, slowdown.after_ns))
    if slowdown.is_gradual:
        return (
            f"{unit.capitalize()}s became slower little by little: {before} in the first quarter "
            f"of the run, {after} in the last"
        )
    # Windows refuses timestamps before 1970, which damaged files may have.
    begin = _EPOCH + timedelta(seconds=slowdown.start_unix_ns // NS_PER_S)
    return (
        f"{unit.capitalize()}s became slower after {unit} {delay.first_step:,} "
        f"({begin:%Y-%m-%d %H:%M} UTC): {after} instead of {before}"
    )
