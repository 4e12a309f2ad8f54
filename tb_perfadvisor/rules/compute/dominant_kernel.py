"""A single kernel that takes most of the step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import work_by_call_site
from tb_perfadvisor.rules.evidence.instance import short_name
from tb_perfadvisor.rules.finding import Finding, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import work_rows
from tb_perfadvisor.signals.work.achievable_time import BOUNDS
from tb_perfadvisor.signals.work.roofline import roofline
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.units import format_share


class DominantKernel(Rule):
    """One kernel takes most of the step.

    What it finds
    -------------
    A kernel, by name, that takes more of the step than the limit, and how close it is to the
    device's roofline.

    Why it matters
    --------------
    No change that leaves this kernel alone makes the step much shorter. If it is close to its
    roofline, do less work or use a narrower data type. If it is far from it, find a faster kernel
    for the same work.

    How it is measured
    ------------------
    The total time of the kernel in the analyzed steps. How much of the achievable rate it reaches
    is known for executions with recorded shapes, weighted by time. This finding has no saving of
    its own; other rules estimate what can be done.

    When to ignore
    --------------
    When the kernel is close to its roofline and the work is necessary.

    How to verify
    -------------
    Its share of the step falls.

    References:
    ----------
    Williams, Waterman, Patterson, "Roofline: an insightful visual performance model" (2009).
    """

    id = "dominant-kernel"
    title = "Speed up the kernel that takes most of the time"
    category = "compute"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS)
    is_preview = False

    minimum_share = Limit(0.5, "share", "Above half of the step, everything else comes second.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when one kernel takes most of the step."""
        if len(signals.kernels) < 2:
            return  # with a single kernel, there is nothing to point out
        first = signals.kernels[0]
        if self.is_minor(first.total_ns, signals):
            return
        trace, rows = signals.trace, work_rows(signals)
        executions = rows[trace.events.kind[rows] == EventKind.KERNEL]
        executions = executions[
            [trace.strings[name] == first.name for name in trace.events.name[executions].tolist()]
        ]
        cost_ns = trace.events.duration_ns[executions]
        yield Finding(
            instance=short_name(first.name),
            summary=(
                f"{per_step(first.total_ns, signals)} goes into one kernel, {first.name[:120]}"
                f"{_position(signals, executions)}."
            ),
            evidence=(
                work_by_call_site("Operators that launch it", signals, executions, cost_ns),
                costliest("Longest executions", signals.worker, executions, cost_ns),
            ),
            remedies=advise("look-at-kernel"),
            severity="low",
        )


def _position(signals: Signals, rows: Int32) -> str:
    """Describe its place on the roofline; empty if that is unknown."""
    rooflines, durations = roofline(signals), signals.trace.events.duration_ns
    is_known = is_in(rooflines.rows, rows) & ~np.isnan(rooflines.achievable_ns)
    duration_ns = durations[rooflines.rows[is_known]]
    if not duration_ns.sum() or duration_ns.sum() < durations[rows].sum() / 2:
        return ""
    share = float(rooflines.achievable_ns[is_known].sum() / duration_ns.sum())
    bound = rooflines.bound[is_known]
    main_bound = max(BOUNDS, key=lambda code: int(duration_ns[bound == code].sum()))
    by = f"(bound by {BOUNDS[main_bound]})"
    # Caches, and rates that are a little better than assumed, make some kernels faster.
    if share >= 1:
        return f", which is as fast as its work allows {by}"
    return f", which reaches {format_share(share)} of its achievable rate {by}"
