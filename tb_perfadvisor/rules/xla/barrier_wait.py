"""Cores that wait for one another at barriers."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Finding, Saving, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.core.causes import COMPUTE
from tb_perfadvisor.signals.tpu.barriers import barriers
from tb_perfadvisor.trace.intervals import clip, minus, overlap_ns, total_ns, union


class BarrierWait(Rule):
    """A core waits at a barrier for the other cores.

    What it finds
    -------------
    Time that a TPU core spends in `barrier-cores` while it computes nothing.

    Why it matters
    --------------
    A program on several cores starts on all of them together. A core that is late, because it lacks
    input or a launch or because it has more work, holds up all others.

    How it is measured
    ------------------
    The barriers on the core's line *XLA TraceMe*, minus the time in which the core computes. High
    and expected are all of it. Low is 0, because whatever delayed the late core may remain.

    When to ignore
    --------------
    In the first step, when cores start one after another.

    How to verify
    -------------
    The barriers of later steps take next to no time.

    References:
    ----------
    OpenXLA, XProf documentation, "Trace viewer", on the TPU's lines.
    """

    id = "barrier-wait"
    title = "Balance the cores so that none waits at barriers"
    category = "xla"
    needs = (Need.DEVICE_EVENTS, Need.BARRIERS)

    minimum_share = Limit(
        0.03, "share", "Cores never arrive at exactly the same time; a few percent are normal."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when a good part of the step is spent at barriers."""
        trace, window = signals.trace, signals.attribution
        events, rows = trace.events, barriers(trace)
        rows = rows[trace.tracks.device[events.track[rows]] == signals.device.index]
        waits = clip(
            union(events.start_ns[rows], events.end_ns[rows]),
            window.window_start_ns,
            window.window_end_ns,
        )
        claims = minus(waits, window.of(*COMPUTE))
        waited_ns = total_ns(claims)
        if self.is_minor(waited_ns, signals):
            return
        cost_ns = overlap_ns(claims, events.start_ns[rows], events.end_ns[rows])
        rows, cost_ns = rows[cost_ns > 0], cost_ns[cost_ns > 0]
        yield Finding(
            instance=count_per_step(len(rows), "barrier", signals),
            summary=(
                f"The core waits {per_step(waited_ns, signals)} at barriers for other cores"
                f" ({count_per_step(len(rows), 'barrier', signals)})."
            ),
            saving=Saving(0, waited_ns, waited_ns, claims, "measured"),
            evidence=(costliest("Longest barriers", signals.worker, rows, cost_ns),),
            remedies=advise("dispatch-ahead", "equal-work"),
        )
