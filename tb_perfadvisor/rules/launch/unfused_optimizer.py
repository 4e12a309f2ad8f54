"""The optimizer updates one parameter after the other."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.core.causes import COMPUTE
from tb_perfadvisor.signals.host.optimizer_loops import optimizer_loop
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace.intervals import intersect, join, total_ns, union
from tb_perfadvisor.whatif import Remove


class UnfusedOptimizer(Rule):
    """The optimizer launches separate kernels for each parameter, and the device waits.

    What it finds
    -------------
    Idle time of the device while the host is in `Optimizer.step`, if that loops over the
    parameters with single-tensor operators instead of foreach or fused ones.

    Why it matters
    --------------
    A model has hundreds of parameters, and an optimizer several operations for each: thousands of
    launches of a few microseconds of work, which one fused kernel replaces.

    How it is measured
    ------------------
    The idle time that the host causes inside `Optimizer.step`, minus what synchronizations induce,
    if each call runs at least ten operators of one kind and none over lists of tensors. Low and
    expected are that idle time without the estimated cost of recording; high adds half of the
    time of the kernels, which read and write every parameter several times. Where the profile
    allows it, expected is what the steps save in a replay without the loop.

    When to ignore
    --------------
    When parameters are on several devices or have types that fused kernels do not support.

    How to verify
    -------------
    The profile shows `_fused_` or `_foreach_` operators in `Optimizer.step`, which takes a
    fraction of the time.

    References:
    ----------
    PyTorch documentation, torch.optim, on foreach and fused implementations.
    """

    id = "unfused-optimizer"
    title = "Update all parameters in one kernel"
    category = "launch"
    needs = (Need.DEVICE_EVENTS, Need.HOST_EVENTS, Need.LAUNCH_LINKS, Need.PYTORCH)
    is_preview = False

    minimum_share = Limit(
        0.01, "share", "Changing one argument of the optimizer is worth 1 % of a step."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the device waits for a loop over parameters."""
        loop = optimizer_loop(signals)
        idle_ns = total_ns(loop.idle)
        if not loop.is_loop or self.is_minor(idle_ns, signals):
            return
        trace, events = signals.trace, signals.trace.events
        computing = intersect(
            signals.attribution.of(*COMPUTE),
            union(events.start_ns[loop.kernels], events.end_ns[loop.kernels]),
        )
        recording_ns = profiler_overhead(signals).within_ns(loop.idle)
        duration = events.duration_ns[loop.operators]
        host = union(events.start_ns[loop.operators], events.end_ns[loop.operators])
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
