"""What the run says about a profile, in words. All outputs use the same ones."""

from __future__ import annotations

from collections.abc import Iterator

from tb_perfadvisor.contract import model
from tb_perfadvisor.training.wording import NO_SLOWER, range_text
from tb_perfadvisor.units import format_duration, format_elapsed, format_share


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
            f"usual variation around them: {range_text(info.varies_ns)}."
        )
    if info.slowdown < -NO_SLOWER:
        return (
            f"{step} per step without the profiler, by the times at which the run logged. "
            f"The recorded steps were shorter: {profiled}."
        )
    if info.slowdown < NO_SLOWER:
        return f"{step} per step without the profiler, and as much with it."
    slower = format_share(info.slowdown)
    return f"{step} per step without the profiler; steps were {slower} slower while recorded."


def _real_saving(info: model.WholeRunInfo) -> Iterator[str]:
    saving = info.saving
    if saving is None or not saving.expected_ns:
        return
    rest = ""
    if saving.rest_ns:
        rest = f", and {format_elapsed(saving.rest_ns)} over the {info.steps_left:,} steps left"
    yield (
        f"All findings together save about {format_duration(saving.expected_ns)} of these "
        f"{format_duration(info.step_ns)}: {format_elapsed(saving.logged_ns)} over "
        f"{_which(info)}{rest}."
    )


def _which(info: model.WholeRunInfo) -> str:
    if info.is_whole:
        steps = info.logged_steps or info.last_step - info.first_step
        return f"the {steps:,} steps logged so far"
    return f"steps {info.first_step:,} to {info.last_step:,}, which are of this kind"


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
