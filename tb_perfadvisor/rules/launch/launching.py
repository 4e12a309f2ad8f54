"""Launching takes longer than what is launched."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step, share_of_each, time_of_each
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.host import (
    generated_ns,
    host_code_table,
    idle_by_host_state,
    idle_by_launching_operator,
    is_wrapper,
    launch_queue_table,
    launched_kernels,
    lines_tables,
    stretch,
)
from tb_perfadvisor.rules.evidence.tables import (
    events_by_name,
    step_loops,
)
from tb_perfadvisor.rules.examined_operators import (
    examined_work,
    observed_table,
    occurring,
    place_of_observed,
)
from tb_perfadvisor.rules.finding import Cell, Column, Evidence, Finding, Saving, Table, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.core.host_states import input_waits, states_of
from tb_perfadvisor.signals.host.call_tree import SelfTime, dispatch, self_time
from tb_perfadvisor.signals.host.idle import (
    LAUNCHING,
    OVERRIDING,
    IdleOwner,
    idle_owners,
    idle_without,
    slow_launches,
)
from tb_perfadvisor.signals.host.loops import looped_calls
from tb_perfadvisor.signals.host.optimizer_loops import optimizer_loop
from tb_perfadvisor.signals.launch.delays import (
    LONGEST_LAUNCH_GAP_NS,
    dispatching,
    launch_queue,
    short_and_long_gaps,
    stretched_ns,
)
from tb_perfadvisor.signals.launch.delays import SlowLaunch as Launches
from tb_perfadvisor.signals.launch.device_graphs import in_graphs
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.signals.steps.around_steps import ProgramRuns, program_runs
from tb_perfadvisor.signals.workload.workload import Part, workload
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    intersect,
    join,
    last_before,
    minus,
    total_ns,
    union,
)
from tb_perfadvisor.trace.names import GENERATED_KERNEL, short_name
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.units import format_duration, format_share
from tb_perfadvisor.whatif import Remove

_LAUNCHING = (EventKind.LAUNCH, EventKind.RUNTIME, EventKind.OPERATOR)


def without_launching(signals: Signals, idle: Intervals, others: Intervals) -> Remove:
    """The steps without any host time for launching, whether the device waits for it or not.

    With a single launch for all kernels, a faster device gains as well.

    Launching causes `idle`; `others` are gaps with other causes, left as they are.
    """
    window, step_track = signals.attribution, signals.step_track
    calls = signals.trace.rows(EventKind.LAUNCH)
    tracks = (step_track, *distinct(signals.trace.events.track[calls]).tolist())
    not_launching = join(
        window.intervals[Cause.BETWEEN_STEPS],
        input_waits(signals.trace, tracks),
        states_of(signals.trace, (EventKind.COMPILE,), tracks),
        others,
    )
    host = minus(states_of(signals.trace, _LAUNCHING, tracks), not_launching)
    return Remove(join(host, idle), is_launching=True)


_GOOD_PART = 0.1
"""An optimizer in which less of the idle time passes gets no advice here."""
KEPT_SHARE = 0.25
"""The part of the framework's code that stays at worst: a compiled model still has some operators
that run one by one, where its graph breaks."""

_UNKNOWN = " For more than half of the time, nothing in the profile tells what the host does."


class LaunchBound(Rule):
    """The device runs out of queued work while the host is busy launching the next kernel."""

    id = "launch-bound"
    title = "Launch fewer kernels, or launch them together"
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS, Need.EVERY_LAUNCH)
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
        attribution, idle = signals.attribution, signals.attribution.idle
        short_gaps, long_gaps = short_and_long_gaps(idle, self.longest_gap_ns)
        owned = (*OVERRIDING, *LAUNCHING, IdleOwner.SLOW_LAUNCH)
        available = intersect(idle_without(signals, *owned), short_gaps)
        owners = idle_owners(signals)
        others = join(
            long_gaps, owners[IdleOwner.REPLAY_PREPARATION], owners[IdleOwner.SLOW_LAUNCH]
        )

        def of(*causes: Cause) -> Intervals:
            return intersect(attribution.of(*causes), available)

        launching = of(Cause.LAUNCHING)
        framework, python = of(Cause.FRAMEWORK), of(Cause.PYTHON)
        unexplained = of(Cause.UNEXPLAINED, Cause.SYNCHRONIZATION)
        claims = join(launching, framework, python, unexplained)
        is_nameless = 2 * total_ns(of(Cause.UNEXPLAINED)) > total_ns(claims)
        total = total_ns(claims)
        if self.is_minor(total, signals):
            return
        queue = launch_queue(signals)
        if (queue.empty_share or 0.0) < self.minimum_empty_share:
            return
        expected = total_ns(join(launching, framework, python))
        recording = profiler_overhead(signals).within_ns(claims)
        removed = join(launching, framework)
        low = total_ns(removed) - round(KEPT_SHARE * total_ns(framework))
        low = max(low - profiler_overhead(signals).within_ns(removed), 0)
        length = idle.end_ns - idle.start_ns
        ended = ~idle.is_queued & (idle.launch_row >= 0)
        ended &= length <= self.longest_gap_ns
        rows = queue.row[~in_graphs(signals.trace, queue.row)]
        rows = rows[signals.trace.events.kind[rows] == EventKind.KERNEL]
        yield Finding(
            instance=f"waiting for launches takes {share_of_each(total, signals)}",
            summary=(
                f"The host launches work too slowly, which costs {time_of_each(total, signals)}:"
                f" {format_share(queue.empty_share)} of launches find an empty queue, and"
                f" {launched_kernels(signals, rows, total)}.{_UNKNOWN if is_nameless else ''}"
            ),
            saving=Saving(
                low,
                expected,
                total,
                claims,
                "measured",
                (without_launching(signals, join(launching, framework, python), others),),
            ),
            evidence=(
                idle_by_host_state(signals, claims, recording),
                launch_queue_table(queue),
                idle_by_launching_operator(signals, claims),
                costliest(
                    "Launches after the longest gaps",
                    signals.worker,
                    idle.launch_row[ended],
                    length[ended],
                ),
            ),
            remedies=advise(
                *(("record-host-code",) if is_nameless else ()),
                *_changes(signals, launching, join(framework, python)),
            ),
        )


def _changes(signals: Signals, launching: Intervals, eager: Intervals) -> tuple[str, ...]:
    """What helps against what takes most of the host's time come first."""
    is_launching = total_ns(launching) > total_ns(eager)
    first = ["device-graphs", "compile"] if is_launching else ["compile", "device-graphs"]
    if any(map(workload(signals).has, (Part.DECISIONS, Part.NEW_SHAPES))):
        first = []
    updating = intersect(join(launching, eager), optimizer_loop(signals).steps)
    is_updating = total_ns(updating) > _GOOD_PART * total_ns(join(launching, eager))
    optimizer = ("fused-optimizer",) if is_updating else ()
    return (
        *first,
        *optimizer,
        "more-in-graphs",
        "graph-sizes",
        "overlapped-schedule",
        "larger-batch",
        "xla-steps",
    )


_IN_WRAPPER = ("device-graphs", "cpp-wrapper", "larger-regions")
"""Changes that spend less time between the kernels of a compiled graph."""


class SlowLaunch(Rule):
    """The device idles before each launch of one kernel, because the host prepares it for long."""

    id = "slow-launch"
    title = "Prepare this kernel's launch faster"
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS, Need.EVERY_LAUNCH)
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "Rewriting a launcher is not worth it for less than 5 % of the step."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        for launches in slow_launches(signals):
            if not self.is_minor(launches.idle_ns, signals):
                yield _finding(signals, launches)


def _finding(signals: Signals, launches: Launches) -> Finding:
    idle_ns, gaps = launches.idle_ns, len(launches.launch_row)
    recording_ns = profiler_overhead(signals).within_ns(launches.idle)
    # An average launch takes the host some time, too, and its kernel waits for as long.
    kept_ns = round(idle_ns / launches.excess / gaps)
    start_ns, end_ns = launches.idle[:, 0], launches.idle[:, 1]
    removed = union(start_ns, np.maximum(end_ns - kept_ns, start_ns))
    expected_ns = total_ns(removed)
    code = self_time(signals.trace, signals.step_track, launches.idle)
    kernel = short_name(launches.event)
    is_generated = bool(GENERATED_KERNEL.match(launches.event))
    mostly_ns = code.self_ns[0] if code.names else 0
    is_before = is_generated and 2 * mostly_ns > idle_ns and not is_wrapper(code.names[0])
    changes = _IN_WRAPPER if generated_ns(code) or (is_generated and not is_before) else ()
    title = "Speed up the generated wrapper of the compiled code" if is_generated else ""
    return Finding(
        title=f"Do less before the compiled code: {short_name(code.names[0])}"
        if is_before
        else title,
        instance=f"{format_duration(idle_ns / gaps)} before each {kernel}",
        summary=(
            f"The device idles {per_step(idle_ns, signals)} before one kernel, {kernel}"
            f" ({count_per_step(gaps, 'gap', signals)} of {format_duration(idle_ns / gaps)} on"
            f" average): the host takes {launches.excess:.0f} times as long to launch it as the"
            f" average kernel{_where(signals, launches, code)}."
        ),
        saving=Saving(
            max(expected_ns // 2 - recording_ns, 0),
            expected_ns,
            idle_ns,
            launches.idle,
            "measured",
            (Remove(removed),),
        ),
        evidence=(
            _launcher_table(signals, launches),
            host_code_table(
                "What the host does before it, by self time",
                "Code",
                Column("own_ns", "Device idle", "ns"),
                code,
                idle_ns - sum(code.self_ns),
            ),
            costliest(
                "Launches after the longest gaps",
                signals.worker,
                launches.launch_row,
                launches.gap_ns,
            ),
        ),
        remedies=advise(
            *(() if is_generated else ("cheaper-launch",)),
            *changes,
            "host-work",
            *(("around-compiled-code",) if is_generated else ()),
        ),
    )


def _where(signals: Signals, launches: Launches, code: SelfTime) -> str:
    """In whose code the host's time passes, as a clause; empty if nothing was recorded."""
    line = signals.origins.line_of(int(launches.launch_row[0]))
    at = f", at {line}" if line else ""
    if 2 * generated_ns(code) > launches.idle_ns:
        return f"{at}, in the wrapper that torch.compile generated around it"
    if code.names and 2 * code.self_ns[0] > launches.idle_ns:
        return f"{at}, mostly in {short_name(code.names[0])}"
    return at


def _launcher_table(signals: Signals, launches: Launches) -> Table:
    row = int(launches.launch_row[0])
    cells: dict[Column, Cell] = {
        Column("name", "Kernel"): launches.event,
        Column("operator", "Launched by"): launches.operator or None,
        Column("module", "Module"): signals.origins.module_of(row),
        Column("source", "Source line"): signals.origins.line_of(row),
        Column("launches", "Launches", "count"): launches.launches,
        Column("count", "Gaps", "count"): len(launches.launch_row),
        Column("idle_ns", "Device idle before", "ns"): launches.idle_ns,
    }
    known = {column: cell for column, cell in cells.items() if cell is not None}
    return Table("The launcher", tuple(known), (tuple(known.values()),))


class CallsInPythonLoop(Rule):
    """A Python loop calls a short jitted function many times in each step."""

    id = "calls-in-python-loop"
    title = "Put the loop into the compiled program"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.STEPS, Need.CPU_PROGRAM, Need.DISPATCH)
    is_preview = False

    minimum_share = Limit(0.05, "share", "Moving a loop into a program takes some thought.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        calls = looped_calls(signals)
        idle_ns, sharing_ns = total_ns(calls.idle), total_ns(calls.sharing)
        if self.is_minor(idle_ns, signals):
            return
        duration_ns = signals.trace.events.duration_ns[calls.rows]
        count = count_per_step(len(calls.rows), "call", signals)
        share = format_share(sharing_ns / signals.attribution.window_ns)
        running_ns = total_ns(calls.loops) - idle_ns - sharing_ns
        beside = f" For another {share} they share the only core with operations." * (
            sharing_ns > idle_ns / 10
        )
        yield Finding(
            instance=f"{calls.functions[0]}, {count}",
            summary=(
                f"No operation runs for {per_step(idle_ns, signals)} while a Python loop calls"
                f" {' and '.join(calls.functions[:2])} ({count}).{beside}"
            ),
            saving=Saving(
                idle_ns // 2,
                idle_ns + sharing_ns // 2,
                idle_ns + sharing_ns + running_ns // 2,
                calls.loops,
                "measured",
            ),
            evidence=(
                events_by_name(
                    "Calls in loops",
                    "Function",
                    signals.trace,
                    calls.rows,
                    ((Column("host_ns", "Time on the host", "ns"), duration_ns),),
                ),
                *step_loops(signals),
                *lines_tables(signals.trace.facts.lines),
            ),
            remedies=advise("vmapped-calls", "loop-in-program"),
        )


_FEWEST_RUNS, _FEWEST_MARKED_RUNS = 10, 3
"""Fewer runs do not show that the program continues like this, unless each is in a marked step."""
_MANY_PER_STEP = 10
"""Programs around a long one: converting inputs and reporting results take a few."""
_LONGEST_OF_KERAS_NS = 5_000_000
"""Between two steps of fit, Keras calls callbacks, reads metrics and prints a line: 1 to 2 ms on an
idle core, of which others may take a part."""


class SingleStepDispatch(Rule):
    """Programs are so short that the host cannot dispatch them as fast as they run."""

    id = "single-step-dispatch"
    title = "Run many steps in one call"
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

    longest_run_on_cpu_ns = 10_000_000
    """TensorFlow on the CPU begins the next program after the one before: Keras's milliseconds
    between them add to each step."""

    def check(self, signals: Signals) -> Iterable[Finding]:
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


_SMALL_ELEMENTS = 32_768
"""A core reads 128 KB from its cache in about the time that calling an operator takes."""
_OF_SMALL = (0.4, 0.85, 1.6)
"""The parts of the time of small operators that go, at least, as expected and at most: an estimate.
More than all of it, where the backward pass of each call writes a gradient as large as the whole
tensor."""
_OF_PYTHON = (0.0, 0.5, 1.0)
_BETWEEN = (Cause.LAUNCHING, Cause.FRAMEWORK, Cause.PYTHON, Cause.UNEXPLAINED)
"""Time in which no operator runs. A loop's own is its share of it, if the rest has as much for each
call: an estimate."""
_OF_UPDATES = (0.4, 0.7, 1.0)
"""The parts of updating many parameters that go, where they become one: an estimate. The numbers
stay as many."""
_OF_READS = (0.6, 1.0, 1.0)
"""With PyTorch 2.13 on one core, one product of 16 rows took a sixth of 16 products of one row,
where an eighth was priced: stacking and splitting the rows costs, too."""
_CALLING = (0.5, 0.9)
"""The parts of calling the operators that go, at least and as expected: where `many-tiny-operators`
measured batches of samples, 0.7 to 1.5 of the dispatch was saved."""


class IndependentCalls(Rule):
    """A loop calls the same operators for each element, and no call needs another's result."""

    id = "independent-calls"
    title = "Make one call of the calls that do not need each other"
    needs = (*(Need.WORK, Need.HOST_EVENTS, Need.PYTORCH, Need.EXAMINED_STEPS),)
    look = "independent calls"

    minimum_share = Limit(
        0.05, "share", "Rewriting a loop is not worth it for less than 5 % of the step."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        found = occurring(signals, "independent")
        if not found:
            return
        share = min(sum(each.share for each in found), 1.0)
        first = found[0]
        spans, calling_ns = _calling(signals)
        spans_ns = total_ns(spans)
        times = (*(part * calling_ns for part in _CALLING), float(spans_ns))
        updating, python = optimizer_loop(signals).steps, EMPTY
        if first.elements is not None and first.elements <= _SMALL_ELEMENTS:
            if signals.device.is_host_only:
                spans_ns = dispatch(signals).like(first.operator)
            python = minus(signals.attribution.of(*_BETWEEN), join(spans, updating))
            parts = zip(_OF_SMALL, _OF_PYTHON, strict=True)
            times = tuple(of * spans_ns + rest * total_ns(python) for of, rest in parts)
        updates_ns = total_ns(updating) * min(sum(each.updates for each in found), 1.0)
        # Products that wait for their matrix, and not for the call.
        reads_ns = total_ns(examined_work(signals)) * min(sum(each.reads for each in found), 1.0)
        low, expected, high = (
            int(max(share * time_ns, of_reads * reads_ns) + part * updates_ns)
            for time_ns, part, of_reads in zip(times, _OF_UPDATES, _OF_READS, strict=True)
        )
        if self.is_minor(expected, signals):
            return
        claims = join(spans, python, *((updating,) if updates_ns else ()))
        is_table = first.operator == "aten::embedding"
        yield Finding(
            instance=f"{first.calls:,} operators in {place_of_observed(first)}",
            summary=(
                f"{per_step(int(share * spans_ns), signals)} goes into calls of which one could do"
                f" the work of {first.amount:.0f}: {place_of_observed(first)} calls"
                f" {first.operator} of {first.shapes} again and again, and no call needs the"
                " result of another."
            ),
            saving=Saving(low, expected, high, claims, "modeled"),
            evidence=(observed_table(found, Column("at_once", "Could be one", "count")),),
            remedies=advise(
                "one-table" if is_table else "stacked-elements", "list-operators", "compile"
            ),
        )


def _calling(signals: Signals) -> tuple[Intervals, int]:
    """When operators run, and how much of that calling them takes."""
    if signals.device.is_host_only:
        calling = dispatch(signals)
        return calling.spans, calling.calling_ns
    spans = examined_work(signals)
    examined = signals.trace.facts.examined
    is_host_limited = examined is not None and not examined.on_device
    return spans, total_ns(spans) if is_host_limited else 0
