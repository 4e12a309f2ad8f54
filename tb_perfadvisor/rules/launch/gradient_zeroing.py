"""Each step fills gradients with zeros."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.core.causes import BUSY
from tb_perfadvisor.signals.host.optimizer_loops import zeroing_loop
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace.intervals import intersect, join, total_ns, union
from tb_perfadvisor.whatif import Remove, Shorten


class GradientZeroing(Rule):
    """Each step writes zeros to every gradient instead of dropping it.

    What it finds
    -------------
    Fill kernels, one per gradient, launched by `Optimizer.zero_grad`, and the idle time of the
    device meanwhile.

    Why it matters
    --------------
    The backward pass has to read the zeros again and add to them. A dropped gradient is neither
    written nor read, and its memory is free until it is needed.

    How it is measured
    ------------------
    High is the idle time that the host causes in `zero_grad`, plus the time in which the device
    does nothing but the kernels that it launches. Low and expected do without the estimated
    cost of recording. The additions that also go away cannot be identified among the other
    kernels. Where the profile allows it, expected is what the steps save in a replay without
    both.

    When to ignore
    --------------
    When gradients are views of one buffer, as with DDP's gradient_as_bucket_view, or when code
    relies on gradients being zero rather than None.

    How to verify
    -------------
    No fill kernels follow `zero_grad`, and less memory is allocated after it.

    References:
    ----------
    PyTorch documentation, "Performance Tuning Guide", on set_to_none.
    """

    id = "gradient-zeroing"
    title = "Drop gradients instead of zeroing them"
    category = "launch"
    needs = (Need.DEVICE_EVENTS, Need.HOST_EVENTS, Need.LAUNCH_LINKS, Need.PYTORCH)
    is_preview = False

    minimum_share = Limit(
        0.005, "share", "The fix is a single argument, so that even 0.5 % of the step is worth it."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when zeroing takes a noticeable part of the step."""
        loop = zeroing_loop(signals)
        if not loop.is_loop:
            return
        trace, events = signals.trace, signals.trace.events
        filling = intersect(
            signals.attribution.of(*BUSY),
            union(events.start_ns[loop.kernels], events.end_ns[loop.kernels]),
        )
        claims = join(loop.idle, filling)
        total = total_ns(claims)
        if self.is_minor(total, signals):
            return
        recording_ns = profiler_overhead(signals).within_ns(loop.idle)
        duration = events.duration_ns[loop.operators]
        host = union(events.start_ns[loop.operators], events.end_ns[loop.operators])
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
