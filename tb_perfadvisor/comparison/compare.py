"""Compares runs with a base: whether they are faster, by how much, and where the time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log

from msgspec.structs import replace

from tb_perfadvisor.comparison.differences import (
    StepCounts,
    differences,
    incomparable,
    module_changes,
    operation_changes,
    ratio_as_printed,
)
from tb_perfadvisor.comparison.finding_changes import (
    explanation,
    finding_changes,
    outcome_of,
    summary_of,
)
from tb_perfadvisor.comparison.interval import (
    CONFIDENCE,
    NOISE_SHARE,
    blocks_of,
    is_certain,
    period_of,
    ratio_interval,
)
from tb_perfadvisor.comparison.logged import (
    device_count,
    find_scaling,
    scaling_course,
    scaling_explanation,
    scaling_headline,
)
from tb_perfadvisor.comparison.memory_changes import (
    memory_changes,
    memory_growth,
    memory_headline,
)
from tb_perfadvisor.comparison.run_facts import RunFacts, of_first_steps
from tb_perfadvisor.contract import model
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.units import format_duration

_STRIKING = 0.05
"""The change of a step that a reader would ask about even if it may be chance."""


def compare_facts(base: RunFacts, targets: Sequence[RunFacts]) -> model.Comparison:
    """Compare runs with a base."""
    compared = [_compare_two(base, target) for target in targets]
    return model.Comparison(
        base=as_run(base), targets=compared, scaling_course=scaling_course(compared)
    )


def split_per_step(totals_ns: Mapping[str, int], count: int) -> dict[str, int]:
    """Split totals into means per step, in whole nanoseconds that sum exactly to the total mean.

    Each mean is rounded down, and the nanoseconds left over go to the largest remainders, so no
    mean is off by a nanosecond or more.

    `totals_ns` are sums over the steps.
    """
    parts = {name: divmod(total, count) for name, total in totals_ns.items()}
    means = {name: whole for name, (whole, _) in parts.items()}
    left = round(sum(totals_ns.values()) / count) - sum(means.values())
    by_remainder = sorted(parts, key=lambda name: (-parts[name][1], name))
    for name in by_remainder[:left]:
        means[name] += 1
    return means


def is_regression(target: model.ComparedTarget, most_share: float) -> bool | None:
    """Whether the mean step is slower than the base's by more than a share of it.

    Less than the noise of any two recordings counts as that noise. None if the recordings do not
    tell: without steps, in runs that are not comparable, or if the interval contains the limit.
    """
    low, high = target.change.low_share, target.change.high_share
    if target.verdict not in ("faster", "slower", "inconclusive") or low is None or high is None:
        return None
    limit = max(most_share, NOISE_SHARE)
    if low > limit:
        return True
    return None if high > limit else False


def _compare_two(base: RunFacts, target: RunFacts) -> model.ComparedTarget:
    # If one has no steps, compare whole recordings: a step and a recording are not comparable.
    has_steps = bool(base.steps and target.steps)
    counts = StepCounts(base.steps, target.steps) if has_steps else StepCounts(1, 1)
    periods = period_of(base.step_ns), period_of(target.step_ns)
    base_times, target_times = (
        of_first_steps(facts, facts.steps // period * period) if has_steps else facts
        for facts, period in zip((base, target), periods, strict=True)
    )
    before, after = (
        split_per_step(facts.causes, facts.steps if has_steps else 1)
        for facts in (base_times, target_times)
    )
    change = _change(base_times, target_times, periods, before, after, has_steps)
    causes = _causes(before, after, _certain_causes(base_times, target_times, periods))
    compared = model.ComparedTarget(
        run=as_run(target),
        verdict="no_steps",
        headline="",
        per="step" if has_steps else "window",
        change=change if has_steps else _without_speed(change),
        causes=causes,
        findings=[],
        kernels=None,
        operators=None,
        warnings=differences(base, target),
    )
    if (obstacle := incomparable(base, target)) is not None:
        return replace(
            compared,
            verdict="not_comparable",
            causes=[],
            headline=f"Not comparable: {obstacle}",
            change=_without_speed(change),
        )
    compared = replace(compared, memory=memory_changes(base.memory, target.memory))
    if (
        compared.memory is not None
        and base.memory is not None
        and target.memory is not None
        and base.memory.is_alone
        and target.memory.is_alone
    ):
        return replace(
            compared,
            verdict="memory",
            headline=memory_headline(compared.memory),
            explanation=memory_growth(base.memory, target.memory),
            warnings=[warning for warning in compared.warnings if warning.id != "no-steps"],
            findings=_findings(base, target, counts, "memory", []),
        )
    scaling = find_scaling(base, target, change, causes) if has_steps else None
    if scaling is not None:
        verdict: model.Verdict = "scaled"
        headline, reason = scaling_headline(scaling), scaling_explanation(scaling)
    else:
        verdict = _verdict(change) if has_steps else "no_steps"
        headline = _headline(verdict, change, base, target)
        reason = explanation(verdict, change, causes)
    return replace(
        compared,
        verdict=verdict,
        scaling=scaling,
        warnings=_warnings(compared.warnings, scaling),
        headline=headline,
        explanation=reason,
        findings=_findings(base, target, counts, verdict, causes),
        kernels=operation_changes(base.kernels, target.kernels, counts, change.base_ns),
        operators=operation_changes(base.operators, target.operators, counts, change.base_ns),
        modules=module_changes(
            base_times, target_times, periods if has_steps else None, change.base_ns
        ),
    )


def _findings(
    base: RunFacts,
    target: RunFacts,
    counts: StepCounts,
    verdict: model.Verdict,
    causes: Sequence[model.CauseChange],
) -> list[model.FindingChange]:
    change_ns = {cause.cause: cause.change_ns for cause in causes}
    changes = finding_changes(base, target, counts, change_ns)
    return [
        replace(change, outcome=outcome_of(change, verdict), summary=summary_of(change, verdict))
        for change in changes
    ]


def _without_speed(change: model.TimeChange) -> model.TimeChange:
    """Without what only comparable steps can say."""
    return replace(
        change, speed_up=None, low_ns=None, high_ns=None, low_share=None, high_share=None
    )


def _warnings(
    warnings: list[model.Difference], scaling: model.Scaling | None
) -> list[model.Difference]:
    """Without those that the scaling takes into account."""
    if scaling is None:
        return warnings
    known = ("ranks-differ", "devices-differ", "batch-differs")
    return [warning for warning in warnings if warning.id not in known]


def _change(
    base: RunFacts,
    target: RunFacts,
    periods: tuple[int, int],
    before: Mapping[str, int],
    after: Mapping[str, int],
    has_steps: bool,
) -> model.TimeChange:
    base_ns, target_ns = sum(before.values()), sum(after.values())
    sides = zip((base, target), periods, strict=True)
    blocks = (blocks_of(facts.step_ns, period) for facts, period in sides)
    low, high = (ratio_interval(*blocks) if has_steps else None) or (None, None)
    change_ns = target_ns - base_ns
    return model.TimeChange(
        base_ns=base_ns,
        target_ns=target_ns,
        change_ns=change_ns,
        change_share=change_ns / base_ns if base_ns else None,
        speed_up=ratio_as_printed(base_ns, target_ns) if has_steps else None,
        confidence=CONFIDENCE,
        low_ns=None if low is None else round(low * base_ns),
        high_ns=None if high is None else round(high * base_ns),
        low_share=low,
        high_share=high,
    )


def _certain_causes(base: RunFacts, target: RunFacts, periods: tuple[int, int]) -> frozenset[str]:
    """The causes that changed by more than chance explains."""
    if not (base.cause_step_ns and target.cause_step_ns):
        return frozenset()
    nothing = [0] * base.steps, [0] * target.steps
    return frozenset(
        cause
        for cause in {*base.cause_step_ns, *target.cause_step_ns}
        if is_certain(
            blocks_of(base.cause_step_ns.get(cause, nothing[0]), periods[0]),
            blocks_of(target.cause_step_ns.get(cause, nothing[1]), periods[1]),
        )
    )


def _verdict(change: model.TimeChange) -> model.Verdict:
    """Faster or slower only if the whole interval lies beyond the noise."""
    if change.low_share is None or change.high_share is None:
        return "inconclusive"
    if change.high_share < -NOISE_SHARE:
        return "faster"
    return "slower" if change.low_share > NOISE_SHARE else "inconclusive"


def _causes(
    before: Mapping[str, int], after: Mapping[str, int], certain: frozenset[str]
) -> list[model.CauseChange]:
    causes = [
        model.CauseChange(
            cause=cause.value,
            label=cause.label,
            base_ns=before.get(cause.value, 0),
            target_ns=after.get(cause.value, 0),
            change_ns=after.get(cause.value, 0) - before.get(cause.value, 0),
            is_certain=cause.value in certain,
        )
        for cause in Cause
        if cause.value in before or cause.value in after
    ]
    return sorted(causes, key=lambda cause: (-abs(cause.change_ns), -cause.base_ns))


def _headline(
    verdict: model.Verdict, change: model.TimeChange, base: RunFacts, target: RunFacts
) -> str:
    was, now = format_duration(change.base_ns), format_duration(change.target_ns)
    if verdict == "no_steps":
        return f"No verdict: {now} were recorded instead of {was}, without steps to compare"
    steps = f"a step takes {now} instead of {was}"
    if change.speed_up is None:
        return f"No clear change: {steps}"
    ratio = change.speed_up
    times = f"{ratio:.2f} times as fast" if ratio > 1 else f"{1 / ratio:.2f} times as long"
    if verdict in ("faster", "slower"):
        return f"{times}: {steps}"
    if change.low_ns is None:
        side = "base" if base.steps == 1 else "target"
        return f"No verdict: {steps}, but a single step of the {side} proves nothing"
    if abs(log(ratio)) > _STRIKING:
        return f"Perhaps {times}: {steps}, but the steps vary too much to be sure"
    return f"No clear change: {steps}"


def as_run(facts: RunFacts) -> model.ComparedRun:
    """The row of a run in the table of runs."""
    return model.ComparedRun(
        id=facts.id,
        name=facts.name,
        session=facts.session,
        framework=facts.setup.framework,
        device=facts.setup.device,
        is_synthetic=facts.is_synthetic,
        world_size=facts.setup.world_size,
        devices=device_count(facts.setup),
        steps=facts.steps,
        step_time_ns=facts.step_time_ns,
        window_ns=facts.window_ns,
        batch=facts.setup.batch,
        tokens_per_s=facts.tokens_per_s,
        samples_per_s=facts.samples_per_s,
        mfu=facts.mfu,
        device_compute_share=facts.device_compute_share,
        device_busy_share=facts.device_busy_share,
        sixteen_bit_share=facts.sixteen_bit_share,
        input_wait_share=facts.input_wait_share,
        exposed_communication_share=facts.exposed_communication_share,
        between_steps_share=facts.between_steps_share,
        peak_allocated_bytes=facts.peak_allocated_bytes,
        findings=len(facts.findings),
    )
