"""The host launches work more slowly than the device finishes it."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.launches import idle_by_launching_operator, launch_queue_table
from tb_perfadvisor.rules.finding import Column, Finding, Remedy, Saving, Table, costliest
from tb_perfadvisor.rules.savings.launching import without_launching
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.host.compiled_regions import runs_compiled_kernels
from tb_perfadvisor.signals.host.idle_owners import LAUNCHING, IdleOwner, idle_without
from tb_perfadvisor.signals.host.launch_gaps import LONGEST_LAUNCH_GAP_NS, short_and_long_gaps
from tb_perfadvisor.signals.host.launch_queue import launch_queue
from tb_perfadvisor.signals.host.optimizer_loops import optimizer_loop
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import (
    Intervals,
    intersect,
    join,
    total_ns,
)
from tb_perfadvisor.units import format_duration, format_share

_GRAPHS = Remedy(
    text="Capture the step in CUDA graphs through torch.compile: one launch replaces thousands.",
    snippet='model = torch.compile(model, mode="reduce-overhead")',
    framework="pytorch",
    reference="https://pytorch.org/docs/stable/generated/torch.compile.html",
)
_COMPILE = Remedy(
    text="Compile the model: there are fewer, fused kernels, and no eager dispatch.",
    snippet="model = torch.compile(model)",
    framework="pytorch",
    reference="https://pytorch.org/docs/stable/generated/torch.compile.html",
)
_OPTIMIZER = Remedy(
    text="Update all parameters in one fused kernel.",
    snippet="optimizer = torch.optim.AdamW(model.parameters(), fused=True)",
    framework="pytorch",
    reference="https://pytorch.org/docs/stable/optim.html",
)
_BATCH = Remedy(
    text="Give each launch more work: a larger batch needs the same number of launches.",
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
        text="Put the whole step under one jit, with several steps in a scan.",
        snippet=(
            "@jax.jit\n"
            "def train_steps(state, batches):\n"
            "    return jax.lax.scan(train_step, state, batches)"
        ),
        framework="jax",
        reference="https://docs.jax.dev/en/latest/_autosummary/jax.lax.scan.html",
    ),
)


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
    short gaps. Left out are idle time that other rules report (synchronizations, loops over the
    parameters in the optimizer and in zero_grad, eager operators of TensorFlow and JAX, graph
    breaks of PyTorch) and gaps of more than two milliseconds, which are not caused by launching.

    Low is the time inside launch calls, minus the estimated cost of recording them. Expected adds
    framework and Python code, again minus the cost of recording. High adds unexplained time. Where
    the profile allows it, expected is what the steps save in a replay without any launch calls and
    framework code, minus the cost of recording in them. Short kernels alone are no finding: if
    launches find work queued, the host is fast enough.

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
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS)
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
                f"The device idles {per_step(total, signals)} because the host launches work too"
                f" slowly: {format_share(queue.empty_share)} of launches find an empty queue, and"
                f" {count_per_step(count, 'kernel', signals)} take {format_duration(mean_ns)} each"
                " on average."
            ),
            saving=Saving(
                low,
                max(expected - recording, low),
                total,
                claims,
                "measured",
                (without_launching(signals, join(launching, framework, python), long_gaps),),
            ),
            evidence=(
                Table(
                    "What the host did while the device idled",
                    (
                        Column("cause", "The host was"),
                        Column("idle_ns", "Device idle, all steps", "ns"),
                    ),
                    (
                        ("in launch calls", total_ns(launching)),
                        ("in framework code", total_ns(framework)),
                        ("in Python", total_ns(python) if has_stacks else None),
                        ("not recorded", total_ns(unexplained)),
                        ("of the above: recording (estimated)", recording),
                    ),
                ),
                launch_queue_table(queue),
                idle_by_launching_operator(signals, claims),
                costliest(
                    "Launches after the longest gaps",
                    signals.worker,
                    idle.launch_row[ended],
                    length[ended],
                ),
            ),
            remedies=_remedies(signals, launching, join(framework, python)),
        )


def _remedies(signals: Signals, launching: Intervals, eager: Intervals) -> tuple[Remedy, ...]:
    """Remedies for what takes most of the host's time come first."""
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
        specific: tuple[Remedy, ...] = () if is_compiled else (_COMPILE,)
    elif is_compiled:
        specific = (_GRAPHS,)
    else:
        specific = (_GRAPHS, _COMPILE) if graphs else (_COMPILE, _GRAPHS)
    has_optimizer = len(optimizer_loop(signals).steps) > 0
    return (*specific, *((_OPTIMIZER,) if has_optimizer else ()), _BATCH, *_XLA)
