"""The host cannot launch work as fast as the device finishes it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.base import (
    Finding,
    Limit,
    Remedy,
    Rule,
    Saving,
    count_per_step,
    per_step,
    share_of_window,
)
from tb_perfadvisor.rules.evidence import Column, Table, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.attribution import input_waits, states_of
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import (
    Intervals,
    intersect,
    join,
    minus,
    overlap_ns,
    total_ns,
    union,
)
from tb_perfadvisor.units import format_duration
from tb_perfadvisor.whatif import Remove

_REMEDIES = (
    Remedy(
        text=(
            "Capture the step in CUDA graphs through torch.compile: one launch replaces thousands."
        ),
        snippet='model = torch.compile(model, mode="reduce-overhead")',
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/generated/torch.compile.html",
    ),
    Remedy(
        text="Give each launch more work: a larger batch and, in training, a fused optimizer.",
        snippet="optimizer = torch.optim.AdamW(model.parameters(), fused=True)",
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/optim.html",
    ),
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
    *unexplained* in short gaps, less what synchronisations induce (they have a rule of their
    own). Low is the time inside launch calls alone, expected adds framework and Python, high
    adds what is unexplained in short gaps. Where the profile allows it, expected is what the
    steps save when they are re-timed without all launch calls and framework code.

    When to ignore
    --------------
    When the profile was recorded with stacks and shapes: recording slows the host, by up to
    half for tiny operators, so that a step looks more launch-bound than it is. Profile once
    without both before acting.

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
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "Some idle between kernels is left in well-tuned eager programs."
    )
    longest_gap_ns = Limit(
        2_000_000,
        "ns",
        "A longer stretch of Python is a stall with a cause of its own, not the cost of a launch.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when launching holds the device up."""
        attribution = signals.attribution
        idle = attribution.idle
        length = idle.end_ns - idle.start_ns
        short = ~idle.is_queued & (length <= self.limit("longest_gap_ns"))
        short_gaps = union(idle.start_ns[short], idle.end_ns[short])
        induced = signals.synchronisations.induced

        def of(*causes: Cause) -> Intervals:
            return minus(attribution.of(*causes), induced)

        launching = of(Cause.LAUNCHING)
        framework = of(Cause.FRAMEWORK)
        python = intersect(of(Cause.PYTHON), short_gaps)
        unexplained = intersect(of(Cause.UNEXPLAINED, Cause.SYNCHRONIZATION), short_gaps)
        claims = join(launching, framework, python, unexplained)
        total = total_ns(claims)
        share = share_of_window(total, signals)
        if total == 0 or share < self.limit("minimum_share"):
            return
        low = total_ns(launching)
        expected = low + total_ns(framework) + total_ns(python)
        ended = short & (idle.launch_row >= 0)
        kernels = signals.kernels
        has_stacks = len(signals.trace.rows(EventKind.PYTHON)) > 0
        count = sum(kernel.count for kernel in kernels)
        mean_ns = sum(kernel.total_ns for kernel in kernels) / count if count else None
        yield Finding(
            summary=(
                f"The device idles {per_step(total, signals)} for want of launched work;"
                f" {count_per_step(count, 'kernel', signals)} take {format_duration(mean_ns)}"
                " each on average."
            ),
            saving=Saving(
                low,
                expected,
                total,
                claims,
                "measured",
                (_launched_together(signals, join(launching, framework, python)),),
            ),
            evidence=(
                Table(
                    "What the host did while the device idled",
                    (Column("cause", "The host was"), Column("idle_ns", "Idle, all steps", "ns")),
                    (
                        ("in launch calls", low),
                        ("in framework code", total_ns(framework)),
                        ("in Python", total_ns(python) if has_stacks else None),
                        ("not recorded", total_ns(unexplained)),
                    ),
                ),
                _by_operator(signals, claims),
                costliest(
                    "Launches that ended the longest gaps",
                    signals.worker,
                    idle.launch_row[ended],
                    length[ended],
                ),
            ),
            remedies=_REMEDIES,
        )


def _launched_together(signals: Signals, idle: Intervals) -> Remove:
    """The steps without what the host does to launch, whether the device waits for it or not.

    One launch for all leaves nothing of it, so that a device that becomes faster gains as well.
    """
    window, step_track = signals.attribution, signals.step_track
    calls = signals.trace.rows(EventKind.LAUNCH)
    tracks = (step_track, *np.unique(signals.trace.events.track[calls]).tolist())
    others = join(
        window.intervals[Cause.BETWEEN_STEPS],
        input_waits(signals.trace, tracks),
        states_of(signals.trace, (EventKind.COMPILE,), tracks),
    )
    return Remove(join(minus(states_of(signals.trace, _LAUNCHING, tracks), others), idle))


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
