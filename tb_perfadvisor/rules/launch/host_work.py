"""What else the host does while the device waits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.machine.facts import OF_TRAINING, Activity, Line, Lines, SideWork
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.rules.amounts import (
    count_per_step,
    per_step,
    share_of_each,
    share_of_window,
)
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.host import (
    described,
    dispatching_on_host,
    host_code_table,
    is_mostly_wrapper,
    likely_ns,
    lines_tables,
    longest_stretch,
    nameless_tables,
    place_of,
    seen_most,
    seen_most_of,
)
from tb_perfadvisor.rules.evidence.tables import (
    equal_part,
    events_by_name,
    step_loops,
)
from tb_perfadvisor.rules.finding import Column, Evidence, Finding, Saving, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.core.causes import COMPUTE
from tb_perfadvisor.signals.core.host_activity import HostActivity, host_activity
from tb_perfadvisor.signals.host.busy_functions import (
    BusyFunction,
    busiest_for,
    busiest_function,
    is_beside_steps,
    share_with_loops,
)
from tb_perfadvisor.signals.host.call_tree import SelfTime, self_time
from tb_perfadvisor.signals.host.debugging import garbage_collections
from tb_perfadvisor.signals.host.idle import (
    OVERRIDING,
    STALLING,
    IdleOwner,
    idle_without,
    is_python_in_single_step,
    nameless,
    records_all_operators,
    recurs,
)
from tb_perfadvisor.signals.launch.delays import (
    LONGEST_LAUNCH_GAP_NS,
    accidental_gaps,
    dispatching,
    short_and_long_gaps,
    stretched_ns,
    taken_by_others_ns,
)
from tb_perfadvisor.signals.launch.eager_calls import file_writes
from tb_perfadvisor.signals.recording.availability import NAMELESS_SHARE
from tb_perfadvisor.signals.recording.profiler_overhead import profiler_overhead
from tb_perfadvisor.signals.steps.around_steps import evaluation_between_steps, work_between_steps
from tb_perfadvisor.signals.steps.step_variation import in_steps, step_variation
from tb_perfadvisor.signals.workload.workload import Part, workload
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    intersect,
    join,
    minus,
    overlap_ns,
    single,
    total_ns,
)
from tb_perfadvisor.trace.names import named, short_annotation, short_name
from tb_perfadvisor.units import format_duration, format_share
from tb_perfadvisor.whatif import Remove

_OF_WRAPPER = "Speed up the generated wrapper of the compiled code"
_NAMELESS = "Find out what the host does in the long gaps"
_BETWEEN = "Find out what the host does between {}"
_NOTHING = "Where nothing is recorded"
_OF_SAMPLES = "Make batches in fewer calls of Python"
_OF_VALUES = "Make arrays of arrays, not of Python values"
_DO: dict[Activity | None, str] = {
    "Python": "Let compiled calls do what Python does step by step",
    "operators": "Make fewer temporary arrays",
    "parts": "Copy fewer parts of arrays",
    "calls": "Make fewer or cheaper calls of compiled functions",
    "waits": "Find out what the program waits for",
}
"""Titles, by what a function does."""
_LOOPS = "Let one call do what a loop does one by one"
_ADVICE = ("overlapped-schedule", "processor-backend", "host-work")
_IN_WRAPPER = ("device-graphs", "cpp-wrapper", "larger-regions")
"""Changes that spend less time between the kernels of a compiled graph."""


class PythonOverhead(Rule):
    """The device idles for long stretches while the host runs Python and launches nothing."""

    id = "python-overhead"
    title = "Speed up the host code that everything waits for"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.EVERY_LAUNCH)
    suffices = Need.NAMELESS_TIME
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "Restructuring a program is not worth it for less than 5 % of the step."
    )
    minimum_stall_ns = Limit(
        LONGEST_LAUNCH_GAP_NS,
        "ns",
        "In shorter gaps the host launches, even if slowly.",
    )
    minimum_python_ns = Limit(
        300_000,
        "ns",
        "On the CPU PyTorch records every operator, including views and checks. Between two of "
        "them there are about 20 microseconds of Python, after a backward pass up to 200. XLA "
        "records every operation, and what dispatches a program between two of them.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        found = tuple(self._of_host_code(signals)) if self.meets_needs(signals) else ()
        yield from found
        unowned = idle_without(signals, *OVERRIDING, *STALLING, IdleOwner.SLOW_LAUNCH)
        claims = join(*(each.saving.claims for each in found if each.saving is not None))
        unexplained = signals.attribution.intervals[Cause.UNEXPLAINED]
        has_operators = len(signals.trace.rows(EventKind.OPERATOR)) > 0 or len(signals.device.rows)
        lines = signals.trace.facts.lines
        function = None if has_operators else busiest_function(lines, of_steps=True)
        if function is not None:  # looks at the whole run tell more than those at a few steps
            unexplained = signals.attribution.of(Cause.PYTHON, Cause.UNEXPLAINED)
        unnamed = nameless(signals, intersect(unexplained, unowned))
        spikes = step_variation(signals).spikes
        if spikes is not None:  # `periodic-spikes` reports these, with what recurs
            unnamed = minus(unnamed, in_steps(signals, spikes.part, spikes.index))
        unnamed = minus(unnamed, join(claims, dispatching_on_host(signals)))
        total = total_ns(unnamed)
        if total > NAMELESS_SHARE * signals.attribution.window_ns:
            if has_operators and not found:
                function = busiest_for(signals, total)
            yield self._of_nameless(signals, unnamed, function, has_price=not has_operators)

    def _of_nameless(
        self, signals: Signals, unnamed: Intervals, function: BusyFunction | None, has_price: bool
    ) -> Finding:
        """Time without a name, and the function in which looks over the whole run found it."""
        total = total_ns(unnamed)
        length_ns = unnamed[:, 1] - unnamed[:, 0]
        is_short = 2 * int(length_ns[length_ns > self.minimum_stall_ns].sum()) <= total
        on_cpu = signals.device.is_host_only
        title = _BETWEEN.format("operators" if on_cpu else "launches") if is_short else _NAMELESS
        change = "record-host-code"
        saving, is_python, loops = None, False, ""
        lines = signals.trace.facts.lines
        if function is not None:
            # Where operators are recorded, what takes long in compiled code is known.
            activity = function.activity if has_price else None
            title = _LOOPS if function.loops else _DO.get(activity, self.title)
            title = f"{title}: {function}"
            is_array_work = activity in ("operators", "parts")
            change = "arrays-in-place" if is_array_work else "one-call-for-all"
            change = "shorter-waits" if activity == "waits" else change
            is_python = activity == "Python"
        if function is not None and lines is not None and has_price:
            # Of Python's own instructions, half is a guess. Compiled work may all be needed.
            share = share_with_loops(lines, function) if is_python else min(function.share, 1.0)
            if share > function.share:
                loops = f"; {format_share(share)} with all such loops"
            high_ns = min(round(share * signals.attribution.window_ns), total)
            claims = intersect(unnamed, equal_part(signals, share))
            saving = Saving(0, high_ns // 2 * is_python, high_ns, claims, "heuristic")
        return Finding(
            title=title,
            instance="" if function is None else str(function),
            summary=(
                f"{seen_most_of(function)}{loops}. A faster way saves at most that."
                if function is not None and has_price
                else "Nothing in the profile tells what the host does during"
                f" {per_step(total, signals)} in which"
                f" {'no operator runs' if on_cpu else 'the device idles'}"
                f"{'' if function is None else '. ' + seen_most_of(function)}."
            ),
            saving=saving if is_python else None,
            bounds=None if is_python else saving,
            evidence=(
                *nameless_tables(signals, unnamed, _NOTHING),
                *lines_tables(lines),
            ),
            remedies=advise(change),
            severity="medium" if is_python else "low",
        )

    def _of_host_code(self, signals: Signals) -> Iterable[Finding]:
        attribution = signals.attribution
        is_recorded = records_all_operators(signals)
        usual_ns = self.minimum_python_ns if is_recorded else self.minimum_stall_ns
        longest_ns = stretched_ns(usual_ns, signals.trace)
        _, gaps = short_and_long_gaps(attribution.idle, longest_ns)
        recorded = attribution.of(Cause.PYTHON, Cause.FRAMEWORK)
        stalls = intersect(
            join(recorded, attribution.intervals[Cause.UNEXPLAINED]),
            idle_without(signals, *OVERRIDING, *STALLING, IdleOwner.SLOW_LAUNCH),
        )
        dispatched = join(dispatching_on_host(signals), dispatching(signals))
        stalls = minus(stalls, join(dispatched, accidental_gaps(signals)))
        # The host code inside a gap must be long by itself.
        host_code_ns = overlap_ns(stalls, gaps[:, 0], gaps[:, 1])
        compiling = attribution.intervals[Cause.COMPILING]
        # The Python around a compilation prepares it, and goes with it.
        compiling_ns = overlap_ns(compiling, gaps[:, 0], gaps[:, 1])
        gaps = gaps[(host_code_ns > longest_ns) & (host_code_ns > compiling_ns)]
        claims = intersect(stalls, gaps)
        total = total_ns(claims)
        if self.is_minor(total, signals):
            return
        is_recurring = recurs(signals, gaps)
        if not is_recurring and not is_python_in_single_step(signals, claims):
            return
        recorded_stalls = intersect(claims, recorded)
        recorded_ns = total_ns(recorded_stalls)
        is_known = 2 * recorded_ns >= total
        # What others took of the cores stops the program anywhere, and nothing names it.
        is_seen = is_known or busiest_for(signals, total) is not None
        others_ns = 0 if is_seen else taken_by_others_ns(attribution.window_ns, signals.trace)
        if self.is_minor(total - others_ns, signals):
            return
        recording_ns = profiler_overhead(signals).within_ns(recorded_stalls)
        host_code = self_time(signals.trace, signals.step_track, claims)
        is_in_wrapper = is_mostly_wrapper(host_code, total)
        # An annotation is no activity, but names the time all the same.
        is_named = bool(host_code.names) and 2 * host_code.self_ns[0] > total
        name = short_name(host_code.names[0]) if host_code.names and is_known | is_named else ""
        what = f", mostly in {name}" if name else ""
        if is_in_wrapper:
            what = ", mostly in the wrapper that torch.compile generated around its kernels"
        lines = signals.trace.facts.lines
        seen = seen_most(lines)
        unnamed = nameless(signals, minus(claims, recorded))
        is_nameless = not is_in_wrapper and not is_named and 2 * total_ns(unnamed) > total
        what = f"; nothing in the profile tells what that code is{seen}" if is_nameless else what
        function = busiest_for(signals, total) if is_nameless else None
        first = _IN_WRAPPER if is_in_wrapper else ()
        expected_ns = recorded_ns if is_known else likely_ns(signals, function, total, others_ns)
        realized = 1.0
        # What each call needs cannot be left out, but done beside the device's work.
        if function is None and workload(signals).has(Part.FORWARD_ONLY):
            realized = min(attribution.total_ns(*_WORK) / max(expected_ns, 1), 1.0)
        subject = "No operator runs" if signals.device.is_host_only else "The device idles"
        yield Finding(
            title=_title(function, is_nameless, is_in_wrapper),
            instance=name if function is None else str(function),
            summary=(
                f"{subject} for {per_step(total, signals)} during long stretches of host code that"
                f" launch nothing{what}."
            ),
            saving=Saving(
                max(recorded_ns - recording_ns, 0) if is_known and is_recurring else 0,
                round(realized * expected_ns),
                total,
                claims,
                "measured" if is_known else "heuristic",
                (Remove(recorded_stalls),) if is_known else (),
                realized_share=realized,
            ),
            evidence=(
                *_python_evidence(signals, claims, total - recorded_ns, host_code),
                *(nameless_tables(signals, unnamed, _NOTHING)[:1] if is_nameless else ()),
                *(lines_tables(lines) if is_nameless and function is None else ()),
            ),
            remedies=advise(*_first_advice(function, is_nameless), *first, *_ADVICE),
        )


_WORK = (*COMPUTE, Cause.HOST_COMPUTE, Cause.COMMUNICATION, Cause.COPIES)


def _title(function: BusyFunction | None, is_nameless: bool, is_in_wrapper: bool) -> str:
    if function is not None and function.converts:
        return f"{_OF_VALUES}: {function}"
    if function is not None:
        return f"{_OF_SAMPLES}: {function}" if function.makes_samples else ""
    return _NAMELESS if is_nameless else _OF_WRAPPER if is_in_wrapper else ""


def _first_advice(function: BusyFunction | None, is_nameless: bool) -> tuple[str, ...]:
    if function is not None and function.converts:
        return ("arrays-once",)
    if function is not None:
        return ("batch-at-once",) if function.makes_samples else ("one-call-for-all",)
    return ("record-host-code",) if is_nameless else ()


def _python_evidence(
    signals: Signals, claims: Intervals, unrecorded_ns: int, host_code: SelfTime
) -> tuple[Evidence, ...]:
    evidence: tuple[Evidence, ...] = (
        longest_stretch("Longest stretch", signals, claims, "no launches"),
        host_code_table(
            "Host code during the stretches, by self time",
            "Code",
            Column("own_ns", "Device idle", "ns"),
            host_code,
            unrecorded_ns,
        ),
    )
    if not host_code.names:
        return evidence
    rows, cost_ns = host_code.rows, host_code.row_self_ns
    return (*evidence, costliest("Longest of these events", signals.worker, rows, cost_ns))


class GarbageCollection(Rule):
    """The device waits while Python collects garbage."""

    id = "garbage-collection"
    title = "Collect garbage between steps, not in them"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.PYTHON_FRAMES)
    is_preview = False

    minimum_share = Limit(
        0.01, "share", "Collecting young objects takes less than 1 % and pays off."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        trace, window = signals.trace, signals.attribution
        events, (rows, collecting) = trace.events, garbage_collections(signals)
        claims = intersect(
            window.of(
                Cause.BETWEEN_STEPS,
                Cause.LAUNCHING,
                Cause.FRAMEWORK,
                Cause.PYTHON,
                Cause.UNEXPLAINED,
            ),
            collecting,
        )
        total = total_ns(claims)
        if self.is_minor(total, signals):
            return
        idle = overlap_ns(claims, events.start_ns[rows], events.end_ns[rows])
        rows, idle = rows[idle > 0], idle[idle > 0]
        recording_ns = profiler_overhead(signals).within_ns(claims)
        subject = "No operator runs" if signals.device.is_host_only else "The device idles"
        yield Finding(
            instance=count_per_step(len(rows), "collection", signals),
            summary=(
                f"{subject} for {per_step(total, signals)} while Python collects garbage"
                f" ({count_per_step(len(rows), 'collection', signals)})."
            ),
            saving=Saving(
                max(total - recording_ns, 0), total, total, claims, "measured", (Remove(claims),)
            ),
            evidence=(
                events_by_name(
                    "Collections",
                    "Event",
                    trace,
                    rows,
                    ((Column("idle_ns", "Device idle", "ns"), idle),),
                ),
                costliest("Longest collections", signals.worker, rows, idle),
            ),
            remedies=advise("planned-collection", "no-collect-calls"),
        )


_RARER = 10
"""What is done a tenth as often still shows where a training is going."""
_DOES: dict[SideWork, str] = {
    "figures": "drawing figures",
    "images": "encoding images",
    "checkpoints": "saving checkpoints",
    "summaries": "writing summaries",
    "texts": "making texts of tensors",
    "every few steps": "what the loop does every few steps",
    "between epochs": "what runs between epochs",
}
_REMEDIES: dict[SideWork | None, str] = {
    **dict.fromkeys(OF_TRAINING, "evaluate-rarely"),
    "texts": "texts-when-written",
}
_SAVED_PER_EPOCH = 0.5
"""What runs once per epoch can seldom run a tenth as often."""
_LEAST_SAVED = 0.7
_EVALUATE = "Evaluate less often, or on fewer samples"
_SURE = 2.0
"""Standard errors: the low end."""
_LEARNING = 0.25
"""Of the time of a model. A backward pass takes as long as the forward one, or longer."""
_SAVES = regex(r"^EagerExecute: SaveV2$")


class SideWorkInLoop(Rule):
    """The training loop draws, saves or logs, and waits for it."""

    id = "side-work-in-loop"
    title = "Draw, save and log less often"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.RUN_LINES)
    suffices = Need.FILE_WRITES
    is_preview = False

    minimum_share = Limit(
        0.05, "share", "A checkpoint now and then takes less, and somebody wants it."
    )
    minimum_share_between_epochs = 0.2
    """Evaluating a part of the data once per epoch is usual."""
    minimum_looks = 20
    """With fewer, a line in several of them may be chance."""
    fewest_steps_of_an_epoch = 20
    """Reinforcement learning gathers new samples after as few steps."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        lines = signals.trace.facts.lines
        if lines is None or lines.looks < self.minimum_looks:
            yield from self._of_writes(signals)
            return
        sides = [line for line in lines.lines if is_beside_steps(line)]
        written = [line for line in sides if line.side_work not in OF_TRAINING]
        yield from self._of(signals, lines, written, self.minimum_share)
        if signals.device.is_host_only:
            # With a device, such a place may only wait for what the steps launched.
            for kind, least in zip(OF_TRAINING, self._least, strict=True):
                done = [line for line in sides if line.side_work == kind]
                done = [line for line in done if not self._feeds_steps(signals, lines, line)]
                shares = [e.share for e in lines.lines if e.side_work == kind and _learns(e)]
                if sum(shares) < _LEARNING * sum(line.share for line in done):
                    yield from self._of(signals, lines, done, least)

    def _of_writes(self, signals: Signals) -> Iterable[Finding]:
        """What TensorFlow's operators write more than once, where nobody looked at lines."""
        trace, writes, window = signals.trace, file_writes(signals), signals.attribution
        steps = single(window.window_start_ns, window.window_end_ns)
        waits = steps if signals.device.is_host_only else signals.host_idle
        claims = intersect(writes.spans, waits)
        total = total_ns(claims)
        if len(writes.spans) <= 1 or self.is_minor(total, signals):
            return
        doing = _DOES["checkpoints" if named(trace, writes.rows, _SAVES).any() else "summaries"]
        low_ns = int(_LEAST_SAVED * total)
        saving = Saving(low_ns, total - total // _RARER, total, claims, "measured")
        duration_ns = trace.events.duration_ns[writes.rows]
        yield Finding(
            instance=f"{doing} takes {format_share(share_of_window(total, signals))} of the steps",
            summary=f"{per_step(total, signals)} goes into {doing}, and the steps wait for it.",
            saving=saving,
            evidence=(
                costliest("Longest operators meanwhile", signals.worker, writes.rows, duration_ns),
            ),
            remedies=advise("side-work-rarely"),
        )

    def _feeds_steps(self, signals: Signals, lines: Lines, line: Line) -> bool:
        """Whether so few steps follow that what runs between them makes what they learn from."""
        if line.side_work != "between epochs" or not line.spells or not len(signals.steps):
            return False
        seconds = lines.seconds * (1 - line.share)
        step_s = float(np.median(signals.steps.duration_ns)) / 1e9
        return seconds / step_s / line.spells < self.fewest_steps_of_an_epoch

    @property
    def _least(self) -> tuple[float, float]:
        return self.minimum_share, self.minimum_share_between_epochs

    def _of(
        self, signals: Signals, lines: Lines, found: Sequence[Line], least: float
    ) -> Iterable[Finding]:
        share = min(sum(line.share for line in found), 1.0)
        error = math.sqrt(share * (1 - share) / lines.looks)
        if share < least or share - _SURE * error < least / 2:
            return
        kind = found[0].side_work
        is_training = kind in OF_TRAINING
        saved = _SAVED_PER_EPOCH if kind == "between epochs" else 1 - 1 / _RARER
        low = min(_LEAST_SAVED, 0.8 * saved) * share - _SURE * error
        expected, high = share * saved, share + error
        window_ns = signals.attribution.window_ns
        yield Finding(
            title=_EVALUATE if is_training else "",
            instance=f"{_doing(found)} takes {format_share(share)} of the run"
            f" ({place_of(found[0])})",
            summary=(
                f"{format_share(share)} of the {format_duration(lines.seconds * 1e9)} between the"
                f" first and the last step went into {_doing(found)}, and the steps wait for it."
                f" The program was {described(found[0])}."
            ),
            saving=Saving(
                int(low * window_ns),
                int(expected * window_ns),
                int(min(high, 1.0) * window_ns),
                equal_part(signals, min(high, 1.0)),
                "measured",
            ),
            evidence=lines_tables(lines),
            remedies=advise(_REMEDIES.get(kind, "side-work-rarely")),
        )


def _learns(line: Line) -> bool:
    """Whether gradients are computed, as for a second model that is trained more rarely."""
    return line.calls.endswith(("._tensor.backward", ".autograd.grad", ".backprop.gradient"))


def _doing(lines: Sequence[Line]) -> str:
    kinds = dict.fromkeys(line.side_work for line in lines if line.side_work is not None)
    return " and ".join(_DOES[kind] for kind in list(kinds)[:2])


_MAKES = regex(r"^EagerExecute: (?:MakeIterator|\w+Dataset(?:V\d+)?)$")
_ITERATOR = regex(r"^EagerExecute: MakeIterator$")
_FUNCTION = regex(r"^Eager(?:Local)?Execute: __inference_\w+$")
_FEWEST = 3
"""A pipeline that is made once or twice is not made in a loop."""
_EXPECTED = 0.9
"""What replaces it also checks the inputs and calls a function."""


class PipelineMadeInStep(Rule):
    """The loop makes tf.data pipelines, as each call of Keras's `predict` does."""

    id = "pipeline-made-in-step"
    title = "Make the input pipeline once, before the loop"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.STEPS)
    is_preview = False

    minimum_share = Limit(0.1, "share", "Below a tenth of the step, it is no matter of requests.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        trace, steps = signals.trace, signals.steps
        events, rows = trace.events, trace.rows(EventKind.ANNOTATION, EventKind.OPERATOR)
        made = steps.own(rows[named(trace, rows, _MAKES)])
        iterators = made[named(trace, made, _ITERATOR)]
        functions = rows[named(trace, rows, _FUNCTION)]
        if len(iterators) < _FEWEST or len(made) <= len(iterators) or not len(functions):
            return
        window = signals.attribution
        working = events.spans(functions)
        around = minus(single(window.window_start_ns, window.window_end_ns), working)
        making = events.spans(made)
        claims = around[overlap_ns(making, around[:, 0], around[:, 1]) > 0]
        total = total_ns(claims)
        if self.is_minor(total, signals):
            return
        is_keras = workload(signals).has(Part.KERAS)
        duration_ns = events.duration_ns[made]
        yield Finding(
            title="Call the model itself, not predict(), for each batch" if is_keras else "",
            instance=f"{count_per_step(len(iterators), 'pipeline', signals)}",
            summary=(
                f"{per_step(total, signals)} goes into making pipelines for the data"
                f" ({count_per_step(len(iterators), 'pipeline', signals)}), whose functions are"
                " traced anew, and into all else around them but the compiled function."
            ),
            saving=Saving(total // 2, round(_EXPECTED * total), total, claims, "measured"),
            evidence=(
                events_by_name(
                    "Operators that make the pipeline",
                    "Operator",
                    trace,
                    made,
                    ((Column("host_ns", "Time on the host", "ns"), duration_ns),),
                ),
                *step_loops(signals),
                *lines_tables(trace.facts.lines),
            ),
            remedies=advise("model-called-directly", "pipeline-before-loop"),
        )


class StepGap(Rule):
    """The device idles between the last work of a step and the first work of the next."""

    id = "step-gap"
    title = "Close the gap between steps"
    reads_sums = True
    needs = (Need.WORK, Need.HOST_EVENTS, Need.STEPS, Need.STEP_ENDS)
    is_preview = False

    minimum_share = Limit(
        0.02,
        "share",
        "The loop's bookkeeping takes up to 2 % of a short step in a healthy program.",
    )
    minimum_gap_ns = 20_000
    """The first launch of a step costs up to 20 microseconds."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        claims = signals.attribution.intervals[Cause.BETWEEN_STEPS]
        claims = claims[claims[:, 1] - claims[:, 0] >= self.minimum_gap_ns]
        gap_ns = total_ns(claims) - _added_by_recording_ns(signals)
        if gap_ns <= 0:
            return
        work = work_between_steps(signals) if signals.device.is_host_only else EMPTY
        evaluating_ns = total_ns(evaluation_between_steps(signals)) if len(work) else 0
        if self.is_minor(gap_ns + evaluating_ns, signals):
            return
        activity = host_activity(signals.trace, signals.step_track, claims)
        claimed = join(claims, work)
        window_ns = signals.attribution.window_ns
        bookkeeping_ns = round(self.minimum_share * window_ns)
        shown_ns = total_ns(activity.covered)
        low_ns = max(shown_ns, min(gap_ns, window_ns - gap_ns) - bookkeeping_ns)
        between_ns = signals.attribution.total_ns(Cause.BETWEEN_STEPS)
        on_cpu = signals.device.is_host_only
        subject = "No operator runs" if on_cpu else "The device idles"
        is_explained = bool(activity.names) and 2 * activity.inside_ns[0] > gap_ns
        what = f", mostly in {short_annotation(activity.names[0])}" if is_explained else ""
        expected_ns = gap_ns + evaluating_ns if on_cpu else max((shown_ns + gap_ns) // 2, low_ns)
        high_ns = total_ns(claimed)
        saving = Saving(low_ns, expected_ns, high_ns, claimed, "measured", (Remove(claims),))
        yield Finding(
            instance=short_annotation(activity.names[0])
            if is_explained
            else f"the time between steps takes {share_of_each(between_ns, signals)}",
            summary=(
                f"{subject} between steps for {per_step(gap_ns, signals)}{what}"
                f"{_evaluation_clause(evaluating_ns, signals)}."
            ),
            saving=saving,
            evidence=_gap_evidence(signals, claims, activity),
            remedies=advise(
                "read-rarely", "read-arrays-rarely", "overlapped-schedule", "steps-per-call"
            ),
        )


def _added_by_recording_ns(signals: Signals) -> int:
    """What the used steps took longer than those before, which a profiler may spend between them.

    It ends a step and begins the next, which takes as long as a loop around a small model does.
    """
    steps, usual_ns = signals.steps, signals.trace.facts.recording.step_ns
    if not usual_ns or not len(steps):
        return 0
    return max(round((float(np.median(steps.duration_ns)) - usual_ns) * len(steps)), 0)


def _evaluation_clause(evaluating_ns: int, signals: Signals) -> str:
    if evaluating_ns == 0:
        return ""
    return f"; other work, such as evaluation, takes another {per_step(evaluating_ns, signals)}"


def _gap_evidence(
    signals: Signals, claims: Intervals, activity: HostActivity
) -> tuple[Evidence, ...]:
    duration = signals.trace.events.duration_ns[activity.rows]
    return (
        longest_stretch("Longest gap", signals, claims, "no step code runs"),
        host_code_table(
            "Host activity in the gaps",
            "Activity",
            Column("inside_ns", "In the gaps", "ns"),
            activity,
            total_ns(claims) - total_ns(activity.covered),
        ),
        costliest("Longest activities in the gaps", signals.worker, activity.rows, duration),
        *step_loops(signals),
    )
