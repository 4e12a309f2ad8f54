"""Operators compute on the host while the device idles."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.trace.intervals import intersect, overlap_ns, total_ns, union
from tb_perfadvisor.units import format_share
from tb_perfadvisor.whatif import shrink


class HostPlacedOperators(Rule):
    """Operators that could run on the device run on the host, and the device idles meanwhile.

    What it finds
    -------------
    Operators of the step that compute without launching any device work, weighted by the idle time
    of the device during them. Operators of the input pipeline are left out, and those that only
    propagate shapes: on tensors without data, as DTensor and compilers use them.

    Why it matters
    --------------
    A tensor on the host pulls its computations there: a loss, a mask, a metric. The device waits
    for the result, and the copies in both directions cost time as well.

    How it is measured
    ------------------
    The idle time that the host causes during the outermost host-placed operators, on the threads
    that launch device work. High is all of it. Expected leaves the cost of one launch per
    operator, and is replayed that way where the profile allows it. Low leaves twice that cost.

    When to ignore
    --------------
    For bookkeeping on tiny tensors that must be on the host: sampling, tokenizing, logging.

    How to verify
    -------------
    After the change, the operators launch kernels, the share of operators on the device rises, and
    the idle time is gone.

    References:
    ----------
    TensorFlow guide, "Use a GPU: Logging device placement"; PyTorch documentation, "Performance
    Tuning Guide: Create tensors directly on the target device".
    """

    id = "host-placed-operators"
    title = "Move operators to the device"
    category = "placement"
    reads_sums = True
    needs = (Need.DEVICE_EVENTS, Need.HOST_EVENTS, Need.LAUNCH_LINKS)
    is_preview = False

    minimum_share = Limit(0.02, "share", "Every program handles scalars and sizes on the host.")
    launch_cost_ns = Limit(
        10_000, "ns", "An eager operator costs 5 to 20 microseconds of host time wherever it runs."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the device waits for operators on the host."""
        trace, placement = signals.trace, signals.placement
        rows = placement.host_rows
        events = trace.events
        start, end = events.start_ns[rows], events.end_ns[rows]
        claims = intersect(signals.host_idle, union(start, end))
        idle_ns = total_ns(claims)
        if self.is_minor(idle_ns, signals):
            return
        idle = overlap_ns(claims, start, end)
        rows, idle = rows[idle > 0], idle[idle > 0]
        launch_ns = round(len(rows) * self.launch_cost_ns)
        by_time = placement.share_by_time
        yield Finding(
            summary=(
                f"The device idles {per_step(idle_ns, signals)} while operators run on the host;"
                f" {format_share(by_time)} of operator time is on the device."
            ),
            saving=Saving(
                max(idle_ns - 2 * launch_ns, 0),
                max(idle_ns - launch_ns, 0),
                idle_ns,
                claims,
                "measured",
                (shrink(start, end, round(self.launch_cost_ns)),),
            ),
            evidence=(
                events_by_name(
                    "Operators on the host",
                    "Operator",
                    trace,
                    rows,
                    (
                        (Column("duration_ns", "Duration", "ns"), events.duration_ns[rows]),
                        (Column("idle_ns", "Device idle", "ns"), idle),
                    ),
                ),
                costliest("Costliest operators", signals.worker, rows, idle),
            ),
            remedies=advise("placed-on-device"),
        )
