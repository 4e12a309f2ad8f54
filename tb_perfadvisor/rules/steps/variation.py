"""Steps that differ from one another."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.advice import advise
from tb_perfadvisor.machine.facts import POWER_CAP
from tb_perfadvisor.rules.amounts import share_of_window
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.host import host_code_table, lines_tables
from tb_perfadvisor.rules.evidence.tables import (
    events_by_name,
    run_finding,
    run_series,
    step_time_series,
    steps_of,
)
from tb_perfadvisor.rules.finding import (
    Cell,
    Column,
    Evidence,
    Finding,
    Saving,
    Span,
    Table,
    costliest,
)
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.core.steps.server_annotations import StepKind
from tb_perfadvisor.signals.host.busy_functions import (
    busiest_function,
    runs_in_phases,
    side_work_share,
)
from tb_perfadvisor.signals.launch.delays import taken_by_others_ns
from tb_perfadvisor.signals.serving.server_steps import Mask, ServerSteps, server_steps
from tb_perfadvisor.signals.steps.step_variation import (
    OF_THE_HOST,
    StepVariation,
    dominant_event,
    in_steps,
    step_variation,
)
from tb_perfadvisor.signals.steps.timed_run import (
    RunCost,
    RunParts,
    late_rank,
    parts_of_worker,
    reduced_clocks,
    run_parts,
)
from tb_perfadvisor.soundness.waits import waiting_calls
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.intervals import overlap_ns, shared_ns, total_ns, union
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.training.pauses import find_delays
from tb_perfadvisor.training.progress import Progress
from tb_perfadvisor.units import NS_PER_MS, format_duration, format_share

_FEWEST_DECODES = 3
"""With fewer steps that only decode, their usual time is unknown."""


class LongPrefillStep(Rule):
    """Requests that generate tokens wait long for the next one, because a step reads prompts."""

    id = "long-prefill-step"
    title = "Split long prompts into smaller chunks"
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS)
    is_preview = False

    shortest_pause_ns = Limit(
        50 * NS_PER_MS,
        "ns",
        "20 tokens per second are more than people read; MLPerf Inference asks for 40 to 200 ms.",
    )
    smallest_ratio = Limit(
        3.0, "ratio", "A step of three times the usual time is what a small chunk costs as well."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        steps = server_steps(signals)
        if steps is None:
            return
        pauses = _pauses(steps)
        is_long = (pauses.waiting > 0) & (pauses.time_ns >= self.shortest_pause_ns)
        if pauses.usual_ns is not None:
            is_long &= pauses.time_ns >= self.smallest_ratio * pauses.usual_ns
        if not is_long.any():
            return
        time_ns = pauses.time_ns[is_long]
        longest = int(np.flatnonzero(is_long)[time_ns.argmax()])
        count, waiting = int(is_long.sum()), int(pauses.waiting[longest])
        pause = format_duration(int(time_ns.max()))
        times = "once" if count == 1 else f"{count:,} times"
        often = (
            f"Requests in the middle of their answers wait for prompts {times} in"
            f" {len(steps):,} steps: {waiting:,} of them wait"
            if len(steps) > 1
            else f"{waiting:,} requests in the middle of their answers wait"
        )
        usual = (
            ""
            if pauses.usual_ns is None
            else f" Steps that only decode take {format_duration(pauses.usual_ns)}."
        )
        yield Finding(
            instance=f"{waiting:,} requests wait {pause}",
            summary=(f"{often} {pause} for the next token{_read(steps, longest)}.{usual}"),
            severity="low",
            evidence=(
                _table(steps, pauses, is_long),
                costliest(
                    "Steps that decoding requests wait for",
                    signals.worker,
                    steps.row[is_long],
                    time_ns,
                ),
            ),
            remedies=advise("prefill-chunks"),
        )


class _Pauses(Struct, frozen=True):
    """How long requests wait for each step; columns of shape (steps,)."""

    waiting: Int64
    """Requests that wait for their next token; 0 for steps that read no prompts."""
    time_ns: Int64
    usual_ns: int | None
    """Of steps that only decode; None if there are too few."""


def _pauses(steps: ServerSteps) -> _Pauses:
    decodes = steps.is_kind(StepKind.DECODE)
    time_ns = steps.period_ns if steps.is_periodic else steps.device_ns
    usual = int(np.median(time_ns[decodes])) if decodes.sum() >= _FEWEST_DECODES else None
    number = np.maximum(steps.decode_requests, 0)
    # Steps that only read prompts may follow one another.
    decoding = np.flatnonzero(number > 0)
    following = np.searchsorted(decoding, np.arange(len(steps)))
    around = np.minimum(
        np.append(0, number[decoding])[following], np.append(number[decoding], 0)[following]
    )
    waiting = np.where(steps.is_kind(StepKind.PREFILL), around, number)
    return _Pauses(np.where(decodes, 0, waiting), time_ns, usual)


def _read(steps: ServerSteps, place: int) -> str:
    tokens = int(steps.prefill_tokens[place])
    return "" if tokens < 0 else f" while the step reads {tokens:,} prompt tokens"


def _table(steps: ServerSteps, pauses: _Pauses, chosen: Mask) -> Table:
    def known(value: int) -> Cell:
        return None if value < 0 else value

    longest_first = np.flatnonzero(chosen)[np.argsort(-pauses.time_ns[chosen], kind="stable")]
    return Table(
        "Steps that decoding requests wait for",
        (
            Column("kind", "Step"),
            Column("waiting", "Requests that wait", "count"),
            Column("prompts", "Prompts", "count"),
            Column("tokens", "Prompt tokens", "count"),
            Column("time_ns", "Time", "ns"),
        ),
        tuple(
            (
                StepKind(steps.kind[place]).label,
                int(pauses.waiting[place]),
                known(int(steps.prefill_requests[place])),
                known(int(steps.prefill_tokens[place])),
                int(pauses.time_ns[place]),
            )
            for place in longest_first.tolist()
        ),
    )


_ENDINGS = {1: "st", 2: "nd", 3: "rd"}
_MOST_STEPS_LISTED = 5


class PeriodicSpikes(Rule):
    """At regular intervals a step takes longer because the host does additional work."""

    id = "periodic-spikes"
    title = "Do periodic work less often"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.STEPS, Need.SEVERAL_STEPS)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "Spread over all steps, less than 2 % is lost in their variation."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        variation = step_variation(signals)
        spikes = variation.spikes
        # Batches that are late in a rhythm have a finding of their own.
        if spikes is None or spikes.part == Cause.INPUT.label:
            return
        claims = in_steps(signals, spikes.part, spikes.index)
        count, seen = len(variation.duration_ns), len(spikes.index)
        mean_ns = float(spikes.excess_ns.mean())
        # The profile may contain one spike more or less than its length suggests.
        due_ns, seen_ns = round(mean_ns * count / spikes.period), round(mean_ns * seen)
        high_ns = min(max(due_ns, seen_ns), total_ns(claims))
        expected_ns = min(due_ns, high_ns)
        if self.is_minor(expected_ns, signals):
            return
        name, host_code = dominant_event(signals, claims, int(spikes.excess_ns.sum()))
        numbers = [str(number) for number in signals.steps.number[spikes.index].tolist()]
        listed = ", ".join(numbers[:_MOST_STEPS_LISTED]) + (
            ", …" if seen > _MOST_STEPS_LISTED else ""
        )
        doing = f"the host is in {name}" if name else "the host does something unrecorded"
        start, end = claims[(claims[:, 1] - claims[:, 0]).argmax()].tolist()
        yield Finding(
            instance=(
                f"every {_ordinal(spikes.period)} step takes {format_duration(mean_ns)} longer"
            ),
            summary=(
                f"Every {_ordinal(spikes.period)} step ({listed}) takes"
                f" {format_duration(mean_ns)} longer ({spikes.part.lower()}): {doing}."
            ),
            saving=Saving(
                min(due_ns, seen_ns, expected_ns), expected_ns, high_ns, claims, "measured"
            ),
            evidence=(
                step_time_series(signals),
                host_code_table(
                    "Host code during the longer steps",
                    "Code",
                    Column("own_ns", "Idle time", "ns"),
                    host_code,
                    total_ns(claims) - sum(host_code.self_ns),
                ),
                Span("Longest wait", signals.worker, start, end, "", spikes.part),
            ),
            remedies=advise(*(() if name else ("record-host-code",)), "save-rarely"),
        )


def _ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 20 else _ENDINGS.get(number % 10, "th")
    return f"{number}{ending}"


class StepOutliers(Rule):
    """A few steps take much longer than the others."""

    id = "step-outliers"
    title = "Look into the slow steps"
    needs = (Need.WORK, Need.STEPS, Need.SEVERAL_STEPS)
    suffices = Need.RUN_TIMERS
    is_preview = False

    greatest_share = Limit(
        0.2, "share", "If more than every fifth step is slow, slow steps are normal."
    )
    greatest_gap_share = 0.02
    """Gaps between steps that take more than this have a finding of their own."""
    minimum_run_share = 0.03
    """What costs less of the run is lost in its variation."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        for found in (_reduced_clocks(signals), _slower_steps(signals)):
            if found is not None and found.run_share >= self.minimum_run_share:
                yield found
        if self.meets_needs(signals):
            yield from self._in_steps(signals)

    def _in_steps(self, signals: Signals) -> Iterable[Finding]:
        variation = step_variation(signals)
        outliers = variation.outliers
        count = len(variation.duration_ns)
        if len(outliers) == 0 or len(outliers) > self.greatest_share * count:
            return
        part, excess = variation.grown(outliers)
        is_plain = len(outliers) == 1 and not len(signals.trace.rows(EventKind.OPERATOR))
        if part == "Operators on the host" or (is_plain and signals.device.is_host_only):
            return  # the machine was busy with other work
        gaps_ns = signals.attribution.total_ns(Cause.BETWEEN_STEPS)
        has_gaps = share_of_window(gaps_ns, signals) > self.greatest_gap_share
        if part == Cause.BETWEEN_STEPS.label and has_gaps:
            return
        claims = in_steps(signals, part, outliers)
        excess_ns = min(int(excess.sum()), total_ns(claims))
        median_ns = float(np.median(variation.duration_ns))
        slowest = int(outliers[variation.duration_ns[outliers].argmax()])
        number, slowest_ns = int(signals.steps.number[slowest]), int(variation.duration_ns[slowest])
        is_lost = part in OF_THE_HOST
        side_ns = side_work_share(signals.trace.facts.lines) * signals.attribution.window_ns
        if is_lost and signals.device.is_host_only and 2 * side_ns >= excess_ns:
            return  # a figure in every tenth step makes each of these slow
        name = dominant_event(signals, claims, excess_ns)[0] if is_lost else ""
        yield Finding(
            instance=(
                f"step {number} takes {format_duration(slowest_ns)},"
                f" the median {format_duration(median_ns)}"
            ),
            summary=(
                f"{len(outliers)} of {count} steps {'is' if len(outliers) == 1 else 'are'} much"
                f" slower than the others: step {number} takes"
                f" {format_duration(slowest_ns)}, the median is"
                f" {format_duration(median_ns)}. Most of the additional time is {part.lower()}"
                f"{f', in {name}' if name else ''}."
            ),
            saving=(
                Saving(
                    0,
                    excess_ns // 2,
                    excess_ns,
                    claims,
                    "heuristic" if len(outliers) == 1 else "measured",
                )
                if is_lost
                else None
            ),
            severity=None if is_lost else "low",
            evidence=_evidence(signals, variation, slowest),
            remedies=advise("record-stacks", "compare-steps"),
        )


def _reduced_clocks(signals: Signals) -> Finding | None:
    """Steps of the run that were slower while the GPU's clock was reduced."""
    reduced = reduced_clocks(signals)
    if reduced is None:
        return None
    cost, share = reduced.cost, format_share(reduced.cost.run_share)
    rank = cost.parts.rank
    gpu = f"rank {rank}'s GPU" if len(run_parts(signals)) > 1 else "the GPU"
    clock, usual = (f"{each / 1e9:.2f} GHz" for each in (reduced.clock_hz, reduced.usual_clock_hz))
    least = "" if reduced.usual_step_ns is not None else "up to "
    than = (
        f", and they take {format_duration(cost.mean_step_ns)} instead of"
        f" {format_duration(reduced.usual_step_ns)}"
        if reduced.usual_step_ns is not None
        else ""
    )
    facts = [
        f"{reduced.temperature_c:.0f} °C" if reduced.temperature_c is not None else "",
        f"{reduced.power_w:.0f} W" if reduced.power_w is not None else "",
    ]
    measured = f" ({', '.join(filter(None, facts))})" if any(facts) else ""
    return run_finding(
        cost,
        f"Let {gpu} keep its clock: {reduced.reason} takes {least}{share} of the run",
        f"The clock of {gpu} is {clock} instead of {usual} {steps_of(cost)}, because of"
        f" {reduced.reason}{measured}{than}: {least}{share} of the run.",
        (
            run_series("Time of a step over the run", cost, cost.parts.step_ns),
            Table(
                "Clock, temperature and power over the run",
                (
                    Column("step", "From step", "count"),
                    Column("step_ns", "Time of a step", "ns"),
                    Column("clock_hz", "Clock (Hz)", "count"),
                    Column("temperature_c", "Temperature (°C)", "count"),
                    Column("power_w", "Power (W)", "count"),
                    Column("reduced", "Reduced", "share"),
                ),
                tuple(_clock_rows(cost.parts)),
            ),
        ),
        advise("device-power" if reduced.reason == POWER_CAP else "device-cooling"),
        (rank,),
    )


def _clock_rows(parts: RunParts) -> Iterable[tuple[Cell, ...]]:
    columns = (parts.clock_hz, parts.temperature_c, parts.power_w)
    reduced = np.fmax(parts.heat, parts.power_cap)
    for place in range(len(parts.steps)):
        values = (*(column[place] for column in columns), reduced[place])
        known = (None if np.isnan(each) else float(each) for each in values)
        yield int(parts.first_step[place]) + 1, float(parts.step_ns[place]), *known


def _slower_steps(signals: Signals) -> Finding | None:
    """Steps that became slower over the run, beyond what has a cause of its own."""
    parts, lines = parts_of_worker(signals), signals.trace.facts.lines
    if parts is None or runs_in_phases(lines, int(parts.steps.sum())):
        return None
    known_ns = np.nan_to_num(parts.input_ns)
    for found in (reduced_clocks(signals), late_rank(signals)):
        if found is not None:
            known_ns = known_ns + np.where(found.cost.affected, found.cost.cost_ns, 0.0)
    step_ns = np.maximum(parts.step_ns - known_ns, 1.0)
    end_ns = np.cumsum(step_ns * parts.steps).astype(np.int64)
    start_ns = np.append(0, end_ns[:-1])
    progress = Progress("", False, parts.first_step, parts.steps, start_ns, end_ns, ())
    slower = [each for each in find_delays(progress, {}, ()) if each.slowdown is not None]
    if not slower or slower[0].slowdown is None:
        return None
    delay, slowdown = slower[0], slower[0].slowdown
    differs_ns = np.abs(step_ns - slowdown.before_ns)[parts.first_step < delay.first_step]
    if len(differs_ns) and 2 * np.median(differs_ns) > slowdown.before_ns:
        return None  # they had no pace, as where most steps only launch, and some wait
    lost_ns = slowdown.after_ns - slowdown.before_ns
    if signals.device.is_host_only and lost_ns <= taken_by_others_ns(
        int(slowdown.after_ns), signals.trace
    ):
        return None  # other programs may have begun to use the cores
    affected = (parts.first_step >= delay.first_step) & (parts.first_step < delay.last_step)
    cost = RunCost(parts, affected, np.maximum(step_ns - slowdown.before_ns, 0.0))
    before, after = format_duration(slowdown.before_ns), format_duration(slowdown.after_ns)
    share = format_share(cost.run_share)
    how = "little by little" if slowdown.is_gradual else f"after step {delay.first_step:,}"
    function = busiest_function(lines) if signals.device.is_host_only else None
    where = "" if function is None else f", mostly in {function}"
    title = "what grows from step to step" if slowdown.is_gradual else "why steps become slower"
    finding = run_finding(
        cost,
        f"Find out {title}: that takes {share} of the run{where}",
        f"Steps become slower {how}: {after} instead of {before}, without waits for input."
        f" Together that is {share} of the run.",
        (run_series("Time of a step over the run", cost, parts.step_ns), *lines_tables(lines)),
        advise("record-stacks", "compare-steps"),
    )
    if slowdown.is_gradual and function and function.loops and function.activity == "Python":
        return replace(finding, severity="low")  # the loop may have more to do, one by one
    return finding


def _evidence(signals: Signals, variation: StepVariation, slowest: int) -> tuple[Evidence, ...]:
    steps = signals.steps
    is_normal = np.ones(len(variation.duration_ns), dtype=bool)
    is_normal[variation.outliers] = False
    grown = sorted(
        variation.parts.items(),
        key=lambda part: int(np.median(part[1][is_normal])) - int(part[1][slowest]),
    )
    rows = [
        (part, int(np.median(values[is_normal])), int(values[slowest]))
        for part, values in grown
        if values[slowest] or np.median(values[is_normal])
    ]
    return (
        step_time_series(signals),
        Table(
            "Slowest step vs. the median of the other steps",
            (
                Column("part", "Part"),
                Column("median_ns", "Median", "ns"),
                Column("slowest_ns", f"Step {int(steps.number[slowest])}", "ns"),
            ),
            tuple(rows),
        ),
        Span(
            "Slowest step",
            signals.worker,
            int(steps.start_ns[slowest]),
            int(steps.end_ns[slowest]),
            "",
            f"step {int(steps.number[slowest])}",
        ),
        *lines_tables(signals.trace.facts.lines),
    )


_START_UP_CALLS = (EventKind.LAUNCH, EventKind.ALLOCATE, EventKind.RUNTIME)

_ADVICE = ("record-later", "record-after-warm-up")


class WarmUpInProfile(Rule):
    """The profile contains work that a program does only once, when it starts."""

    id = "warm-up-in-profile"
    title = "Start recording after the warm-up"
    needs = (Need.WORK, Need.HOST_EVENTS)
    is_preview = False

    minimum_share = Limit(0.05, "share", "Less hardly changes the numbers of the profile.")
    minimum_call_ns = Limit(
        10_000_000, "ns", "Launches take microseconds and allocations at most a few milliseconds."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        if len(signals.steps) > 1:
            yield from self._by_steps(signals)
        else:
            yield from self._by_calls(signals)

    def _by_steps(self, signals: Signals) -> Iterable[Finding]:
        variation = step_variation(signals)
        duration = variation.duration_ns
        if len(duration) < 3 or not variation.is_warm_up[0]:
            return
        part, excess = variation.grown(np.array([0]))
        share = share_of_window(int(duration[0] - np.median(duration[1:])), signals)
        if part == "Operators on the host" or share < self.minimum_share:
            return
        yield Finding(
            instance=f"the first step takes {format_duration(int(duration[0]))}",
            summary=(
                f"The first step takes {format_duration(int(duration[0]))}, the others take"
                f" {format_duration(float(np.median(duration[1:])))}: the start of the program is"
                f" {format_share(share)} of the profile, mostly {part.lower()}"
                f" ({format_duration(int(excess[0]))} more)."
            ),
            severity="low",
            evidence=(step_time_series(signals),),
            remedies=advise(*_ADVICE),
        )

    def _by_calls(self, signals: Signals) -> Iterable[Finding]:
        trace = signals.trace
        events, rows = trace.events, trace.rows(*_START_UP_CALLS)
        rows = rows[events.duration_ns[rows] > self.minimum_call_ns]
        # A copy that waits for the device may be long at any time.
        rows = rows[~is_in(rows, waiting_calls(trace))]
        gaps = signals.attribution.idle
        waits = union(gaps.start_ns[~gaps.is_queued], gaps.end_ns[~gaps.is_queued])
        idle = overlap_ns(waits, events.start_ns[rows], events.end_ns[rows])
        rows, idle = rows[idle > 0], idle[idle > 0]
        total = shared_ns(waits, events.spans(rows))
        share = share_of_window(total, signals)
        if len(rows) == 0 or share < self.minimum_share:
            return
        calls = f"{len(rows)} long {'call' if len(rows) == 1 else 'calls'}"
        takes = "takes" if len(rows) == 1 else "take"
        yield Finding(
            instance=f"{calls} {takes} {format_share(share)} of the profile",
            summary=(
                f"{calls} of the device's runtime {takes} {format_duration(total)} of the profile"
                f" ({format_share(share)}), as at the start of a program: other findings look"
                " smaller than they are."
            ),
            severity="low",
            evidence=(
                events_by_name(
                    "Long calls",
                    "Call",
                    trace,
                    rows,
                    ((Column("idle_ns", "Device idle", "ns"), idle),),
                ),
                costliest("Longest calls", signals.worker, rows, idle),
            ),
            remedies=advise(*_ADVICE),
        )
