"""The input pipeline takes the cores that the launching threads need."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.input.tfdata import tfdata
from tb_perfadvisor.signals.launch.delays import (
    KernelDelays,
    LaunchDelays,
    compare_by_kernel,
    launch_delays,
)
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.units import format_duration


class HostThreadContention(Rule):
    """Kernels are launched late while the input pipeline keeps all cores busy.

    What it finds
    -------------
    Idle time before kernels that were launched while the functions of a tf.data pipeline used as
    many threads as it has cores, beyond the idle time before the same kernels at other times.

    Why it matters
    --------------
    TensorFlow launches kernels from the same threads that decode images. When all are busy, a
    launch of a few microseconds waits until a core or a thread of the pool is free.

    How it is measured
    ------------------
    For each kernel name: the mean idle time before it while all cores were busy, minus the mean at
    other times, times the number of launches while they were busy. Expected is the sum over all
    kernels. High leaves out the launches that were faster nevertheless. Low is 0, because other
    things may happen at the same time. Waiting for input, synchronizations, and gaps of more than
    two milliseconds are left out.

    When to ignore
    --------------
    When the step also waits for its input: it waits longer if the pipeline has fewer threads. Also
    when the functions wait for files, which takes threads but no cores.

    How to verify
    -------------
    Launches take equally long whether or not the pipeline is busy, and the device idles less.

    References:
    ----------
    TensorFlow guide, "Optimize TensorFlow GPU performance with the TensorFlow Profiler", on host
    thread contention.
    """

    id = "host-thread-contention"
    title = "Keep the input pipeline off the launching threads' cores"
    category = "launch"
    refines = "launch-bound"
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS, Need.ITERATORS)

    minimum_share = Limit(
        0.03, "share", "Launches vary by as much from step to step without contention."
    )
    minimum_slowdown = Limit(
        1.5, "ratio", "A launch takes up to 50 % longer if its data is in another core's cache."
    )
    fewest_launches = Limit(
        20, "count", "The mean of fewer launches, with or without busy cores, depends on outliers."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when launches are slower while the pipeline is busy."""
        cores = tfdata(signals).cores
        if cores is None:
            return
        delays = launch_delays(signals)
        kernels = compare_by_kernel(signals, delays, delays.input_threads >= cores)
        if not len(kernels.name):
            return
        taken, free = int(kernels.taken.sum()), int(kernels.free.sum())
        slowdown = kernels.taken_ns.sum() / max(float(kernels.usual_ns.sum()), 1.0)
        if min(taken, free) < self.fewest_launches:
            return
        if slowdown < self.minimum_slowdown:
            return
        claims = delays.before(signals, kernels.excess_ns)
        high_ns = total_ns(claims)
        more_ns = int(kernels.taken_ns.sum() - kernels.usual_ns.sum())
        expected_ns = min(max(more_ns, 0), high_ns)
        if self.is_minor(expected_ns, signals):
            return
        launches = signals.trace.events.launched_by[delays.row]
        late = kernels.excess_ns > 0
        mean_ns = kernels.taken_ns.sum() / taken
        usual_ns = kernels.usual_ns.sum() / taken
        yield Finding(
            instance=f"all {cores} cores are busy",
            summary=(
                f"The device idles {per_step(expected_ns, signals)} longer because functions of the"
                f" input pipeline keep all {cores} cores busy: {format_duration(mean_ns)} before"
                f" each launch, against {format_duration(usual_ns)} at other times."
            ),
            saving=Saving(0, expected_ns, high_ns, claims, "measured"),
            evidence=(
                _by_threads(delays),
                _by_kernel(signals, kernels),
                costliest(
                    "Launches most delayed by busy cores",
                    signals.worker,
                    launches[late],
                    kernels.excess_ns[late],
                ),
            ),
            remedies=advise("private-gpu-threads", "fewer-input-threads"),
        )


def _by_threads(delays: LaunchDelays) -> Table:
    """Idle time before a kernel, by the number of busy threads of the pipeline."""
    threads, inverse, count = np.unique(
        delays.input_threads, return_inverse=True, return_counts=True
    )
    total = np.bincount(inverse, weights=delays.idle_ns, minlength=len(threads))
    return Table(
        "Launches by the number of busy input threads",
        (
            Column("threads", "Busy input threads", "count"),
            Column("count", "Launches", "count"),
            Column("mean_ns", "Mean idle time before", "ns"),
        ),
        tuple(
            (int(thread_count), int(times), int(idle / times))
            for thread_count, times, idle in zip(threads, count, total, strict=True)
        ),
    )


def _by_kernel(signals: Signals, kernels: KernelDelays) -> Table:
    order = np.argsort(kernels.usual_ns - kernels.taken_ns, kind="stable")
    return Table(
        "Kernels that are launched late",
        (
            Column("name", "Kernel"),
            Column("taken", "Launched with all cores busy", "count"),
            Column("idle_ns", "Idle time before them", "ns"),
            Column("usual_ns", "With free cores", "ns"),
        ),
        tuple(
            (
                signals.trace.text(int(kernels.name[i])),
                int(kernels.taken[i]),
                int(kernels.taken_ns[i]),
                int(kernels.usual_ns[i]),
            )
            for i in order.tolist()
        ),
    )
