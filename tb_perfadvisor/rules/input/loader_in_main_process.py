"""The training process loads its own batches."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.made import made_tables
from tb_perfadvisor.rules.finding import Finding, costliest
from tb_perfadvisor.rules.savings.loading import loading_saving
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.input.host_loading import HostLoading, host_loading, loader_in_process
from tb_perfadvisor.signals.input.waiting_fetches import (
    fetches_without_workers,
    workers_to_keep_up,
)
from tb_perfadvisor.trace.intervals import intersect, overlap_ns, total_ns, union
from tb_perfadvisor.units import format_duration

_IN_MEMORY = "Keep prepared samples in memory"


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

    On the CPU, worker processes share cores with the step. If the step's threads use all of them, a
    batch from a worker costs 3.5 ms, and half of the fetch is computed by one of two cores
    meanwhile: workers pay only for long fetches, or for those that wait for storage. The
    alternative is to keep prepared samples in memory, which leaves about 15 % of the fetch. The
    better of the two comes first, and nothing is advised if neither pays. Cores, threads, memory
    and the size of the dataset are known of recordings by `perfadvisor run`; otherwise, low is
    near 0.

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
        "In PyTorch's ResNet-50 sample, taking over a batch from a worker costs up to 1.4 ms. "
        "Samples in memory are handed over by nobody.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the device waits for a loader without workers."""
        events, rows = signals.trace.events, fetches_without_workers(signals)
        usual_ns = float(np.median(events.duration_ns[rows])) if len(rows) else 0.0
        prices = host_loading(signals)
        least_ns = 0 if prices is not None and prices.keeps_in_memory else self.minimum_fetch_ns
        if len(rows) == 0 or usual_ns < least_ns:
            return
        fetches = union(events.start_ns[rows], events.end_ns[rows])
        claims = intersect(signals.attribution.intervals[Cause.INPUT], fetches)
        stall_ns = total_ns(claims)
        if self.is_minor(stall_ns if prices is None else prices.best.expected_ns, signals):
            return
        idle = overlap_ns(claims, events.start_ns[rows], events.end_ns[rows])
        loader = loader_in_process(signals)
        subject = "The step's operators wait" if signals.device.is_host_only else "The device waits"
        remedies = advise("loader-workers", "data-in-memory", workers=workers_to_keep_up(signals))
        if prices is not None and prices.keeps_in_memory:
            remedies = advise("prepared-samples", "data-in-memory")
            if prices.workers.expected_ns > 0 and not prices.is_sized:
                remedies += advise("loader-workers", workers=workers_to_keep_up(signals))
        yield Finding(
            title="" if prices is None or not prices.keeps_in_memory else _IN_MEMORY,
            instance=f"each takes {format_duration(usual_ns)} now",
            summary=(
                f"{subject} {per_step(stall_ns, signals)} because the training thread loads"
                f" the batches itself.{'' if prices is None else _why(prices)}"
            ),
            saving=loading_saving(signals, claims, fetches),
            evidence=(
                costliest("Longest fetches", signals.worker, rows[idle > 0], idle[idle > 0]),
                *made_tables(() if loader is None else (loader,)),
            ),
            remedies=remedies,
        )


def _why(prices: HostLoading) -> str:
    """Why samples in memory are better than workers, in a program on the CPU."""
    if not prices.keeps_in_memory:
        return ""
    cores = "" if prices.cores is None else f" of {prices.cores:g}"
    does = "brings" if prices.workers.expected_ns > 0 else "would cost more than it brings"
    least = " less than memory does" if prices.workers.expected_ns > 0 else ""
    augmented = (
        " What changes samples at random has to stay: apply it to whole batches."
        if prices.is_augmented
        else ""
    )
    return (
        f" Loading them in worker processes {does}{least}: it takes about"
        f" {format_duration(prices.hand_over_ns)} to hand over a batch, and cores{cores} that the"
        f" step computes on.{augmented}"
    )
