"""A TPU waits in its infeed or outfeed."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, costliest
from tb_perfadvisor.rules.savings.loading import pipeline_saving
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import intersect, overlap_ns, total_ns, union


class InfeedWait(Rule):
    """The TPU waits in infeed operations for the host's next batch.

    What it finds
    -------------
    Time that a core spends in infeed and outfeed operations.

    Why it matters
    --------------
    An infeed operation ends when the batch has arrived. Beyond the transfer itself, all of its
    time is the host being late. An outfeed likewise ends when the host has taken the data.

    How it is measured
    ------------------
    The time attributed to *input* inside infeed and outfeed operations of the core. High is all of
    it. Low is half of what could overlap the rest of the step, since programs realize a part of
    that. How fast the host can get is unknown, so the middle of both is expected.

    When to ignore
    --------------
    When the batch is so large that its transfer takes the time: compare with the link's bandwidth.

    How to verify
    -------------
    Infeed falls to a few percent of the step.

    References:
    ----------
    OpenXLA, XProf documentation, "Input pipeline analyzer"; XLA operation semantics, "Infeed".
    """

    id = "infeed-wait"
    title = "Fill the infeed before the device asks"
    category = "input"
    refines = "input-stall"
    reads_sums = True
    needs = (Need.DEVICE_EVENTS, Need.INFEED)
    is_preview = False

    minimum_share = Limit(0.05, "share", "XProf also reports input from 5 % of infeed on.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the core waits in its infeed."""
        trace, window = signals.trace, signals.attribution
        events = trace.events
        rows = trace.rows(EventKind.INFEED_WAIT)
        rows = rows[trace.tracks.device[events.track[rows]] == signals.device.index]
        claims = intersect(
            window.intervals[Cause.INPUT], union(events.start_ns[rows], events.end_ns[rows])
        )
        waited_ns = total_ns(claims)
        if self.is_minor(waited_ns, signals):
            return
        idle = overlap_ns(claims, events.start_ns[rows], events.end_ns[rows])
        rows, idle = rows[idle > 0], idle[idle > 0]
        yield Finding(
            instance=f"the core waits {per_step(waited_ns, signals)}",
            summary="The core does nothing else while it is in infeed and outfeed operations.",
            saving=pipeline_saving(
                claims, min(waited_ns, window.window_ns - waited_ns), is_parallel=False
            ),
            evidence=(
                costliest("Longest waits", signals.worker, rows, idle),
                events_by_name(
                    "Infeed and outfeed operations",
                    "Operation",
                    trace,
                    rows,
                    ((Column("idle_ns", "Device idle", "ns"), idle),),
                ),
            ),
            remedies=advise("batches-on-device"),
        )
