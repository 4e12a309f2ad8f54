"""One kernel that takes most of the step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.call_sites import work_by_call_site
from tb_perfadvisor.rules.finding import Finding, Remedy, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.device_work import work_rows
from tb_perfadvisor.signals.work.roofline import BOUNDS, roofline
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.units import format_share

_REMEDY = Remedy(
    text="Look at this kernel before anything else: the evidence names the operators that launch "
    "it, and the view of kernels places it on the device's roofline.",
)


class DominantKernel(Rule):
    """One kernel takes most of the step.

    What it finds
    -------------
    A kernel, by name, that takes more of the step than the limit, and where it stands on the
    device's roofline.

    Why it matters
    --------------
    Nothing that leaves this kernel alone changes the step by much. Near its roofline the way on
    is less work or narrower numbers; far from it, another kernel for the same work.

    How it is measured
    ------------------
    Its summed time in the used window. Its share of what is achievable is that of the executions
    whose shapes are known, weighted by time. No saving is claimed: other rules say what could be
    done.

    When to ignore
    --------------
    When it is close to its roofline and the work is needed.

    How to verify
    -------------
    Its share of the step falls.

    References:
    ----------
    Williams, Waterman, Patterson, "Roofline: an insightful visual performance model" (2009).
    """

    id = "dominant-kernel"
    title = "Look at the kernel that takes most of the step"
    category = "compute"
    needs = (Need.DEVICE_EVENTS, Need.KERNELS)
    is_preview = False

    minimum_share = Limit(0.5, "share", "With half of the step, everything else is second.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when one kernel takes most of the step."""
        if len(signals.kernels) < 2:
            return  # a program of one kernel needs nobody to point at it
        first = signals.kernels[0]
        if self.is_minor(first.total_ns, signals):
            return
        trace, rows = signals.trace, work_rows(signals)
        own = rows[trace.events.kind[rows] == EventKind.KERNEL]
        own = own[[trace.strings[name] == first.name for name in trace.events.name[own].tolist()]]
        cost_ns = trace.events.duration_ns[own]
        yield Finding(
            summary=(
                f"{per_step(first.total_ns, signals)} is one kernel, {first.name[:120]}"
                f"{_position(signals, own)}."
            ),
            evidence=(
                work_by_call_site("What launches it", signals, own, cost_ns),
                costliest("Its longest executions", signals.worker, own, cost_ns),
            ),
            remedies=(_REMEDY,),
            severity="low",
        )


def _position(signals: Signals, rows: Int32) -> str:
    """Where it stands on the roofline; nothing where that is unknown."""
    found, durations = roofline(signals), signals.trace.events.duration_ns
    is_own = is_in(found.rows, rows) & ~np.isnan(found.achievable_ns)
    duration_ns = durations[found.rows[is_own]]
    if not duration_ns.sum() or duration_ns.sum() < durations[rows].sum() / 2:
        return ""
    share = format_share(float(found.achievable_ns[is_own].sum() / duration_ns.sum()))
    bound = found.bound[is_own]
    most = max(BOUNDS, key=lambda code: int(duration_ns[bound == code].sum()))
    return f", which reaches {share} of what its work allows (bound by {BOUNDS[most]})"
