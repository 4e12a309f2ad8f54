"""The training process loads its own batches."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Finding, Saving, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.input.loading_apart import limited
from tb_perfadvisor.signals.input.waiting_fetches import (
    fetches_without_workers,
    workers_to_keep_up,
)
from tb_perfadvisor.trace.intervals import intersect, overlap_ns, total_ns, union
from tb_perfadvisor.units import format_duration
from tb_perfadvisor.whatif import Remove


class LoaderInMainProcess(Rule):
    """The thread that runs the steps also reads and prepares each batch.

    What it finds
    -------------
    A DataLoader without workers (`num_workers=0`, the default) whose fetches the device waits for.

    Why it matters
    --------------
    Without workers, loading and computing take turns: while a batch is read and decoded nothing is
    launched, and while the device computes nothing is read.

    How it is measured
    ------------------
    The time attributed to *input* inside the fetches of the single-process iterator. High is all
    of it. With a device, the step then takes as long as the slowest of the device's work, loading
    by the advised number of workers, and the host's own work, which takes longer beside workers:
    10 % is expected, and 25 % is the low end, with a single worker. Where the device waits for the
    host already, that is added in full. Four workers made it 4 % and 20 % in recorded pairs.

    When to ignore
    --------------
    When the host has a single core, or when preparing a batch takes little more time than passing
    it between processes.

    How to verify
    -------------
    Record again: the fetch is now `_MultiProcessingDataLoaderIter`, and the wait for input falls.

    References:
    ----------
    PyTorch documentation, "torch.utils.data: Single- and Multi-process Data Loading".
    """

    id = "loader-in-main-process"
    title = "Load batches in worker processes"
    category = "input"
    refines = "input-stall"
    needs = (Need.WORK, Need.INPUT)
    is_preview = False

    minimum_share = Limit(0.05, "share", "The same limit as that of input-stall.")
    minimum_fetch_ns = Limit(
        2_000_000,
        "ns",
        "In PyTorch's ResNet-50 sample, taking over a batch from a worker costs up to 1.4 ms.",
    )

    hidden_share = Limit(
        0.5, "share", "On the CPU, workers and the step's operators share the cores."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the device waits for a loader without workers."""
        events, rows = signals.trace.events, fetches_without_workers(signals)
        usual_ns = float(np.median(events.duration_ns[rows])) if len(rows) else 0.0
        if len(rows) == 0 or usual_ns < self.minimum_fetch_ns:
            return
        fetches = union(events.start_ns[rows], events.end_ns[rows])
        claims = intersect(signals.attribution.intervals[Cause.INPUT], fetches)
        stall_ns = total_ns(claims)
        if self.is_minor(stall_ns, signals):
            return
        low_ns = min(stall_ns, signals.attribution.window_ns - stall_ns)
        if signals.device.is_host_only:
            low_ns = int(self.hidden_share * low_ns)
        low_ns, elsewhere_ns = limited(signals, stall_ns, low_ns)
        idle = overlap_ns(claims, events.start_ns[rows], events.end_ns[rows])
        subject = "The step's operators wait" if signals.device.is_host_only else "The device waits"
        yield Finding(
            instance=f"each takes {format_duration(usual_ns)} now",
            summary=(
                f"{subject} {per_step(stall_ns, signals)} because the training thread loads"
                " the batches itself."
            ),
            saving=Saving(
                low_ns,
                stall_ns - elsewhere_ns,
                stall_ns,
                claims,
                "measured",
                (Remove(fetches),),
                elsewhere_ns=elsewhere_ns,
            ),
            evidence=(
                costliest("Longest fetches", signals.worker, rows[idle > 0], idle[idle > 0]),
            ),
            remedies=advise(
                "loader-workers",
                "data-in-memory",
                workers=workers_to_keep_up(signals),
            ),
        )
