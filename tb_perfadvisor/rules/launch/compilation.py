"""Time that compilation takes, and programs that are compiled again."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step, share_of_window
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.compilation import (
    breaks_clause,
    breaks_table,
    caches_table,
    changing_inputs_table,
    counted,
    distinct_breaks,
    frames_table,
    gave_up,
    guard_clause,
    phases_table,
    recompilations,
    recompilations_table,
    shapes_clause,
)
from tb_perfadvisor.rules.evidence.host import lines_tables, place_of
from tb_perfadvisor.rules.evidence.tables import equal_part, events_by_name, series_by_step
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.core.attribution import Attribution
from tb_perfadvisor.signals.launch.compiled_regions import changing_inputs, graph_breaks
from tb_perfadvisor.signals.recording.compile_log import compile_log
from tb_perfadvisor.signals.recording.hints import FEWEST_SPELLS, recompiled
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.compile_log import CompileLog
from tb_perfadvisor.trace.intervals import intersect, join, overlap_ns, total_ns, union
from tb_perfadvisor.trace.tables import Int32, Int64
from tb_perfadvisor.units import format_duration, format_share
from tb_perfadvisor.whatif import Remove

_JITTED = "PjitFunction("
_RECURRING_SHARE = 0.5
_FIRST_RUN_SHARE = 0.2
"""The share of a CPU's work, in steps that compile, that running a program again may save. Its
first run touches memory and fills caches: with a new jit in each step, the operators took 1.25
to 1.45 times as long as from the second run on (benchmarks/recorded_pairs, jax-new-jit)."""


class Recompilation(Rule):
    """The program is traced or compiled again in steps that should be steady."""

    id = "recompilation"
    title = "Stop compiling in every step"
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
        log = compile_log(signals)
        attribution = signals.attribution
        compiling_time = attribution.intervals[Cause.COMPILING]
        compiling_ns = total_ns(compiling_time)
        is_measured = self.meets_needs(signals)
        if not is_measured or self.is_minor(compiling_ns, signals):
            # Measured steps that don't compile are fine, unless they run what was not compiled.
            if log is not None and (gave_up(log) or not is_measured) and recompilations(log):
                yield _recompiled_by_log(log)
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
        called = recompiled(trace.facts.lines)
        instance = (
            f"{compiled} of {len(by_step)} steps compile{_of(trace, rows, idle)}"
            f"{f' in {place_of(called[0])}' if called else ''}"
        )
        is_single = compiled == 1 < len(by_step)
        yield Finding(
            title=f"Find out whether more steps compile: {instance}" if is_single else "",
            instance=instance,
            summary=(
                f"Compiling takes {per_step(compiling_ns, signals)}: {compiled} of {len(by_step)}"
                f" steps compile{shapes_clause(changing)}.{guard_clause(log)}"
            ),
            severity="low" if is_single else None,
            saving=Saving(
                max(compiling_ns - _standard_error_ns(by_step), 0) if recurs else 0,
                expected_ns,
                total_ns(claims) + first_ns,
                claims,
                "measured",
                (Remove(events.spans(rows)),),
                first_ns,
                is_unknown=is_single,
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


def _recompiled_by_log(log: CompileLog) -> Finding:
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

    `compiles` has shape (steps,).
    """
    by_step = attribution.step_total_ns
    host_ns = by_step[Cause.PYTHON] + by_step[Cause.UNEXPLAINED]
    usual_ns = float(host_ns[~compiles].mean()) if not compiles.all() else 0.0
    return max(0, int(host_ns[compiles].sum() - usual_ns * compiles.sum()))


_SURE = 2.0
"""Standard errors: the low end."""
_MODELS = ("keras.src.models", "keras.src.layers", "keras.src.trainers.trainer.compile")
_SURELY = 0.8
"""The first runs of a compiled program, and its first compilation, stay."""


class RecurringCompilation(Rule):
    """The program compiles the same function again and again during its run."""

    id = "recurring-compilation"
    title = "Compile once, not again and again"
    needs = (Need.RUN_LINES,)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "Compiling a second shape, for evaluation, takes less of a run of minutes."
    )
    minimum_looks = 20
    """With fewer, a line in several of them may be chance."""
    fewest_spells = FEWEST_SPELLS
    """A function is compiled for a batch, for the last batch of an epoch, and for evaluation."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        lines = signals.trace.facts.lines
        if lines is None or lines.looks < self.minimum_looks:
            return
        found = recompiled(lines, self.fewest_spells)
        made = [line for line in lines.lines if line.calls.startswith(_MODELS)] if found else []
        # A model is made in several lines, each of them rarely seen.
        found = (*found, *(line for line in made if line.activity and line not in found))
        share = min(sum(line.share for line in found), 1.0)
        error = math.sqrt(share * (1 - share) / lines.looks)
        if share < self.minimum_share or share - _SURE * error < self.minimum_share / 2:
            return
        recorded_ns = total_ns(signals.attribution.intervals[Cause.COMPILING])
        if share_of_window(recorded_ns, signals) > share / 2 and len(signals.steps):
            return
        most, window_ns = found[0], signals.attribution.window_ns
        spells = sum(line.spells or 0 for line in found)
        why = (
            "A new model is made and compiled each time."
            if made
            else "An argument changes its shape, its type or its value as a static argument."
        )
        low, high = _SURELY * share - _SURE * error, min(share + _SURE * error, 1.0)
        yield Finding(
            instance=(
                f"{most.path}:{most.line} compiled at least {spells:,} times,"
                f" {format_share(share)} of the run"
            ),
            summary=(
                f"{format_share(share)} of the {format_duration(lines.seconds * 1e9)} between the"
                f" first and the last step went into tracing and compiling, in {spells:,} separate"
                f" spells, mostly for the call in {most.path}:{most.line}. {why}"
            ),
            saving=Saving(
                int(max(low, 0.0) * window_ns),
                int(share * window_ns),
                int(high * window_ns),
                equal_part(signals, high),
                "measured",
            ),
            evidence=lines_tables(lines),
            remedies=advise(*(("one-model",) if made else ("changing-arguments", "fixed-shapes"))),
        )


class LongCompilation(Rule):
    """The compiler spends seconds at the start of each run."""

    id = "long-compilation"
    title = "Keep compiled code between runs"
    needs = (Need.COMPILE_LOG,)
    is_preview = False

    minimum_ns = 2e9
    """Importing PyTorch takes as long."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        log = compile_log(signals)
        if log is None or log.known_ns < self.minimum_ns:
            return
        duration = format_duration(log.known_ns)
        yield Finding(
            instance=f"{counted(len(log.compilations), 'compilation')} took {duration}",
            summary=(
                f"torch.compile spent {duration} on "
                f"{counted(len(log.compilations), 'compilation')}{_cache_clause(log)}."
            ),
            severity="low",
            evidence=(frames_table(log), *phases_table(log), *caches_table(log)),
            remedies=advise("compile-cache", "compile-blocks"),
        )


def _cache_clause(log: CompileLog) -> str:
    """What the caches had, as a clause."""
    if not log.caches:
        return ""
    hits, misses = (sum(getattr(use, key) for use in log.caches) for key in ("hits", "misses"))
    bypasses = sum(use.bypasses for use in log.caches)
    clause = f"; its caches had what was needed {hits:,} of {hits + misses:,} times"
    return f"{clause}, and were not used {bypasses:,} times" if bypasses else clause


_BACKEND_FAILED = "BackendCompilerFailed"
"""The exception of `torch/_dynamo/exc.py` that wraps what a backend raised."""


class GraphBreaks(Rule):
    """A compiled function runs in many pieces, with Python in between."""

    id = "graph-breaks"
    title = "Compile the model as one graph"
    needs = (Need.DEVICE_EVENTS, Need.HOST_EVENTS, Need.COMPILED_REGIONS)
    suffices = Need.COMPILE_LOG
    is_preview = True

    minimum_share = Limit(0.02, "share", "A few breaks cost up to 1 % of a long step.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        log = compile_log(signals)
        if not self.meets_needs(signals):
            if log is not None and log.breaks:
                yield _breaks_from_log(log)
            return
        breaks = graph_breaks(signals)
        total = total_ns(breaks.idle)
        if self.is_minor(total, signals):
            return
        trace = signals.trace
        duration = trace.events.duration_ns[breaks.row]
        high = max(total - profiler_overhead(signals).within_ns(breaks.idle), 0)
        yield Finding(
            instance=count_per_step(len(breaks.row), "break", signals),
            summary=(
                f"The device idles for {per_step(total, signals)} after graph breaks in compiled"
                f" code ({count_per_step(len(breaks.row), 'break', signals)})."
                f"{breaks_clause(log)}"
            ),
            saving=Saving(0, min(total // 2, high), total, breaks.idle, "heuristic"),
            evidence=(
                *((breaks_table(log),) if log is not None and log.breaks else ()),
                events_by_name(
                    "Compiled regions after a break",
                    "Region",
                    trace,
                    breaks.row,
                    ((Column("host_ns", "Time on the host", "ns"), duration),),
                ),
                costliest("Longest of these regions", signals.worker, breaks.row, duration),
            ),
            remedies=advise(*_changes(log)),
        )


def _changes(log: CompileLog | None) -> tuple[str, ...]:
    """To change the lines that the log names, or to let the compiler name them."""
    if log is None or not log.breaks:
        return "list-graph-breaks", "python-after-forward"
    traced = [each for each in log.breaks if not each.reason.startswith(_BACKEND_FAILED)]
    changes: tuple[str, ...] = ()
    if len(traced) < len(log.breaks):
        changes += ("failed-backend",)
    if traced:
        changes += ("change-broken-lines", "python-after-forward")
    return changes


def _breaks_from_log(log: CompileLog) -> Finding:
    """A finding without a saving: nothing tells what the breaks cost."""
    lines = len(distinct_breaks(log))
    first = log.breaks[0]
    at = f" at {first.place}" if first.place else ""
    eager = any(graph_break.is_uncompiled for graph_break in log.breaks)
    return Finding(
        instance=f"{counted(lines, 'graph break')}, the first{at}",
        summary=(
            f"torch.compile broke off at {counted(lines, 'place')}, in "
            f"{counted(len(log.breaks), 'compilation')}.{breaks_clause(log)}"
        ),
        severity="medium" if eager else "low",
        evidence=(breaks_table(log),),
        remedies=advise(*_changes(log)),
    )
