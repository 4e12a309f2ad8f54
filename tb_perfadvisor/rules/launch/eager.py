"""Programs that dispatch many small operators one by one."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.host import (
    idle_by_host_state,
    idle_by_launching_operator,
    lines_tables,
)
from tb_perfadvisor.rules.evidence.tables import batches_table, events_by_name, in_loop
from tb_perfadvisor.rules.examined_operators import calling_lines, place_of_observed
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Table, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.core.steps.server_annotations import StepKind
from tb_perfadvisor.signals.host.busy_functions import busiest_function, side_work_share
from tb_perfadvisor.signals.host.call_tree import place_of
from tb_perfadvisor.signals.host.eager_steps import MOST_PART, eager_steps
from tb_perfadvisor.signals.host.idle import LAUNCHING, OVERRIDING, IdleOwner, idle_without
from tb_perfadvisor.signals.host.loops import LoopKind, OperatorLoop, operator_loops
from tb_perfadvisor.signals.launch.compiled_regions import compiled_regions
from tb_perfadvisor.signals.launch.delays import LONGEST_LAUNCH_GAP_NS, short_and_long_gaps
from tb_perfadvisor.signals.launch.eager_calls import eager_calls
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.signals.serving.server_steps import Mask, ServerSteps, server_steps
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import Intervals, intersect, join, overlap_ns, total_ns, union
from tb_perfadvisor.units import format_share
from tb_perfadvisor.whatif import Remove


class EagerOperators(Rule):
    """The step runs operator by operator instead of as one compiled program."""

    id = "eager-operators"
    title = "Compile the step as one program"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.DISPATCH)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "A few eager operators around a compiled step cost up to 1 %."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        eager = eager_calls(signals)
        total = total_ns(eager.idle)
        fused_ns, filled_ns = total_ns(eager.fusible), total_ns(eager.constants)
        least_ns, called_ns, most_ns = eager.called_ns
        if self.is_minor(total - called_ns, signals):
            return
        trace = signals.trace
        duration = trace.events.duration_ns[eager.rows]
        recording_ns = profiler_overhead(signals).within_ns(eager.idle)
        # Evaluations and what else not every step does stay as they are.
        share = 1 - side_work_share(trace.facts.lines)
        subject = "No operator computes" if signals.device.is_host_only else "The device idles"
        yield Finding(
            instance=f"{count_per_step(len(eager.rows), 'operator', signals)}{in_loop(signals)}",
            summary=(
                f"{subject} for {per_step(total, signals)} while operators are dispatched one by"
                f" one: {count_per_step(len(eager.rows), 'call', signals)} outside any compiled"
                " function."
            ),
            saving=Saving(
                max(int(share * total_ns(eager.sure)) - recording_ns - most_ns, 0),
                max(int(share * (total + filled_ns + (fused_ns - filled_ns) // 2)) - called_ns, 0),
                max(int(share * (total + fused_ns)) - least_ns, 0),
                join(eager.idle, eager.fusible),
                "modeled" if fused_ns else "measured",
                (Remove(join(eager.spans, eager.idle)),),
            ),
            evidence=(
                events_by_name(
                    "Operators outside compiled functions",
                    "Operator",
                    trace,
                    eager.rows,
                    ((Column("host_ns", "Time on the host", "ns"), duration),),
                ),
                costliest("Longest calls", signals.worker, eager.rows, duration),
            ),
            remedies=advise("compiled-step", "one-jit"),
        )


_MANY_CALLS = 4
"""Calls of recurrent layers in a step; an encoder and a decoder make two."""


class EagerSteps(Rule):
    """PyTorch's step on the CPU is mostly Python, dispatch and operators that compute little."""

    id = "eager-steps"
    title = "Compile the small operators of the step"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.PYTORCH, Need.CPU_PROGRAM)
    is_preview = False

    minimum_share = Limit(
        0.1, "share", "What compiling saves of a small step is known to a tenth of the step."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        eager = eager_steps(signals)
        if eager is None or len(compiled_regions(signals).row):
            return
        total = total_ns(eager.spans)
        expected_ns = min(eager.saving_ns, total)
        if self.is_minor(expected_ns, signals):
            return
        duration = signals.trace.events.duration_ns[eager.rows]
        yield Finding(
            instance=f"{count_per_step(len(eager.rows), 'operator', signals)}{in_loop(signals)}",
            summary=(
                f"{per_step(total, signals)} goes into"
                f" {count_per_step(len(eager.rows), 'small operator', signals)} and the Python"
                f" between them. Compiled, they run as a few loops{_in_pieces(eager.breaks)}."
            ),
            saving=Saving(
                0,
                expected_ns,
                min(int(MOST_PART * expected_ns), total),
                eager.spans,
                "modeled",
            ),
            evidence=(
                events_by_name(
                    "Operators that compiling fuses",
                    "Operator",
                    signals.trace,
                    eager.rows,
                    ((Column("host_ns", "Time on the host", "ns"), duration),),
                ),
                costliest("Longest of these operators", signals.worker, eager.rows, duration),
            ),
            remedies=advise(*_changes(eager.recurrent_calls)),
        )


def _in_pieces(breaks: int) -> str:
    if not breaks:
        return ""
    return f", in {breaks + 1} pieces, because Python asks in between what a tensor holds"


def _changes(recurrent_calls: int) -> tuple[str, ...]:
    """What helps: torch.compile leaves recurrent layers, and their models, as they are."""
    first = "whole-sequence" if recurrent_calls >= _MANY_CALLS else "compile"
    return (first, "larger-batch")


_RECORDING_FACTORS = (2.0, 1.0, 0.5)
"""What recording cost, as multiples of its estimate: for the low, expected and high saving. Eleven
training loops took 0.9 to 2.3 times the estimate; 25 of 27 operators on four to 256 numbers, called
again and again from a warm cache, 0.4 to 0.9 times. With PyTorch 2.13 on x86 virtual machines."""
_CALL_NS = (400, 650)
"""What an operator costs without a profiler, with its part of the Python code: for the low and the
expected saving. The same operators, some of which call dozens of others, mostly took 0.3 to 1.4
microseconds for each that was recorded, and 0.66 in the least-squares fit."""
_REALIZED = {
    LoopKind.OPTIMIZER: (0.8, 1.0, 1.0),
    LoopKind.PARAMETERS: (0.4, 1.0, 1.0),
    LoopKind.ELEMENTS: (0.7, 1.0, 1.0),
}
"""Low, expected and high gain, as parts of the dispatch. Measured in the same way: a fused Adam
saved 1.1 times the dispatch, and SGD 0.9; lists of gradients 0.9; batches of samples 0.7 to 1.5."""
_COMPUTES_FASTER = (LoopKind.OPTIMIZER, LoopKind.ELEMENTS)
"""Large operators compute faster than many small ones, and a fused optimizer reads each parameter
once, not once for each operator."""
_FUSED_CELL = "aten::lstm_cell"
_FUSED_LAYER = (0.5, 1.0, 1.0)
"""On the CPU, an LSTM layer is one operator for all places: 0.8 to 0.99 of the loop is gone."""
_NATIVE_LOOP = (0.0, 0.2, 0.5)
"""Other recurrent layers call the same operators from C++, without those that index the sequence:
a GRU has 20 % fewer operators than a loop over its cell, a plain unit 35 %."""
_MOST = 0.5
_SUBJECTS = {
    LoopKind.OPTIMIZER: "the optimizer's loop over parameters",
    LoopKind.PARAMETERS: "a loop over parameters",
    LoopKind.SEQUENCE: "a loop over the places of a sequence",
    LoopKind.ELEMENTS: "a loop over samples or other elements",
}
_ADVICE = {
    LoopKind.OPTIMIZER: ("fused-optimizer", "list-operators"),
    LoopKind.PARAMETERS: ("list-operators", "compile"),
    LoopKind.SEQUENCE: ("recurrent-layer", "compile", "larger-batch"),
    LoopKind.ELEMENTS: ("stacked-elements", "compile"),
}


class ManyTinyOperators(Rule):
    """A Python loop calls thousands of operators that compute next to nothing."""

    id = "many-tiny-operators"
    title = "Replace a loop of tiny operators by one call"
    refines = "launch-bound"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.PYTORCH)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "Rewriting a loop is not worth it for less than 5 % of the step."
    )
    minimum_dispatch_share = 0.4
    """If operators on the CPU compute most of the time, fewer of them take about as long."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        for loop in operator_loops(signals):
            saving = self._saving(signals, loop)
            if saving is not None and not self.is_minor(saving.expected_ns, signals):
                yield _finding(signals, loop, saving)

    def _saving(self, signals: Signals, loop: OperatorLoop) -> Saving | None:
        if not signals.device.is_host_only:
            return _on_device(signals, loop)
        is_mostly_dispatch = loop.dispatch_ns >= self.minimum_dispatch_share * total_ns(loop.spans)
        if loop.kind not in _ADVICE or not (is_mostly_dispatch or _has_fused_layer(signals, loop)):
            return None  # eager-steps says what compiling saves
        return _on_cpu(signals, loop)


def _on_cpu(signals: Signals, loop: OperatorLoop) -> Saving:
    recording_ns = profiler_overhead(signals).within_ns(loop.spans)
    computing_ns = total_ns(loop.spans) - loop.dispatch_ns
    low_ns, expected_ns, high_ns = (
        max(loop.dispatch_ns - factor * recording_ns, min(call_ns * loop.calls, loop.dispatch_ns))
        for factor, call_ns in zip(_RECORDING_FACTORS, (*_CALL_NS, _CALL_NS[-1]), strict=True)
    )
    low, expected, high = _realized(signals, loop)
    is_one_call = low > 0
    faster_ns = computing_ns / 2 if loop.kind in _COMPUTES_FASTER else 0
    return Saving(
        int(low * (low_ns + faster_ns)),
        int(expected * (expected_ns + faster_ns) * (1 - 1 / loop.iterations)),  # one is left
        int(high * high_ns + computing_ns * is_one_call),
        loop.spans,
        "modeled" if is_one_call else "heuristic",
    )


def _realized(signals: Signals, loop: OperatorLoop) -> tuple[float, float, float]:
    """Low, expected and high gain, as parts of the dispatch; low is 0 if a loop remains."""
    if loop.kind is LoopKind.SEQUENCE:
        return _FUSED_LAYER if _has_fused_layer(signals, loop) else _NATIVE_LOOP
    return _REALIZED[loop.kind]


def _has_fused_layer(signals: Signals, loop: OperatorLoop) -> bool:
    """Whether one operator runs such cells over a whole sequence, which also computes faster."""
    names = distinct(signals.trace.events.name[loop.rows]).tolist()
    return _FUSED_CELL in {signals.trace.strings[name] for name in names}


def _on_device(signals: Signals, loop: OperatorLoop) -> Saving | None:
    if loop.kind not in (LoopKind.ELEMENTS, LoopKind.PARAMETERS):
        return None
    idle = intersect(idle_without(signals, IdleOwner.SYNCHRONIZATION, *LAUNCHING), loop.spans)
    idle_ns = total_ns(idle)
    recording_ns = profiler_overhead(signals).within_ns(idle)
    return Saving(
        max(idle_ns - recording_ns, 0) // 2,
        idle_ns,
        idle_ns,
        idle,
        "measured",
        (Remove(join(loop.spans, idle), is_launching=True),),
    )


def _finding(signals: Signals, loop: OperatorLoop, saving: Saving) -> Finding:
    events, whole_ns = signals.trace.events, total_ns(loop.spans)
    steps = max(len(signals.steps), 1)
    place = place_of(signals, int(loop.rows[loop.passes[0][0]]))
    lines = calling_lines(signals, loop.rows)
    if not place and lines:
        place = place_of_observed(max(lines, key=lambda each: each.calls))
    where = f" in {place}" if place else _where_most_is(signals, whole_ns)
    duration = events.duration_ns[loop.rows]
    return Finding(
        instance=f"{len(loop.rows) // steps:,} operators{where}",
        summary=(
            f"{per_step(whole_ns, signals)} goes into {_SUBJECTS[loop.kind]}{where}:"
            f" {len(loop.rows) // steps:,} operators in {loop.iterations:,} iterations."
            f" {format_share(loop.dispatch_ns / whole_ns)} of that is calling them, not computing."
        ),
        saving=saving,
        evidence=(
            _iterations(signals, loop),
            events_by_name(
                "Operators of the loop",
                "Operator",
                signals.trace,
                loop.rows,
                ((Column("host_ns", "Time on the host", "ns"), duration),),
            ),
            costliest("Longest of these operators", signals.worker, loop.rows, duration),
            *(() if place else lines_tables(signals.trace.facts.lines)),
        ),
        remedies=advise(*_ADVICE[loop.kind]),
    )


def _where_most_is(signals: Signals, loop_ns: int) -> str:
    """The line in which the program was most, if that and the loop are most of the time."""
    busiest = busiest_function(signals.trace.facts.lines)
    is_most = loop_ns > _MOST * signals.attribution.window_ns
    if busiest is None or busiest.share < _MOST or not is_most:
        return ""
    return f" in {busiest.lines[0].path}:{busiest.lines[0].line}"


def _iterations(signals: Signals, loop: OperatorLoop) -> Table:
    """The operators that each pass of the loop calls in one iteration, in their order."""
    lines = tuple(
        (number, signals.trace.name(row), place_of(signals, row) or None)
        for number, (first, period) in enumerate(loop.passes, start=1)
        for row in loop.rows[first : first + period].tolist()
    )
    return Table(
        "One iteration",
        (Column("pass", "Pass", "count"), Column("name", "Operator"), Column("place", "Where")),
        lines,
    )


_KEPT_SHARE = 0.25
"""The part of the framework's code that stays at worst: attention may have to run outside of the
graphs, so that each step replays one for each layer."""


class EagerDecode(Rule):
    """A server launches kernels of its decode steps one by one, and the device waits for them."""

    id = "eager-decode"
    title = "Replay GPU graphs in decode steps"
    refines = "launch-bound"
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS)

    minimum_share = Limit(
        0.02, "share", "Less is not worth the memory that more graphs take on the device."
    )
    minimum_launches = Limit(
        30, "count", "With fewer launches, the model ran elsewhere, or in compiled pieces."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
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
