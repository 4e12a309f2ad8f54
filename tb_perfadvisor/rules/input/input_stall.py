"""The device waits for input data."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.instance import fetch_name
from tb_perfadvisor.rules.evidence.made import made_tables
from tb_perfadvisor.rules.evidence.tables import events_by_name, series_by_step
from tb_perfadvisor.rules.evidence.tfdata_pipelines import changes_of_parallel_map
from tb_perfadvisor.rules.finding import Column, Finding, Series, Table, costliest
from tb_perfadvisor.rules.savings.input_rate import saving_of_doubled_input_rate_ns
from tb_perfadvisor.rules.savings.loading import stall_saving
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.input.host_loading import host_loading, loader_in_process
from tb_perfadvisor.signals.input.waiting_fetches import (
    ends_in_prefetch,
    waiting_fetches,
    workers_to_keep_up,
)
from tb_perfadvisor.trace.intervals import Intervals, intersect, overlap_ns, total_ns, union


class InputStall(Rule):
    """The device is idle while the training thread fetches the next batch.

    What it finds
    -------------
    Time in which the device is idle (in a CPU-only profile: no operator of the step runs) while
    the thread that runs the steps is inside the input pipeline: a DataLoader's `__next__`,
    TensorFlow's `IteratorGetNext`, or a TPU's infeed.

    Why it matters
    --------------
    No change to the model helps when data arrives late. A slow input pipeline is also the easiest
    thing to fix: the host can read, decode and copy batches while the device computes.

    How it is measured
    ------------------
    The time of the steps that is attributed to *input* alone. Fetches that overlap device work
    cost nothing and are ignored. High is the whole stall. What overlapping input and step alone
    would hide is the smaller of the stall and the rest of the step. If loading already overlaps
    the step, it is what an input pipeline of twice the rate would save.

    Where the training thread loads, the prices are those of loader-in-main-process. Any other
    pipeline is expected to save the middle between half of that, which is low, and the whole stall:
    nothing tells how much faster it can get. On the CPU, expected is the whole stall, and low all
    that overlapping hides. Where the profile allows it, a replay of the steps without the waits
    refines what is expected.

    A stall of 3 % is reported if it occurs in more than one step. Unless the training process
    loads the data itself, the time that it takes to hand over a finished batch is subtracted
    first. On the CPU, where workers and steps share the cores, fetches that only take over a
    finished batch are ignored.

    When to ignore
    --------------
    When the profile covers the first steps of an epoch, while workers start and caches fill, or
    when input is slow only because profiling slows down the loader's threads.

    How to verify
    -------------
    Feed the same batch again and again: the step time that remains is what a perfect input
    pipeline would give. After the change, the wait for input and the step time both fall.

    References:
    ----------
    TensorFlow guide, "Better performance with the tf.data API"; PyTorch documentation,
    "torch.utils.data: Single- and Multi-process Data Loading".
    """

    id = "input-stall"
    title = "Feed the device without making it wait"
    category = "input"
    reads_sums = True
    needs = (Need.WORK, Need.INPUT)
    is_preview = False

    minimum_share = Limit(
        0.05,
        "share",
        "Fetching a batch that is ready takes a few percent of a short step. XProf and the "
        "PyTorch profiler plugin also report input from 5 % on.",
    )

    recurring_share = Limit(
        0.02,
        "share",
        "A stall that recurs is reported from 3 % on, the limit of medium severity: seen outside "
        "its worst step and after subtracting the handing over of batches, it is no accident.",
    )

    hand_over_ns = Limit(
        1_400_000,
        "ns",
        "In PyTorch's ResNet-50 sample, taking over a batch from a worker costs up to 1.4 ms.",
    )

    minimum_wait_ns = Limit(
        3_000_000,
        "ns",
        "Taking over a finished batch from a worker is not a wait: unpacking it and mapping its "
        "memory takes up to 2.6 ms on two busy cores.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the stall is large enough or recurs."""
        attribution = signals.attribution
        claims = attribution.intervals[Cause.INPUT]
        stall_ns = total_ns(claims)
        if stall_ns == 0:
            return
        trace = signals.trace
        rows, idle, has_workers, loads_itself = waiting_fetches(signals)
        duration_ns = trace.events.duration_ns[rows]
        # A process that loads its own data hands nothing over.
        hand_over_ns = 0 if loads_itself else int(self.hand_over_ns)
        if not self._is_large_or_recurs(claims, hand_over_ns, signals):
            return
        if has_workers and signals.device.is_host_only:
            waits = rows[duration_ns >= self.minimum_wait_ns]
            claims = intersect(
                claims, union(trace.events.start_ns[waits], trace.events.end_ns[waits])
            )
            stall_ns = total_ns(claims)
            if not self._is_large_or_recurs(claims, hand_over_ns, signals):
                return
        low_ns = min(stall_ns, attribution.window_ns - stall_ns)
        is_parallel = has_workers or ends_in_prefetch(signals)
        if is_parallel:
            low_ns = saving_of_doubled_input_rate_ns(stall_ns, attribution.window_ns)
        prices = host_loading(signals) if loads_itself else None
        # A recorder's totals do not say where the step waits.
        is_sum = not len(rows) or trace.totals is not None
        name = "" if is_sum else trace.name(int(rows[np.argmax(idle)]))
        article = "the " if fetch_name(name) != name else ""
        where = f", in {article}{fetch_name(name)}" if name else ""
        on_cpu = signals.device.is_host_only
        subject = "The step's operators wait" if on_cpu else "The device waits"
        loader = loader_in_process(signals) if loads_itself else None
        keeps_in_memory = prices is not None and prices.keeps_in_memory
        yield Finding(
            title="Feed the step without making it wait" if on_cpu else "",
            instance=fetch_name(name),
            summary=f"{subject} {per_step(stall_ns, signals)} for input{where}.",
            saving=stall_saving(signals, claims, low_ns, prices, is_parallel=is_parallel),
            evidence=(
                costliest("The longest waits", signals.worker, rows, idle),
                _stages(signals)
                or events_by_name(
                    "Fetches of the training thread",
                    "Fetch",
                    trace,
                    rows,
                    (
                        (Column("duration_ns", "In the call", "ns"), duration_ns),
                        (Column("idle_ns", "Device idle", "ns"), idle),
                    ),
                ),
                *_stall_by_step(signals),
                *made_tables(() if loader is None else (loader,)),
            ),
            remedies=advise(
                *changes_of_parallel_map(signals),
                "more-loader-workers",
                *(("prepared-samples",) if keeps_in_memory else ("loader-workers",)),
                "load-ahead",
                "overlapped-input",
                "more-service-workers",
                "grain-workers",
                workers=workers_to_keep_up(signals),
            ),
        )

    def _is_large_or_recurs(self, stalls: Intervals, hand_over_ns: int, signals: Signals) -> bool:
        """Whether stalls take a large part of the steps, or a smaller part of several steps."""
        if not self.is_minor(total_ns(stalls), signals):
            return True
        steps = signals.steps
        if len(steps) < 2:
            return False
        beyond_ns = overlap_ns(stalls, steps.start_ns, steps.end_ns) - hand_over_ns
        length_ns = steps.end_ns - steps.start_ns
        is_other = np.arange(len(steps)) != beyond_ns.argmax()
        lost_ns = float(np.maximum(beyond_ns[is_other], 0).sum())
        least_share = self.minimum_share - self.recurring_share
        return lost_ns >= least_share * float(length_ns[is_other].sum())


def _stages(signals: Signals) -> Table | None:
    """The time of each stage of the input pipeline, if the recorder summed it up."""
    totals = signals.trace.totals
    if totals is None or not totals.input_stages:
        return None
    return Table(
        "Stages of the input pipeline, summed over the whole recording and all threads",
        (
            Column("name", "Stage"),
            Column("type", "Type"),
            Column("count", "Count", "count"),
            Column("total_ns", "Time", "ns"),
            Column("self_ns", "Self time", "ns"),
        ),
        tuple(
            (stage.name, stage.type, stage.count, stage.total_ns, stage.self_ns)
            for stage in totals.input_stages
        ),
    )


def _stall_by_step(signals: Signals) -> tuple[Series, ...]:
    if len(signals.steps) < 2:
        return ()
    stall_ns = signals.attribution.step_total_ns[Cause.INPUT]
    return (series_by_step("Waiting for input, by step", signals, stall_ns),)
