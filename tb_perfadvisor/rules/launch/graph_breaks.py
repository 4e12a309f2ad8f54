"""A compiled model returns to Python many times in a step."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.compile_log import (
    breaks_clause,
    breaks_table,
    counted,
    distinct_breaks,
)
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.launch.compiled_regions import graph_breaks
from tb_perfadvisor.signals.recording.compile_log import compile_log
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.trace.compile_log import CompileLog
from tb_perfadvisor.trace.intervals import total_ns

_BACKEND_FAILED = "BackendCompilerFailed"
"""The exception of `torch/_dynamo/exc.py` that wraps what a backend raised."""


class GraphBreaks(Rule):
    """A compiled function runs in many pieces, with Python in between.

    What it finds
    -------------
    Compiled regions of torch.compile inside another one, three or more per step. After a graph
    break, the rest of a function is compiled as a separate function that the part before calls.
    The device idles until the host has passed through guards and Python and launches work again.

    Why it matters
    --------------
    Each break costs tens of microseconds for its guards and its frame, ends fusion, and prevents
    capturing the step in one CUDA graph.

    How it is measured
    ------------------
    The idle time, in gaps of up to two milliseconds, that ends with the first launch of a resumed
    region, minus what synchronizations induce; launch-bound does not count it again. High is all
    of it; expected is half, because a whole graph has launches, too; low is 0. On the CPU, no
    event separates compiled code from the Python around it, so nothing can be measured.

    A log of torch.compile (`TORCH_TRACE`) beside the profile adds the line and the reason of each
    break. Where the breaks cannot be measured, on the CPU or with a log alone, they are listed
    without a saving.

    When to ignore
    --------------
    When layers are compiled one by one on purpose: those regions are not nested and not counted.

    How to verify
    -------------
    The next profile has one compiled region in place of many, and fewer gaps.

    References:
    ----------
    PyTorch documentation, "Frequently Asked Questions on torch.compile: Graph breaks".
    """

    id = "graph-breaks"
    title = "Compile the model as one graph"
    category = "launch"
    needs = (Need.DEVICE_EVENTS, Need.HOST_EVENTS, Need.COMPILED_REGIONS)
    suffices = Need.COMPILE_LOG
    is_preview = True

    minimum_share = Limit(0.02, "share", "A few breaks cost up to 1 % of a long step.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the device waits after graph breaks, or the log lists some."""
        log = compile_log(signals)
        if not self.meets_needs(signals):
            if log is not None and log.breaks:
                yield _from_log(log)
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
        is_explained = any(each.hint for each in traced)
        lines = "change-broken-lines" if is_explained else "trace-broken-lines"
        changes += (lines, "python-after-forward")
    return changes


def _from_log(log: CompileLog) -> Finding:
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
