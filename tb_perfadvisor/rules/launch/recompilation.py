"""Programs are compiled again in steady steps."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.changing_inputs import changing_inputs_table, shapes_clause
from tb_perfadvisor.rules.evidence.compile_log import (
    counted,
    gave_up,
    guard_clause,
    recompilations,
    recompilations_table,
)
from tb_perfadvisor.rules.evidence.tables import events_by_name, series_by_step
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.core.attribution import Attribution
from tb_perfadvisor.signals.launch.compiled_regions import changing_inputs
from tb_perfadvisor.signals.recording.compile_log import compile_log
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.compile_log import CompileLog
from tb_perfadvisor.trace.intervals import intersect, join, overlap_ns, total_ns, union
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.units import format_duration
from tb_perfadvisor.whatif import Remove

_JITTED = "PjitFunction("
_RECURRING_SHARE = 0.5
_FIRST_RUN_SHARE = 0.2
"""The share of a CPU's work, in steps that compile, that running a program again may save. Its
first run touches memory and fills caches: with a new jit in each step, the operators took 1.25
to 1.45 times as long as from the second run on (benchmarks/recorded_pairs, jax-new-jit)."""


class Recompilation(Rule):
    """The program is traced or compiled again in steps that should be steady.

    What it finds
    -------------
    Time in which nothing runs because a program is being traced, lowered or compiled in steps
    after warm-up: torch.compile, retracing of a tf.function, new XLA programs.

    Why it matters
    --------------
    Compiled programs are cached by the shapes and types of their inputs. If those change from step
    to step, each change costs a compilation, which takes hundreds of times as long as the step.

    How it is measured
    ------------------
    The idle time attributed to *compiling* in the used steps, which exclude warm-up, plus the
    Python and unexplained time of the steps that compile: tracing runs there, and only part of it
    is recorded. A JAX call that misses the cache of compiled programs is compiling until it
    returns. High is both. On the CPU, high also includes a fifth of the work of these steps,
    up to the time of compiling, because the first run of a program takes longer than the second.

    Expected is what the steps save in a replay without compiling. On the CPU it is compiling plus
    the Python and unexplained time by which steps that compile exceed those that don't. Low is the
    compiling minus its standard error over the steps if most of them compile, and otherwise 0,
    because it may not recur. If shapes were recorded, inputs of compiled regions whose shapes
    change between calls are listed.

    A log of torch.compile (`TORCH_TRACE`) beside the profile adds the guards that failed. With a
    log alone, recompilations are listed without a saving.

    When to ignore
    --------------
    When the profile begins with the program: the first steps compile once. Skip them with the
    profiler's schedule.

    How to verify
    -------------
    Only the first step has compile events, and the step times are even.

    References:
    ----------
    JAX documentation, "Just-in-time compilation"; TensorFlow guide, "Better performance with
    tf.function: Rules of tracing"; PyTorch documentation, "torch.compile Troubleshooting".
    """

    id = "recompilation"
    title = "Stop compiling in every step"
    category = "launch"
    reads_sums = True
    needs = (Need.WORK, Need.HOST_EVENTS, Need.STEPS)
    suffices = Need.COMPILE_LOG
    is_preview = False

    minimum_share = Limit(
        0.02,
        "share",
        "Looking up the cache and checking guards takes up to 2 % of a short step.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when steady steps compile, or the log says so."""
        log = compile_log(signals)
        attribution = signals.attribution
        compiling_time = attribution.intervals[Cause.COMPILING]
        compiling_ns = total_ns(compiling_time)
        is_measured = self.meets_needs(signals)
        if not is_measured or self.is_minor(compiling_ns, signals):
            # Measured steps that don't compile are fine, unless they run what was not compiled.
            if log is not None and (gave_up(log) or not is_measured) and recompilations(log):
                yield _from_log(log)
            return
        trace, by_step = signals.trace, attribution.step_total_ns[Cause.COMPILING]
        events, rows = trace.events, trace.rows(EventKind.COMPILE)
        idle = overlap_ns(compiling_time, events.start_ns[rows], events.end_ns[rows])
        rows, idle = rows[idle > 0], idle[idle > 0]
        compiled = int((by_step > 0).sum())
        recurs = compiled > _RECURRING_SHARE * len(by_step)
        steps = signals.steps
        tracing = intersect(
            attribution.of(Cause.PYTHON, Cause.UNEXPLAINED),
            union(steps.start_ns[by_step > 0], steps.end_ns[by_step > 0]),
        )
        claims = join(compiling_time, tracing)
        expected_ns, first_ns = compiling_ns, 0
        if signals.device.is_host_only:
            expected_ns += _tracing_ns(attribution, by_step > 0)
            work_ns = int(attribution.step_total_ns[Cause.HOST_COMPUTE][by_step > 0].sum())
            first_ns = min(round(_FIRST_RUN_SHARE * work_ns), compiling_ns)
        changing = changing_inputs(signals)
        yield Finding(
            instance=f"{compiled} of {len(by_step)} steps compile{_of(trace, rows, idle)}",
            summary=(
                f"Compiling takes {per_step(compiling_ns, signals)}: {compiled} of {len(by_step)}"
                f" steps compile{shapes_clause(changing)}.{guard_clause(log)}"
            ),
            saving=Saving(
                max(compiling_ns - _standard_error_ns(by_step), 0) if recurs else 0,
                expected_ns,
                total_ns(claims) + first_ns,
                claims,
                "measured",
                (Remove(union(events.start_ns[rows], events.end_ns[rows])),),
                first_ns,
            ),
            evidence=(
                series_by_step("Compiling, by step", signals, by_step),
                events_by_name(
                    "Compilation stages (one may contain another)",
                    "Stage",
                    trace,
                    rows,
                    ((Column("idle_ns", "Idle time", "ns"), idle),),
                ),
                costliest("Longest compilations", signals.worker, rows, idle),
                *changing_inputs_table(changing),
                *((recompilations_table(log),) if log is not None and recompilations(log) else ()),
            ),
            remedies=advise("fixed-shapes"),
        )


def _from_log(log: CompileLog) -> Finding:
    """A finding without a saving: nothing tells how often the steps compile."""
    found, given_up = recompilations(log), gave_up(log)
    total = format_duration(sum(each.known_ns for each in found))
    consequence = (
        f" {counted(len(given_up), 'function')} reached the limit of recompilations and "
        f"run{'s' if len(given_up) == 1 else ''} uncompiled from then on."
        if given_up
        else ""
    )
    return Finding(
        title=f"Compile each function once: {counted(len(found), 'recompilation')} took {total}",
        summary=(
            f"torch.compile compiled functions again {len(found):,} times, which took {total}."
            f"{consequence}{guard_clause(log)}"
        ),
        severity="medium" if given_up else "low",
        evidence=(recompilations_table(log),),
        remedies=advise("fixed-shapes"),
    )


def _of(trace: Trace, rows: Int32, idle_ns: Int64) -> str:
    """The jitted function that is compiled, if that is the costliest stage."""
    name = trace.name(int(rows[idle_ns.argmax()])) if len(rows) else ""
    is_function = name.startswith(_JITTED) and name.endswith(")")
    return f" {name[len(_JITTED) : -1]}" if is_function else ""


def _standard_error_ns(by_step: Int64) -> int:
    """The standard error of the sum over the steps.

    Single compilations take twice as long as others, because of garbage collection or a larger
    graph.
    """
    count = len(by_step)
    return round(float(by_step.std(ddof=1)) * count**0.5) if count > 1 else 0


def _tracing_ns(attribution: Attribution, compiles: NDArray[np.bool_]) -> int:
    """Python and unexplained time by which steps that compile exceed those that don't.

    Args:
        attribution: The worker's attribution.
        compiles: Whether each used step compiles, shape (steps,).
    """
    by_step = attribution.step_total_ns
    host_ns = by_step[Cause.PYTHON] + by_step[Cause.UNEXPLAINED]
    usual_ns = float(host_ns[~compiles].mean()) if not compiles.all() else 0.0
    return max(0, int(host_ns[compiles].sum() - usual_ns * compiles.sum()))
