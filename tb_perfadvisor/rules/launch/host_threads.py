"""Host threads that others keep from running."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.host.preempted_calls import PreemptedCalls, preempted_calls
from tb_perfadvisor.signals.input.tfdata import tfdata
from tb_perfadvisor.signals.launch.delays import (
    compare_by_kernel,
    launch_delays,
)
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.units import format_duration
from tb_perfadvisor.whatif import Remove


class HostPreempted(Rule):
    """The device idles because the operating system runs something else on the host's cores."""

    id = "host-preempted"
    title = "Leave the launching threads a core of their own"
    needs = (Need.DEVICE_EVENTS, Need.HOST_EVENTS)
    is_preview = False

    minimum_share = Limit(0.01, "share", "Any machine sometimes runs something else for a moment.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        calls, trace = preempted_calls(signals), signals.trace
        total = total_ns(calls.idle)
        if self.is_minor(total, signals):
            return
        yield Finding(
            instance=f"{len(calls)} calls lost theirs",
            summary=(
                f"The device idles {per_step(total, signals)} because the operating system ran"
                f" something else instead of the launching thread: {_longest(signals, calls)}."
            ),
            saving=Saving(
                total_ns(calls.trivial_idle),
                total,
                total,
                calls.idle,
                "measured",
                (Remove(calls.stalled),),
            ),
            evidence=(
                events_by_name(
                    "Calls that lost their core",
                    "Call",
                    trace,
                    calls.row,
                    (
                        (Column("excess_ns", "Longer than usual by", "ns"), calls.excess_ns),
                        (Column("idle_ns", "Device idle", "ns"), calls.idle_ns),
                    ),
                ),
                costliest("Longest of these calls", signals.worker, calls.row, calls.excess_ns),
            ),
            remedies=advise("rank-cores", "fewer-threads", "pinned-process", "container-cpu-limit"),
        )


def _longest(signals: Signals, calls: PreemptedCalls) -> str:
    """The trivial call that took longest, and how many other calls there are."""
    events = signals.trace.events
    rows, excess_ns = calls.row[calls.is_trivial], calls.excess_ns[calls.is_trivial]
    row = rows[excess_ns.argmax()]
    name, duration_ns = signals.trace.text(int(events.name[row])), int(events.duration_ns[row])
    usual_ns = duration_ns - int(excess_ns.max())
    return (
        f"{len(calls)} calls took milliseconds, such as {name} with"
        f" {format_duration(duration_ns)}, usually {format_duration(usual_ns)}"
    )


class HostThreadContention(Rule):
    """Kernels are launched late while the input pipeline keeps all cores busy."""

    id = "host-thread-contention"
    title = "Keep the input pipeline off the launching threads' cores"
    refines = "launch-bound"
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS, Need.ITERATORS)

    minimum_share = Limit(
        0.03, "share", "Launches vary by as much from step to step without contention."
    )
    minimum_slowdown = Limit(
        1.5, "ratio", "A launch takes up to 50 % longer if its data is in another core's cache."
    )
    fewest_launches = 20
    """The mean of fewer launches, with or without busy cores, depends on outliers."""

    def check(self, signals: Signals) -> Iterable[Finding]:
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
                costliest(
                    "Launches most delayed by busy cores",
                    signals.worker,
                    launches[late],
                    kernels.excess_ns[late],
                ),
            ),
            remedies=advise("private-gpu-threads", "fewer-input-threads"),
        )
