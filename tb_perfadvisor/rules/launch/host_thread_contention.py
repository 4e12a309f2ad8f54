"""The input pipeline takes the cores that the launching threads need."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, Remedy, Saving, Table, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.host.launch_delays import LaunchDelays, launch_delays
from tb_perfadvisor.signals.input.tfdata import tfdata
from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.trace.tables import Float64, Int32, Int64
from tb_perfadvisor.units import format_duration

_REMEDIES = (
    Remedy(
        text="Give the launching of kernels threads of its own, before TensorFlow is imported.",
        snippet=(
            "import os\n"
            "\n"
            'os.environ["TF_GPU_THREAD_MODE"] = "gpu_private"\n'
            'os.environ["TF_GPU_THREAD_COUNT"] = "2"\n'
            "import tensorflow as tf"
        ),
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/gpu_performance_analysis",
    ),
    Remedy(
        text="Leave cores to the step: give the pipeline a pool of its own, with fewer threads "
        "than there are cores.",
        snippet=(
            "options = tf.data.Options()\n"
            "options.threading.private_threadpool_size = max(os.cpu_count() - 4, 1)\n"
            "dataset = dataset.with_options(options)"
        ),
        framework="tensorflow",
        reference="https://www.tensorflow.org/api_docs/python/tf/data/ThreadingOptions",
    ),
)


class HostThreadContention(Rule):
    """Kernels are launched late while the input pipeline keeps all cores busy.

    What it finds
    -------------
    Idle before kernels that were launched while at least as many threads executed functions of a
    tf.data pipeline as it may use cores, beyond the idle before the same kernels at other times.

    Why it matters
    --------------
    TensorFlow launches kernels from the threads that also decode images. When all are at work a
    launch of microseconds waits until a core, or a thread of the pool, is free again.

    How it is measured
    ------------------
    For each kernel by name, the mean idle before it when the cores were taken, less the mean idle
    before it when they were not, times how often they were taken: expected is their sum. High is
    without setting off launches that were quicker all the same; low is 0, as other things may
    happen at the same time. Waiting for input itself, synchronizations, and gaps of more than two
    milliseconds are left out.

    When to ignore
    --------------
    When the step waits for its input as well: with fewer threads for the pipeline it waits longer;
    and when the functions wait for files, which takes threads, but no cores.

    How to verify
    -------------
    Launches take as long with the pipeline at work as without; the device idles less.

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
        0.03, "share", "Launches differ by as much from step to step without any contention."
    )
    minimum_slowdown = Limit(
        1.5, "ratio", "A launch takes half as long again when another core's cache held its data."
    )
    fewest_launches = Limit(
        20, "count", "Of fewer with, or without, the cores taken the mean is one outlier's."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when launches are slower while the pipeline is at work."""
        cores = tfdata(signals).cores
        if cores is None:
            return
        delays = launch_delays(signals)
        kernels = _compare(signals, delays, delays.input_threads >= cores)
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
            summary=(
                f"While functions of the input pipeline take all {cores} cores the device idles"
                f" for {format_duration(mean_ns)} before a kernel is launched, at other times for"
                f" {format_duration(usual_ns)}: {per_step(expected_ns, signals)} more."
            ),
            saving=Saving(0, expected_ns, high_ns, claims, "measured"),
            evidence=(
                _by_threads(delays),
                _by_kernel(signals, kernels),
                costliest(
                    "The latest launches with all cores busy",
                    signals.worker,
                    launches[late],
                    kernels.excess_ns[late],
                ),
            ),
            remedies=_REMEDIES,
        )


class _Kernels(Struct, frozen=True):
    """Kernels that were launched at both kinds of times; columns are (names,)."""

    name: Int32
    taken: Int64
    """Launches with all cores busy."""
    free: Int64
    taken_ns: Float64
    """Idle before the former."""
    usual_ns: Float64
    """What it would have been at the pace of the latter."""
    excess_ns: Int64
    """For each event how much longer than usual the idle before it is; shape (events,)."""


def _compare(signals: Signals, delays: LaunchDelays, is_taken: NDArray[np.bool_]) -> _Kernels:
    names, inverse = unique_inverse(signals.trace.events.name[delays.row])
    size = len(names)

    def counted(of: NDArray[np.bool_]) -> Int64:
        return np.bincount(inverse[of], minlength=size).astype(np.int64)

    def summed(of: NDArray[np.bool_]) -> Float64:
        return np.bincount(inverse[of], delays.idle_ns[of], size).astype(np.float64)

    taken, free = counted(is_taken), counted(~is_taken)
    mean_ns = summed(~is_taken) / np.maximum(free, 1)
    both = (taken > 0) & (free > 0)
    excess = np.where(is_taken & both[inverse], delays.idle_ns - mean_ns[inverse], 0.0)
    return _Kernels(
        name=names[both],
        taken=taken[both],
        free=free[both],
        taken_ns=summed(is_taken)[both],
        usual_ns=(mean_ns * taken)[both],
        excess_ns=np.rint(np.maximum(excess, 0)).astype(np.int64),
    )


def _by_threads(delays: LaunchDelays) -> Table:
    """The idle before a kernel by how many threads the pipeline has at work."""
    threads, inverse, count = np.unique(
        delays.input_threads, return_inverse=True, return_counts=True
    )
    total = np.bincount(inverse, weights=delays.idle_ns, minlength=len(threads))
    return Table(
        "Launches by what the input pipeline does meanwhile",
        (
            Column("threads", "Threads in its functions", "count"),
            Column("count", "Launches", "count"),
            Column("mean_ns", "Idle before, on average", "ns"),
        ),
        tuple(
            (int(one), int(times), int(idle / times))
            for one, times, idle in zip(threads, count, total, strict=True)
        ),
    )


def _by_kernel(signals: Signals, kernels: _Kernels) -> Table:
    order = np.argsort(kernels.usual_ns - kernels.taken_ns, kind="stable")
    return Table(
        "Kernels that are launched late",
        (
            Column("name", "Kernel"),
            Column("taken", "Launched with all cores busy", "count"),
            Column("idle_ns", "Idle before them", "ns"),
            Column("usual_ns", "At the usual pace", "ns"),
        ),
        tuple(
            (
                signals.trace.text(int(kernels.name[one])),
                int(kernels.taken[one]),
                int(kernels.taken_ns[one]),
                int(kernels.usual_ns[one]),
            )
            for one in order.tolist()
        ),
    )
