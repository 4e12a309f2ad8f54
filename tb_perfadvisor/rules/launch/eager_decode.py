"""Decode steps of an inference server launch their kernels one by one."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.launches import idle_by_host_state, idle_by_launching_operator
from tb_perfadvisor.rules.evidence.server_steps import batches_table
from tb_perfadvisor.rules.finding import Finding, Saving, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.core.steps.server_annotations import StepKind
from tb_perfadvisor.signals.host.idle_owners import LAUNCHING, OVERRIDING, idle_without
from tb_perfadvisor.signals.launch.gaps import LONGEST_LAUNCH_GAP_NS, short_and_long_gaps
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.signals.serving.server_steps import Mask, ServerSteps, server_steps
from tb_perfadvisor.trace.intervals import Intervals, intersect, join, overlap_ns, total_ns, union
from tb_perfadvisor.whatif import Remove

_KEPT_SHARE = 0.25
"""The part of the framework's code that stays at worst: attention may have to run outside of the
graphs, so that each step replays one for each layer."""


class EagerDecode(Rule):
    """A server launches the kernels of its decode steps one by one, and the device waits for them.

    What it finds
    -------------
    Decode steps of an inference server that replay no GPU graph (CUDA or HIP), and in which the
    device idles while the host launches.

    Why it matters
    --------------
    A decode step is short, because it processes one token of each request. Launching its hundreds
    of kernels takes the host as long or longer. A server records a graph for each of some batch
    sizes, and launches batches above the largest size kernel by kernel.

    How it is measured
    ------------------
    As in *launch-bound*, but only from the first to the last device event of decode steps without a
    replay: the idle time in gaps of up to two milliseconds, without what other rules report.
    Preparing the step's inputs before that remains with a graph. Expected is the part in launch
    calls, framework code and Python. Low is the time in launch calls and three quarters of that in
    framework code, minus the estimated cost of recording. High adds unexplained time. Kernels
    within a graph follow each other without a gap in recorded replays of vLLM and SGLang.

    When to ignore
    --------------
    When the model or its attention cannot run in graphs, or while shapes are debugged. Recording
    with stacks and shapes slows launches, but hardly a replay.

    How to verify
    -------------
    On the page Serving, all decode steps replay graphs, and their steps take little longer than the
    device needs.

    References:
    ----------
    vLLM documentation, "CUDA Graphs"; SGLang documentation, "Server Arguments"; TensorRT-LLM
    documentation, "CudaGraphConfig".
    """

    id = "eager-decode"
    title = "Replay GPU graphs in decode steps"
    category = "launch"
    refines = "launch-bound"
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS)

    minimum_share = Limit(
        0.02, "share", "Less is not worth the memory that more graphs take on the device."
    )
    minimum_launches = Limit(
        30, "count", "With fewer launches, the model ran elsewhere, or in compiled pieces."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the device waits for launches in decode steps."""
        steps = server_steps(signals)
        if steps is None:
            return
        decodes = steps.is_kind(StepKind.DECODE)
        eager = decodes & (steps.graphs == 0) & (steps.launches >= self.minimum_launches)
        idle = _launch_idle(signals, union(steps.first_ns[eager], steps.last_ns[eager]))
        launching = intersect(signals.attribution.of(Cause.LAUNCHING), idle)
        framework = intersect(signals.attribution.of(Cause.FRAMEWORK), idle)
        python = intersect(signals.attribution.of(Cause.PYTHON), idle)
        unexplained = intersect(
            signals.attribution.of(Cause.UNEXPLAINED, Cause.SYNCHRONIZATION), idle
        )
        claims = join(launching, framework, python, unexplained)
        total = total_ns(claims)
        if self.is_minor(total, signals):
            return
        removed = join(launching, framework)
        recording = profiler_overhead(signals)
        low = total_ns(removed) - round(_KEPT_SHARE * total_ns(framework))
        low = max(low - recording.within_ns(removed), 0)
        count = int(eager.sum())
        launches = float(steps.launches[eager].mean())
        of_all = f"{count:,} of {int(decodes.sum()):,} decode steps"
        yield Finding(
            instance=f"{of_all} replay none",
            summary=(
                f"{of_all} replay no GPU graph: they launch {launches:,.0f} kernels and copies"
                f" each, for which the device idles {per_step(total, signals)}."
                f"{_largest_graph(steps, decodes, eager)}"
            ),
            saving=Saving(
                low,
                total_ns(join(launching, framework, python)),
                total,
                claims,
                "measured",
                (Remove(claims, is_launching=True),),
            ),
            evidence=(
                batches_table(steps, decodes),
                idle_by_host_state(signals, claims, recording.within_ns(claims)),
                idle_by_launching_operator(signals, claims),
                costliest(
                    "Decode steps that the host launches",
                    signals.worker,
                    steps.row[eager],
                    overlap_ns(claims, steps.first_ns[eager], steps.last_ns[eager]),
                ),
            ),
            remedies=advise("device-graphs", "graph-sizes", "server-graphs"),
        )


def _launch_idle(signals: Signals, windows: Intervals) -> Intervals:
    """Idle time in short gaps that no more specific rule reports, within some windows."""
    available = idle_without(signals, *OVERRIDING, *LAUNCHING)
    short_gaps, _ = short_and_long_gaps(signals.attribution.idle, LONGEST_LAUNCH_GAP_NS)
    return intersect(intersect(available, short_gaps), windows)


def _largest_graph(steps: ServerSteps, decodes: Mask, eager: Mask) -> str:
    """Up to which batch steps replay graphs, if all that don't have larger batches."""
    replayed = steps.decode_requests[decodes & (steps.graphs > 0)]
    launched = steps.decode_requests[eager]
    if not len(replayed) or launched.min() < 0 or launched.min() <= replayed.max():
        return ""
    return (
        f" They have {launched.min():,} requests or more; those of up to {replayed.max():,} replay"
        " one."
    )
