"""The host launches work more slowly than the device finishes it."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step, share_of_each, time_of_each
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.launches import (
    idle_by_host_state,
    idle_by_launching_operator,
    launch_queue_table,
    launched_kernels,
)
from tb_perfadvisor.rules.evidence.operator_sums import operator_kinds, operator_sums_table
from tb_perfadvisor.rules.finding import Finding, Saving, costliest
from tb_perfadvisor.rules.savings.launching import without_launching
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.host.idle_owners import (
    LAUNCHING,
    OVERRIDING,
    IdleOwner,
    idle_owners,
    idle_without,
)
from tb_perfadvisor.signals.host.optimizer_loops import optimizer_loop
from tb_perfadvisor.signals.launch.device_graphs import in_graphs
from tb_perfadvisor.signals.launch.gaps import LONGEST_LAUNCH_GAP_NS, short_and_long_gaps
from tb_perfadvisor.signals.launch.queue import launch_queue
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    intersect,
    join,
    total_ns,
)
from tb_perfadvisor.units import format_duration, format_share

_GOOD_PART = 0.1
"""An optimizer in which less of the idle time passes gets no advice here."""
KEPT_SHARE = 0.25
"""The part of the framework's code that stays at worst: a compiled model still has some operators
that run one by one, where its graph breaks."""

_UNKNOWN = " For more than half of the time, nothing in the profile tells what the host does."


class LaunchBound(Rule):
    """The device runs out of queued work while the host is busy launching the next kernel.

    What it finds
    -------------
    Idle time in the middle of a step that ends with a kernel that the host had not launched when
    the idle began, because the host was still in the runtime, the framework or Python.

    Why it matters
    --------------
    Eager frameworks spend 5 to 20 microseconds of host time on each operator. Shorter kernels
    leave the device idle in between, and a faster device gains nothing.

    How it is measured
    ------------------
    The idle time attributed to *launching* and *framework*, and to *Python* and *unexplained* in
    short gaps. Left out are idle time that other rules report (calls that lost their core,
    synchronizations, loops over the parameters in the optimizer and in zero_grad, eager operators
    of TensorFlow and JAX, graph breaks of PyTorch, preparing the replay of a GPU graph, recording
    one, slow launches of one kernel) and gaps of more than two milliseconds, which are not caused
    by launching. A graph is one launch, however many kernels it has.

    Low is the time inside launch calls and three quarters of the time in framework code, minus the
    estimated cost of recording. Expected adds the rest of that and Python code; high adds
    unexplained time. Where the profile allows it, expected is what the steps save in a replay
    without any launch calls and framework code. The cost of recording is subtracted from it. Short
    kernels alone are no finding: if launches find work queued, the host is fast enough.

    Where a recorder only sums up, its own time of preparing launches while the device idles counts.
    High is all of it, expected three quarters, low half: no event tells which launches matter.

    When to ignore
    --------------
    When the profile was recorded with stacks and shapes: recording slows the host by up to half
    for tiny operators, so that a step looks more launch-bound than it is. The evidence shows the
    estimated cost; record once without both before you act.

    How to verify
    -------------
    Double the batch size: if the step time hardly grows, the step was launch-bound. After the
    change, the device is busy for a larger share of the step, and there are fewer launches per
    step.

    References:
    ----------
    PyTorch documentation, "CUDA semantics: CUDA Graphs"; TensorFlow guide, "Optimize TensorFlow
    GPU performance with the TensorFlow Profiler".
    """

    id = "launch-bound"
    title = "Launch fewer kernels, or launch them together"
    category = "launch"
    reads_sums = True
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS, Need.EVERY_LAUNCH)
    needs_of_sums = (Need.DEVICE_EVENTS, Need.HOST_EVENTS)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "Well-tuned eager programs still have some idle time between kernels."
    )
    longest_gap_ns = Limit(
        LONGEST_LAUNCH_GAP_NS,
        "ns",
        "A longer stretch without a launch has another cause, such as Python code.",
    )
    minimum_empty_share = Limit(
        0.05,
        "share",
        "If fewer than one launch in twenty finds an empty queue, the host is fast enough.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the device waits for launches."""
        if signals.trace.totals is not None:
            yield from self._of_sums(signals)
            return
        attribution, idle = signals.attribution, signals.attribution.idle
        short_gaps, long_gaps = short_and_long_gaps(idle, self.longest_gap_ns)
        owned = (*OVERRIDING, *LAUNCHING, IdleOwner.SLOW_LAUNCH)
        available = intersect(idle_without(signals, *owned), short_gaps)
        owners = idle_owners(signals)
        others = join(
            long_gaps, owners[IdleOwner.REPLAY_PREPARATION], owners[IdleOwner.SLOW_LAUNCH]
        )

        def of(*causes: Cause) -> Intervals:
            return intersect(attribution.of(*causes), available)

        launching = of(Cause.LAUNCHING)
        framework, python = of(Cause.FRAMEWORK), of(Cause.PYTHON)
        unexplained = of(Cause.UNEXPLAINED, Cause.SYNCHRONIZATION)
        claims = join(launching, framework, python, unexplained)
        is_nameless = 2 * total_ns(of(Cause.UNEXPLAINED)) > total_ns(claims)
        total = total_ns(claims)
        if self.is_minor(total, signals):
            return
        queue = launch_queue(signals)
        if (queue.empty_share or 0.0) < self.minimum_empty_share:
            return
        expected = total_ns(join(launching, framework, python))
        recording = profiler_overhead(signals).within_ns(claims)
        removed = join(launching, framework)
        low = total_ns(removed) - round(KEPT_SHARE * total_ns(framework))
        low = max(low - profiler_overhead(signals).within_ns(removed), 0)
        length = idle.end_ns - idle.start_ns
        ended = ~idle.is_queued & (idle.launch_row >= 0)
        ended &= length <= self.longest_gap_ns
        rows = queue.row[~in_graphs(signals.trace, queue.row)]
        rows = rows[signals.trace.events.kind[rows] == EventKind.KERNEL]
        yield Finding(
            instance=f"the device idles {share_of_each(total, signals)}",
            summary=(
                f"The host launches work too slowly, which costs {time_of_each(total, signals)}:"
                f" {format_share(queue.empty_share)} of launches find an empty queue, and"
                f" {launched_kernels(signals, rows, total)}.{_UNKNOWN if is_nameless else ''}"
            ),
            saving=Saving(
                low,
                expected,
                total,
                claims,
                "measured",
                (without_launching(signals, join(launching, framework, python), others),),
            ),
            evidence=(
                idle_by_host_state(signals, claims, recording),
                launch_queue_table(queue),
                idle_by_launching_operator(signals, claims),
                costliest(
                    "Launches after the longest gaps",
                    signals.worker,
                    idle.launch_row[ended],
                    length[ended],
                ),
            ),
            remedies=advise(
                *(("record-host-code",) if is_nameless else ()),
                *_changes(signals, launching, join(framework, python)),
            ),
        )

    def _of_sums(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding from a recorder's sum of the time in launches."""
        claims = signals.attribution.intervals[Cause.LAUNCHING]
        total = total_ns(claims)
        if self.is_minor(total, signals):
            return
        kinds = operator_kinds(signals, on_device=True)
        short = ""
        if kinds:
            count = sum(kind.count for kind in kinds)
            mean_ns = sum(kind.self_ns for kind in kinds) / max(count, 1)
            short = f": operators on the device take {format_duration(mean_ns)} each on average"
        yield Finding(
            summary=(
                f"The device idles {per_step(total, signals)} while the host prepares its work, by"
                f" the profiler's sums{short}."
            ),
            saving=Saving(total // 2, total * 3 // 4, total, claims, "heuristic"),
            evidence=(operator_sums_table(kinds, on_device=True),) if kinds else (),
            remedies=advise(*_changes(signals, claims, EMPTY)),
        )


def _changes(signals: Signals, launching: Intervals, eager: Intervals) -> tuple[str, ...]:
    """What helps against what takes most of the host's time come first."""
    is_launching = total_ns(launching) > total_ns(eager)
    first = ("device-graphs", "compile") if is_launching else ("compile", "device-graphs")
    updating = intersect(join(launching, eager), optimizer_loop(signals).steps)
    is_updating = total_ns(updating) > _GOOD_PART * total_ns(join(launching, eager))
    optimizer = ("fused-optimizer",) if is_updating else ()
    return (
        *first,
        *optimizer,
        "more-in-graphs",
        "graph-sizes",
        "overlapped-schedule",
        "larger-batch",
        "xla-steps",
    )
