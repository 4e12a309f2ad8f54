"""Optimizers and gradients that are updated tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step, share_of_each
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name, made_tables
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.core.causes import BUSY, COMPUTE
from tb_perfadvisor.signals.host.optimizer_loops import (
    HostUpdates,
    host_updates,
    optimizer_loop,
    zeroing_loop,
)
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace.intervals import intersect, join, total_ns
from tb_perfadvisor.units import format_duration
from tb_perfadvisor.whatif import Remove, Shorten


class UnfusedOptimizer(Rule):
    """The optimizer launches separate kernels for each parameter, and the device waits."""

    id = "unfused-optimizer"
    title = "Update all parameters in one kernel"
    needs = (Need.DEVICE_EVENTS, Need.HOST_EVENTS, Need.LAUNCH_LINKS, Need.PYTORCH)
    is_preview = False

    minimum_share = Limit(
        0.01, "share", "Changing one argument of the optimizer is worth 1 % of a step."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        loop = optimizer_loop(signals)
        idle_ns = total_ns(loop.idle)
        if not loop.is_loop or self.is_minor(idle_ns, signals):
            return
        trace, events = signals.trace, signals.trace.events
        computing = intersect(
            signals.attribution.of(*COMPUTE),
            events.spans(loop.kernels),
        )
        recording_ns = profiler_overhead(signals).within_ns(loop.idle)
        duration = events.duration_ns[loop.operators]
        host = events.spans(loop.operators)
        yield Finding(
            instance=count_per_step(len(loop.kernels), "launch", signals, plural="launches"),
            summary=(
                f"The device idles {per_step(idle_ns, signals)} while the optimizer updates one"
                " parameter after the other"
                f" ({count_per_step(len(loop.kernels), 'launch', signals, plural='launches')})."
            ),
            saving=Saving(
                max(idle_ns - recording_ns, 0),
                idle_ns,
                idle_ns + total_ns(computing) // 2,
                join(loop.idle, computing),
                "measured",
                (Remove(join(host, loop.idle), is_launching=True),),
            ),
            evidence=(
                events_by_name(
                    "Operators that the optimizer calls",
                    "Operator",
                    trace,
                    loop.operators,
                    ((Column("host_ns", "Time on the host", "ns"), duration),),
                ),
                costliest("Longest of these operators", signals.worker, loop.operators, duration),
            ),
            remedies=advise("fused-optimizer", "compiled-optimizer"),
        )


_SAVED: Mapping[str, tuple[float, float, float]] = MappingProxyType(
    {
        "Adam": (0.6, 0.75, 0.9),
        "AdamW": (0.6, 0.75, 0.9),
        "Adagrad": (0.45, 0.68, 0.88),
        "SGD": (0.1, 0.35, 0.65),
    }
)
"""The part of `Optimizer.step` that the fused form saves: low, expected, high. Measured by
`cost_models/fused_optimizers.py` with PyTorch 2.13 on two cores, for 4 to 100 tensors of 64 to four
million numbers: 0.63 to 0.89, 0.50 to 0.86, and 0.15 to 0.65 with momentum. Without momentum, the
fused SGD took 0.7 to 1.7 times as long."""


class OptimizerLoop(Rule):
    """On the CPU, the optimizer runs a dozen operators for each parameter."""

    id = "optimizer-loop"
    title = "Update all parameters in one operator"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.PYTORCH)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "Changing one argument of the optimizer is worth 2 % of a step."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        updates = host_updates(signals)
        if updates is None or updates.is_fused:
            return
        if updates.name == "SGD" and not updates.has_momentum:
            return
        whole_ns = total_ns(updates.steps)
        own_ns = whole_ns - profiler_overhead(signals).within_ns(updates.steps)
        low, expected, high = _SAVED[updates.name]
        if self.is_minor(int(expected * own_ns), signals):
            return
        yield _finding(
            signals,
            updates,
            Saving(
                int(low * own_ns),
                int(expected * own_ns),
                int(high * whole_ns),
                updates.steps,
                "modeled",
            ),
        )


def _finding(signals: Signals, updates: HostUpdates, saving: Saving) -> Finding:
    duration = signals.trace.events.duration_ns[updates.operators]
    steps = max(len(signals.steps), 1)
    made = signals.trace.facts.program.all_made("optimizer")
    usual = format_duration(total_ns(updates.steps) / steps)
    count = len(updates.operators) // steps
    return Finding(
        instance=f"{updates.name}.step takes {usual}",
        summary=(
            f"{share_of_each(total_ns(updates.steps), signals)} goes into {count:,} operators that"
            f" {updates.name} calls, parameter by parameter. One fused operator updates all of"
            " them."
        ),
        saving=saving,
        evidence=(
            events_by_name(
                "Operators that the optimizer calls",
                "Operator",
                signals.trace,
                updates.operators,
                ((Column("host_ns", "Time on the host", "ns"), duration),),
            ),
            costliest("Longest of these operators", signals.worker, updates.operators, duration),
            *made_tables(each for each in made if each.name == updates.name),
        ),
        remedies=advise("fused-host-optimizer", optimizer=updates.name),
    )


class GradientZeroing(Rule):
    """Each step writes zeros to every gradient instead of dropping it."""

    id = "gradient-zeroing"
    title = "Drop gradients instead of zeroing them"
    needs = (Need.DEVICE_EVENTS, Need.HOST_EVENTS, Need.LAUNCH_LINKS, Need.PYTORCH)
    is_preview = False

    minimum_share = Limit(
        0.005, "share", "The fix is a single argument, so that even 0.5 % of the step is worth it."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        loop = zeroing_loop(signals)
        if not loop.is_loop:
            return
        trace, events = signals.trace, signals.trace.events
        filling = intersect(
            signals.attribution.of(*BUSY),
            events.spans(loop.kernels),
        )
        claims = join(loop.idle, filling)
        total = total_ns(claims)
        if self.is_minor(total, signals):
            return
        recording_ns = profiler_overhead(signals).within_ns(loop.idle)
        duration = events.duration_ns[loop.operators]
        host = events.spans(loop.operators)
        yield Finding(
            instance=count_per_step(len(loop.kernels), "fill", signals),
            summary=(
                f"Zeroing gradients takes {per_step(total, signals)}, with"
                f" {count_per_step(len(loop.kernels), 'fill', signals)}."
            ),
            saving=Saving(
                max(total - recording_ns, 0),
                total,
                total,
                claims,
                "measured",
                (
                    Remove(join(host, loop.idle)),
                    Shorten(loop.kernels, events.duration_ns[loop.kernels] * 0),
                ),
            ),
            evidence=(
                events_by_name(
                    "Kernels that zero_grad launches",
                    "Kernel",
                    trace,
                    loop.kernels,
                    ((Column("total_ns", "Time", "ns"), events.duration_ns[loop.kernels]),),
                ),
                costliest("Longest calls", signals.worker, loop.operators, duration),
            ),
            remedies=advise("drop-gradients"),
        )
