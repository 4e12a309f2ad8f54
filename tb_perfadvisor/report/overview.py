"""The key numbers of the reference worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tb_perfadvisor.contract import model
from tb_perfadvisor.ingest.kernels.kernel_names import stored_bits
from tb_perfadvisor.signals import Cause, Signals
from tb_perfadvisor.signals.core.causes import BUSY, COMPUTE
from tb_perfadvisor.signals.core.steps.server_annotations import StepKind
from tb_perfadvisor.signals.core.steps.steps import Steps
from tb_perfadvisor.signals.core.steps.windows import Side
from tb_perfadvisor.signals.device.memory_use import memory_use, program_memory
from tb_perfadvisor.signals.efficiency.costliest_work import costliest_work
from tb_perfadvisor.signals.efficiency.utilization import throughput, utilization
from tb_perfadvisor.signals.ranks.parallel_dimensions import next_doubling
from tb_perfadvisor.signals.recording.availability import (
    shows_communication,
    shows_copies,
    shows_host_events,
    shows_input,
)
from tb_perfadvisor.signals.recording.completeness import knows_device_time
from tb_perfadvisor.signals.serving.decode import decode_floor
from tb_perfadvisor.signals.serving.server_steps import generated_per_s, server_steps
from tb_perfadvisor.signals.snapshots.course import memory_course, snapshot_capacity_bytes
from tb_perfadvisor.trace import KernelTotal, Precision
from tb_perfadvisor.trace.integer_groups import quantile
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.units import NS_PER_S

MAX_KERNELS = 20
_WIDTHS = {
    "8": Precision.BITS_8,
    "16": Precision.BITS_16,
    "32": Precision.BITS_32,
    "64": Precision.BITS_64,
    "unknown": Precision.UNKNOWN,
}


def make_overview(signals: Signals) -> model.Overview:
    """The overview of one worker."""
    attribution, steps = signals.attribution, signals.steps
    on_device = signals.device.index is not None
    knows_device = on_device and knows_device_time(signals)
    shares = signals.compute_shares
    kernels = signals.kernels if on_device else ()
    kernel_ns = sum(kernel.total_ns for kernel in kernels)
    has_input = shows_input(signals)
    knows_operators = shows_host_events(signals) or signals.trace.totals is not None
    placement = signals.placement if on_device and knows_operators else None
    use, flow = utilization(signals), throughput(signals)
    return model.Overview(
        window_ns=attribution.window_ns,
        steps=len(steps),
        step_time_ns=round(attribution.window_ns / len(steps)) if len(steps) else None,
        breakdown=[
            model.BreakdownPart(
                cause=cause.value,
                label=cause.label,
                total_ns=attribution.total_ns(cause),
                share=attribution.share(cause) or 0.0,
            )
            for cause in Cause
            if len(attribution.intervals[cause])
        ],
        device_compute_share=attribution.share(*COMPUTE) if knows_device else None,
        device_busy_share=attribution.share(*BUSY) if knows_device else None,
        device_busy_share_of_span=_busy_share_of_span(signals) if knows_device else None,
        operators=model.OperatorPlacement(
            device_share_by_time=placement.share_by_time if placement else None,
            device_share_by_count=placement.share_by_count if placement else None,
        ),
        precision=(
            {name: shares[width] for name, width in _WIDTHS.items()} if shares is not None else None
        ),
        storage=_storage(kernels),
        input_wait_share=attribution.share(Cause.INPUT) if has_input else None,
        exposed_communication_share=(
            attribution.share(Cause.COMMUNICATION) if shows_communication(signals) else None
        ),
        exposed_copy_share=(
            attribution.share(Cause.COPIES) if on_device and shows_copies(signals) else None
        ),
        between_steps_share=(
            attribution.share(Cause.BETWEEN_STEPS) if signals.shows_step_ends else None
        ),
        mfu=use.mfu,
        hfu=use.hfu,
        flop=model.FlopInfo(
            model_per_step=use.model_flop,
            executed_per_step=use.executed_flop,
            peak_flop_per_s=use.peak_flop_per_s,
            devices=use.devices,
            unknown_because=f"{use.reason} {use.remedy}".strip(),
            unknown_in_short=use.reason_in_short,
        ),
        kernels=[
            model.KernelSummary(
                name=kernel.name,
                family=kernel.family,
                count=kernel.count,
                total_ns=kernel.total_ns,
                share=kernel.total_ns / kernel_ns if kernel_ns else 0.0,
            )
            for kernel in kernels[:MAX_KERNELS]
        ],
        kernels_truncated=max(len(kernels) - MAX_KERNELS, 0),
        memory=_memory(signals),
        host_memory=_host_memory(signals),
        program_memory=_program_memory(signals),
        costliest=_costliest(signals),
        samples_per_step=flow.samples_per_step,
        samples_per_s=_per_second(flow.samples_per_step, signals),
        tokens_per_step=flow.tokens_per_step,
        tokens_per_s=_per_second(flow.tokens_per_step, signals),
        throughput_source=flow.source,
        serving=_serving(signals),
        next_doubling=_next_doubling(signals),
    )


def _next_doubling(signals: Signals) -> model.NextDoublingInfo | None:
    found, steps = next_doubling(signals), len(signals.steps)
    if found is None or not steps:
        return None
    window_ns = signals.attribution.window_ns
    low, high = found.efficiency(window_ns)
    return model.NextDoublingInfo(
        ranks=signals.trace.source.world_size or len(signals.run.traces),
        low_step_ns=round((window_ns + found.low_ns) / steps),
        high_step_ns=round((window_ns + found.high_ns) / steps),
        low_efficiency=low,
        high_efficiency=high,
        assumptions=list(found.assumptions),
    )


def _serving(signals: Signals) -> model.ServingInfo | None:
    steps = server_steps(signals)
    if steps is None or not (decodes := steps.is_kind(StepKind.DECODE)).any():
        return None
    requests, period_ns = steps.decode_requests[decodes], steps.period_ns[decodes]
    floor = decode_floor(signals)
    return model.ServingInfo(
        decode_steps=int(decodes.sum()),
        decode_requests=float(requests.mean()) if (requests >= 0).all() else None,
        decode_step_ns=round(float(period_ns.mean())) if steps.is_periodic else None,
        decode_device_ns=round(float(steps.device_ns[decodes].mean())),
        decode_floor_ns=None if floor is None else floor.floor_ns,
        generated_per_s=generated_per_s(steps),
    )


def _per_second(amount_per_step: float | None, signals: Signals) -> float | None:
    """What a step processes, per second; None without steps."""
    steps, window_ns = len(signals.steps), signals.attribution.window_ns
    if amount_per_step is None or not steps or not window_ns:
        return None
    return amount_per_step * steps * NS_PER_S / window_ns


def _storage(kernels: Sequence[KernelTotal]) -> dict[str, float]:
    """Shares of kernel time by the bits in which weights are stored, if fewer than multiplied."""
    total_ns = dict.fromkeys((4, 8), 0)
    for kernel in kernels:
        if (bits := stored_bits(kernel.name)) in total_ns:
            total_ns[bits] += kernel.total_ns
    kernel_ns = sum(kernel.total_ns for kernel in kernels)
    return {str(bits): ns / kernel_ns for bits, ns in total_ns.items() if ns}


def _busy_share_of_span(signals: Signals) -> float | None:
    """Share of the time between the first and the last device event of the used window."""
    if signals.trace.totals is not None:  # totals have no order
        return None
    busy = signals.attribution.of(*BUSY)
    return total_ns(busy) / int(busy[-1, 1] - busy[0, 0]) if len(busy) else None


def make_steps_info(signals: Signals) -> model.StepsInfo:
    """The steps of one worker."""
    steps = signals.steps
    duration = steps.duration_ns
    known = len(steps) > 0
    return model.StepsInfo(
        source=steps.source,
        is_inferred=steps.is_inferred,
        used=len(steps),
        excluded=[
            model.ExcludedStep(index=step.number, reason=step.reason) for step in steps.excluded
        ],
        window_ns=steps.window_ns,
        mean_ns=round(steps.window_ns / len(steps)) if known else None,
        median_ns=round(float(np.median(duration))) if known else None,
        min_ns=int(duration.min()) if known else None,
        max_ns=int(duration.max()) if known else None,
        p90_ns=round(quantile(duration, 0.9)) if known else None,
        decided_by="device" if steps.decided_by is Side.DEVICE else "host",
        host_ns=round(steps.pace.host_ns) if known and steps.is_linked else None,
        device_ns=round(steps.pace.device_ns) if known and steps.is_linked else None,
        **_kinds(steps),
    )


def _kinds(steps: Steps) -> dict[str, Any]:
    """The kinds of the used steps, and their cycle."""
    if len(steps.kind_names) < 2:
        return {}
    kinds, cycle_ns = [], 0.0
    for index, name in enumerate(steps.kind_names):
        duration_ns = steps.duration_ns[steps.kind == index]
        if not len(duration_ns):
            return {}
        mean_ns = float(duration_ns.mean())
        cycle_ns += mean_ns * (steps.period - 1 if index == 0 else 1)
        kinds.append(
            model.StepKindInfo(
                name=name,
                used=len(duration_ns),
                mean_ns=round(mean_ns),
                median_ns=round(float(np.median(duration_ns))),
            )
        )
    if not steps.period:
        return {"kinds": kinds}
    return {"kinds": kinds, "cycle_steps": steps.period, "cycle_ns": round(cycle_ns)}


def _costliest(signals: Signals) -> list[model.CostlyWork]:
    return [
        model.CostlyWork(
            name=work.name,
            is_idle=work.is_idle,
            place=work.place,
            count=work.count,
            time_ns=work.time_ns,
            share=work.time_ns / signals.attribution.window_ns,
            achieved_share=work.achieved_share,
        )
        for work in costliest_work(signals)
    ]


def _host_memory(signals: Signals) -> model.HostMemoryInfo | None:
    use = memory_use(signals) if signals.device.is_host_only else None
    if use is None:
        return None
    return model.HostMemoryInfo(
        peak_allocated_bytes=int(use.allocated_bytes[use.peak]), is_relative=not use.has_totals
    )


def _program_memory(signals: Signals) -> model.ProgramMemoryInfo | None:
    use = program_memory(signals)
    if use is None:
        return None
    return model.ProgramMemoryInfo(
        module=use.module,
        total_bytes=use.total_bytes,
        parts=[model.MemoryPartInfo(label=part.label, bytes=part.bytes) for part in use.parts],
    )


def _memory(signals: Signals) -> model.MemoryInfo | None:
    memory, course = signals.memory, memory_course(signals)
    if memory is None and course is not None:
        return model.MemoryInfo(
            peak_allocated_bytes=course.peak_allocated_bytes,
            peak_reserved_bytes=course.peak_reserved_bytes,
            capacity_bytes=snapshot_capacity_bytes(signals),
        )
    use = memory_use(signals)
    has_changes = use is not None and use.device is not None
    if memory is None and not has_changes:
        return None
    peak = None if memory is None else memory.peak_allocated_bytes
    is_relative = has_changes and peak is None
    return model.MemoryInfo(
        peak_allocated_bytes=peak,
        peak_reserved_bytes=None if memory is None else memory.peak_reserved_bytes,
        capacity_bytes=None if memory is None else memory.capacity_bytes,
        peak_above_start_bytes=int(use.allocated_bytes[use.peak])
        if use is not None and is_relative
        else None,
    )
