"""Short programs are dispatched one at a time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.host_code import host_code_table, stretch
from tb_perfadvisor.rules.evidence.made import step_loops
from tb_perfadvisor.rules.finding import (
    Column,
    Evidence,
    Finding,
    Saving,
)
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.host.idle_owners import OVERRIDING, IdleOwner, idle_without
from tb_perfadvisor.signals.host.looped_calls import looped_calls
from tb_perfadvisor.signals.host.self_time import self_time
from tb_perfadvisor.signals.launch.gaps import LONGEST_LAUNCH_GAP_NS, stretched_ns
from tb_perfadvisor.signals.launch.runtime_calls import dispatching
from tb_perfadvisor.signals.steps.around_steps import ProgramRuns, program_runs
from tb_perfadvisor.signals.workload.workload import Part, workload
from tb_perfadvisor.trace.intervals import (
    Intervals,
    intersect,
    join,
    last_before,
    minus,
    total_ns,
    union,
)
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.units import format_duration
from tb_perfadvisor.whatif import Remove

_FEWEST_RUNS, _FEWEST_MARKED_RUNS = 10, 3
"""Fewer runs do not show that the program continues like this, unless each is in a marked step."""
_MANY_PER_STEP = 10
"""Programs around a long one: converting inputs and reporting results take a few."""
_LONGEST_OF_KERAS_NS = 5_000_000
"""Between two steps of fit, Keras calls callbacks, reads metrics and prints a line: 1 to 2 ms on an
idle core, of which others may take a part."""


class SingleStepDispatch(Rule):
    """Programs are so short that the host cannot dispatch them as fast as they run.

    What it finds
    -------------
    Idle time between the runs of compiled programs, in gaps of up to two milliseconds (five between
    steps of Keras on the CPU, more on a busy machine) or inside of XLA's dispatch, while the host
    dispatches the next one: a single step in each call, as in Keras's `fit` with small batches, or
    several small jitted functions in each step.

    Why it matters
    --------------
    Calling a compiled function costs the host tens of microseconds or more, however short the
    program is. With many steps in one program, the device continues from one step to the next by
    itself.

    How it is measured
    ------------------
    The idle time that the host causes outside the runs of programs, if a typical program takes up
    to a millisecond (ten in TensorFlow on the CPU, where it runs in turns with Python), minus what
    synchronizations, operators dispatched one by one, and callbacks induce. If longer programs run
    as well, ten or more short ones per step are required, and only the idle time after these
    counts. High and
    expected are all of it, or what the steps save in a replay without it: with fifty steps per
    call, a fiftieth is left. Low is half of it, because the batches of all those steps must still
    be provided. In JAX on the CPU low is 0, because recording a short operation takes as long as
    running it. In TensorFlow on the CPU, high adds the time between operators: a loop over steps
    may begin the next one meanwhile.

    When to ignore
    --------------
    When the host must see the result of each step before the next one can begin, as in a game that
    runs outside the program.

    How to verify
    -------------
    The profile has fewer and longer programs, with almost no idle time between them.

    References:
    ----------
    TensorFlow guide, "Use TPUs", on steps_per_execution and loops within a tf.function; JAX
    documentation, `jax.lax.scan`.
    """

    id = "single-step-dispatch"
    title = "Run many steps in one call"
    category = "launch"
    refines = "launch-bound"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.DISPATCH)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "Running several steps in one program changes the training loop."
    )
    longest_run_ns = Limit(
        1_000_000,
        "ns",
        "While a longer program runs, the host has time to dispatch the next one.",
    )

    longest_run_on_cpu_ns = Limit(
        10_000_000,
        "ns",
        "TensorFlow on the CPU begins the next program after the one before: Keras's milliseconds"
        " between them add to each step.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the device waits for each dispatch."""
        runs = program_runs(signals)
        length_ns = runs.end_ns - runs.start_ns
        if not _repeats(signals, runs) or looped_calls(signals).functions:
            return
        claims = _between(signals, runs)
        on_cpu, framework = signals.device.is_host_only, signals.trace.source.framework
        in_turns = on_cpu and framework == "tensorflow"
        longest_ns = self.longest_run_on_cpu_ns if in_turns else self.longest_run_ns
        if _typical_ns(length_ns) > longest_ns:
            is_short = length_ns <= longest_ns
            if is_short.sum() < _MANY_PER_STEP * signals.steps.count:
                return
            claims = _after(claims, runs, is_short)
            length_ns = length_ns[is_short]
        total = total_ns(claims)
        if self.is_minor(total, signals):
            return
        low_ns = 0 if on_cpu and framework == "jax" else total // 2
        gaps = claims
        if in_turns:
            claims = join(gaps, intersect(signals.host_idle, runs.spans))
        subject = "No operator runs" if signals.device.is_host_only else "The device idles"
        yield Finding(
            instance=f"{count_per_step(len(length_ns), 'run', signals)}",
            summary=(
                f"{subject} for {per_step(total, signals)} between programs that are dispatched"
                f" one at a time ({count_per_step(len(length_ns), 'run', signals)} of"
                f" {format_duration(float(length_ns.mean()))} on average)."
            ),
            saving=Saving(low_ns, total, total_ns(claims), claims, "measured", (Remove(claims),)),
            evidence=(*_evidence(signals, gaps), *step_loops(signals)),
            remedies=advise("steps-per-call", "one-jit", "larger-keras-batch"),
        )


def _repeats(signals: Signals, runs: ProgramRuns) -> bool:
    """Whether the runs show how the program goes on."""
    steps = signals.steps
    is_marked = not steps.is_inferred and len(runs) >= len(steps) >= _FEWEST_MARKED_RUNS
    return len(runs) >= (_FEWEST_MARKED_RUNS if is_marked else _FEWEST_RUNS)


def _typical_ns(length_ns: Int64) -> float:
    """The mean duration of programs, weighted by duration.

    Among a few short programs, one that takes most of the time counts most.
    """
    length = length_ns.astype(float)
    return float((length**2).sum() / max(length.sum(), 1.0))


def _after(gaps: Intervals, runs: ProgramRuns, chosen: NDArray[np.bool_]) -> Intervals:
    """The gaps that follow some of the runs."""
    order = np.argsort(runs.end_ns, kind="stable")
    before = last_before(runs.end_ns[order], gaps[:, 0])
    return gaps[(before >= 0) & chosen[order][np.maximum(before, 0)]]


def _between(signals: Signals, runs: ProgramRuns) -> Intervals:
    """Idle between programs that nothing more specific explains."""
    idle = signals.attribution.idle
    longest_ns: float = LONGEST_LAUNCH_GAP_NS
    if signals.device.is_host_only and workload(signals).has(Part.KERAS):
        longest_ns = stretched_ns(_LONGEST_OF_KERAS_NS, signals.trace)
    is_short = ~idle.is_queued & (idle.end_ns - idle.start_ns <= longest_ns)
    available = idle_without(
        signals,
        *OVERRIDING,
        IdleOwner.EAGER_CALLS,
        IdleOwner.HOST_CALLBACK,
    )
    short = union(idle.start_ns[is_short], idle.end_ns[is_short])
    gaps = intersect(available, join(short, dispatching(signals)))
    return minus(gaps, runs.spans)


def _evidence(signals: Signals, claims: Intervals) -> tuple[Evidence, ...]:
    by_length = claims[np.argsort(claims[:, 1] - claims[:, 0], kind="stable")]
    host_code = self_time(signals.trace, signals.step_track, claims)
    return (
        stretch("Gap of median length", signals, by_length[len(claims) // 2], "no program runs"),
        host_code_table(
            "Host activity between programs",
            "Activity",
            Column("own_ns", "Between programs", "ns"),
            host_code,
            total_ns(claims) - sum(host_code.self_ns),
        ),
    )
