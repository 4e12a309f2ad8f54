"""The host cannot launch work as fast as the device finishes it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, Remedy, Saving, Table, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.core.attribution import input_waits, states_of
from tb_perfadvisor.signals.host.compiled_regions import runs_compiled_kernels
from tb_perfadvisor.signals.host.idle_owners import LAUNCHING, IdleOwner, idle_without
from tb_perfadvisor.signals.host.launch_gaps import LONGEST_LAUNCH_GAP_NS, short_and_long_gaps
from tb_perfadvisor.signals.host.launch_queue import LaunchQueue, launch_queue
from tb_perfadvisor.signals.host.optimizer_loops import optimizer_loop
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import (
    Intervals,
    intersect,
    join,
    minus,
    overlap_ns,
    total_ns,
)
from tb_perfadvisor.units import format_duration, format_share
from tb_perfadvisor.whatif import Remove

_GRAPHS = Remedy(
    text="Capture the step in CUDA graphs through torch.compile: one launch replaces thousands.",
    snippet='model = torch.compile(model, mode="reduce-overhead")',
    framework="pytorch",
    reference="https://pytorch.org/docs/stable/generated/torch.compile.html",
)
_COMPILE = Remedy(
    text="Compile the model: fused kernels are fewer, and what is left costs no eager dispatch.",
    snippet="model = torch.compile(model)",
    framework="pytorch",
    reference="https://pytorch.org/docs/stable/generated/torch.compile.html",
)
_OPTIMIZER = Remedy(
    text="Let one fused kernel update all parameters.",
    snippet="optimizer = torch.optim.AdamW(model.parameters(), fused=True)",
    framework="pytorch",
    reference="https://pytorch.org/docs/stable/optim.html",
)
_BATCH = Remedy(
    text="Give each launch more work: a larger batch takes the same number of launches.",
    snippet="loader = DataLoader(dataset, batch_size=2 * batch_size, num_workers=4)",
    framework="pytorch",
    reference="https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
)
_XLA = (
    Remedy(
        text="Compile the step with XLA, and run several steps per call.",
        snippet=(
            "model.compile(optimizer=optimizer, loss=loss, jit_compile=True, "
            "steps_per_execution=10)"
        ),
        framework="tensorflow",
        reference="https://www.tensorflow.org/xla",
    ),
    Remedy(
        text="Put the whole step under one jit, several steps in a scan.",
        snippet=(
            "@jax.jit\n"
            "def train_steps(state, batches):\n"
            "    return jax.lax.scan(train_step, state, batches)"
        ),
        framework="jax",
        reference="https://docs.jax.dev/en/latest/_autosummary/jax.lax.scan.html",
    ),
)

_LAUNCHING = (EventKind.LAUNCH, EventKind.RUNTIME, EventKind.OPERATOR)


class LaunchBound(Rule):
    """The device's queue is empty while the host is busy launching the next kernel.

    What it finds
    -------------
    Idle time of the device in the middle of a step, ended by a kernel that the host had not
    launched when the idle began: the host is in the runtime, the framework or Python.

    Why it matters
    --------------
    Eager frameworks spend some 5-20 microseconds on the host for each operator. Kernels
    shorter than that leave the device idle in between, and a faster device gains nothing.

    How it is measured
    ------------------
    The exclusive idle time of the causes *launching* and *framework*, and of *Python* and
    *unexplained* in short gaps, less what synchronizations induce (they have a rule of their
    own), what loops over the parameters cause (optimizer, zeroing of gradients) and eager
    operators of TensorFlow and JAX, or graph breaks of PyTorch, and less gaps of more than two
    milliseconds: those are no launches. Low is the time inside launch calls alone, less what
    recording is estimated to cost the host in it; expected adds framework and Python, less the
    same, and high is all of it with what is unexplained. Where the profile allows it, expected
    is what the steps save when they are re-timed without all launch calls and framework code,
    less what recording is seen to have cost in them. Short kernels alone are no finding: a host
    that runs ahead of them, so that launches find work queued, is not late.

    When to ignore
    --------------
    When the profile was recorded with stacks and shapes: recording slows the host, by up to
    half for tiny operators, so that a step looks more launch-bound than it is. The evidence
    says what it is estimated to cost; profile once without both before acting.

    How to verify
    -------------
    Double the batch: if the step time hardly grows, it was launch-bound. After the change the
    device is busy for a larger share and launches per step fall.

    References:
    ----------
    PyTorch documentation, "CUDA semantics: CUDA Graphs"; TensorFlow guide, "Optimize
    TensorFlow GPU performance with the TensorFlow Profiler".
    """

    id = "launch-bound"
    title = "Launch less, or launch it together"
    category = "launch"
    reads_sums = True
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "Some idle between kernels is left in well-tuned eager programs."
    )
    longest_gap_ns = Limit(
        LONGEST_LAUNCH_GAP_NS,
        "ns",
        "A longer stretch without a launch is a stall with a cause of its own.",
    )
    minimum_empty_share = Limit(
        0.05,
        "share",
        "A host that finds the device idle at fewer than one launch in twenty runs ahead of it.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when launching holds the device up."""
        attribution, idle = signals.attribution, signals.attribution.idle
        short_gaps, long_gaps = short_and_long_gaps(idle, self.longest_gap_ns)
        available = intersect(
            idle_without(signals, IdleOwner.SYNCHRONIZATION, *LAUNCHING), short_gaps
        )

        def of(*causes: Cause) -> Intervals:
            return intersect(attribution.of(*causes), available)

        launching = of(Cause.LAUNCHING)
        framework, python = of(Cause.FRAMEWORK), of(Cause.PYTHON)
        unexplained = of(Cause.UNEXPLAINED, Cause.SYNCHRONIZATION)
        claims = join(launching, framework, python, unexplained)
        total = total_ns(claims)
        if self.is_minor(total, signals):
            return
        queue = launch_queue(signals)
        if (queue.empty_share or 0.0) < self.minimum_empty_share:
            return
        expected = total_ns(join(launching, framework, python))
        recording = profiler_overhead(signals).within_ns(claims)
        low = max(total_ns(launching) - recording, 0)
        length = idle.end_ns - idle.start_ns
        ended = ~idle.is_queued & (idle.launch_row >= 0)
        ended &= length <= self.longest_gap_ns
        kernels = signals.kernels
        has_stacks = len(signals.trace.rows(EventKind.PYTHON)) > 0
        count = sum(kernel.count for kernel in kernels)
        mean_ns = sum(kernel.total_ns for kernel in kernels) / count if count else None
        yield Finding(
            summary=(
                f"The device idles {per_step(total, signals)} for want of launched work:"
                f" {format_share(queue.empty_share)} of the launches find it with an empty queue;"
                f" {count_per_step(count, 'kernel', signals)} take {format_duration(mean_ns)}"
                " each on average."
            ),
            saving=Saving(
                low,
                max(expected - recording, low),
                total,
                claims,
                "measured",
                (_launched_together(signals, join(launching, framework, python), long_gaps),),
            ),
            evidence=(
                Table(
                    "What the host did while the device idled",
                    (Column("cause", "The host was"), Column("idle_ns", "Idle, all steps", "ns")),
                    (
                        ("in launch calls", total_ns(launching)),
                        ("in framework code", total_ns(framework)),
                        ("in Python", total_ns(python) if has_stacks else None),
                        ("not recorded", total_ns(unexplained)),
                        ("recording all this (estimated, part of the above)", recording),
                    ),
                ),
                _run_ahead(queue),
                _by_operator(signals, claims),
                costliest(
                    "Launches that ended the longest gaps",
                    signals.worker,
                    idle.launch_row[ended],
                    length[ended],
                ),
            ),
            remedies=_remedies(signals, launching, join(framework, python)),
        )


def _run_ahead(queue: LaunchQueue) -> Table:
    """How far the host was ahead of the device."""
    return Table(
        "How far launches run ahead of the device",
        (
            Column("empty_share", "Launches that find nothing queued", "share"),
            Column("median_depth", "Work queued at a launch (median)", "count"),
            Column("median_lead_ns", "From launch to start (median)", "ns"),
        ),
        ((queue.empty_share, queue.median_depth, queue.median_lead_ns),),
    )


def _remedies(signals: Signals, launching: Intervals, eager: Intervals) -> tuple[Remedy, ...]:
    """Those that go for what takes the host's time, first."""
    trace = signals.trace
    launches = trace.rows(EventKind.LAUNCH)
    graphs = total_ns(launching) > total_ns(eager)
    runs_graphs = any(
        "GraphLaunch" in trace.strings[name]
        for name in distinct(trace.events.name[launches]).tolist()
    )
    has_graphs = any(device.kind == "gpu" for device in trace.devices) or not trace.devices
    is_compiled = runs_compiled_kernels(signals)
    if runs_graphs or not has_graphs:
        own: tuple[Remedy, ...] = () if is_compiled else (_COMPILE,)
    elif is_compiled:
        own = (_GRAPHS,)
    else:
        own = (_GRAPHS, _COMPILE) if graphs else (_COMPILE, _GRAPHS)
    has_optimizer = len(optimizer_loop(signals).steps) > 0
    return (*own, *((_OPTIMIZER,) if has_optimizer else ()), _BATCH, *_XLA)


def _launched_together(signals: Signals, idle: Intervals, long_gaps: Intervals) -> Remove:
    """The steps without what the host does to launch, whether the device waits for it or not.

    One launch for all leaves nothing of it, so that a device that becomes faster gains as well.
    """
    window, step_track = signals.attribution, signals.step_track
    calls = signals.trace.rows(EventKind.LAUNCH)
    tracks = (step_track, *distinct(signals.trace.events.track[calls]).tolist())
    others = join(
        window.intervals[Cause.BETWEEN_STEPS],
        input_waits(signals.trace, tracks),
        states_of(signals.trace, (EventKind.COMPILE,), tracks),
        long_gaps,
    )
    host = minus(states_of(signals.trace, _LAUNCHING, tracks), others)
    return Remove(join(host, idle), is_launching=True)


def _by_operator(signals: Signals, claims: Intervals) -> Table:
    """Idle by the operator whose launch ended the gap."""
    trace, idle = signals.trace, signals.attribution.idle
    known = idle.launch_row >= 0
    operator = signals.launching_operator[idle.launch_row[known]]
    covered = overlap_ns(claims, idle.start_ns[known], idle.end_ns[known])
    name = np.where(operator >= 0, trace.events.name[operator], -1)
    names, inverse, count = np.unique(name, return_inverse=True, return_counts=True)
    total = np.bincount(inverse, weights=covered, minlength=len(names)).astype(np.int64)
    order = np.argsort(-total, kind="stable")
    return Table(
        "Operators whose launch the device waited for",
        (
            Column("name", "Operator"),
            Column("count", "Gaps", "count"),
            Column("idle_ns", "Idle before", "ns"),
        ),
        tuple(
            (trace.text(int(names[i])) or "(no operator)", int(count[i]), int(total[i]))
            for i in order.tolist()
            if total[i] > 0
        ),
    )
