"""Steps that wait for their input."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step, share_of_each
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.host import lines_tables, nameless_tables
from tb_perfadvisor.rules.evidence.tables import (
    events_by_name,
    fetch_name,
    made_tables,
    run_finding,
    run_series,
    series_by_step,
    steps_of,
    with_run,
)
from tb_perfadvisor.rules.evidence.tfdata_pipelines import changes_of_parallel_map, missing_overlap
from tb_perfadvisor.rules.finding import Cell, Column, Finding, Saving, Series, Table, costliest
from tb_perfadvisor.rules.savings import (
    pipeline_saving,
    saving_of_doubled_input_rate_ns,
    stall_saving,
)
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.core.placement import has_ancestor
from tb_perfadvisor.signals.input.host_loading import IN_MEMORY, host_loading, loader_in_process
from tb_perfadvisor.signals.input.input_stages import WORK, InputStages, Stage, input_stages
from tb_perfadvisor.signals.input.loader_workers import (
    MoreWorkers,
    blocking_calls,
    ends_in_prefetch,
    more_workers,
    number_of_workers,
    waiting_fetches,
    workers_to_keep_up,
)
from tb_perfadvisor.signals.input.tfdata import kind_of, tfdata
from tb_perfadvisor.signals.steps.timed_run import input_over_run, parts_of_worker
from tb_perfadvisor.trace import EventKind, OperatorTotal, Trace
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import Intervals, intersect, overlap_ns, total_ns
from tb_perfadvisor.trace.names import short_name
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.units import format_duration, format_share
from tb_perfadvisor.whatif import Remove, shrink


class InputStall(Rule):
    """The device is idle while the training thread fetches the next batch."""

    id = "input-stall"
    title = "Feed the device without making it wait"
    reads_sums = True
    needs = (Need.WORK, Need.INPUT)
    suffices = Need.RUN_INPUT
    is_preview = False

    minimum_share = Limit(
        0.05,
        "share",
        "Fetching a batch that is ready takes a few percent of a short step. XProf and the "
        "PyTorch profiler plugin also report input from 5 % on.",
    )

    recurring_share = 0.02
    """A stall that recurs is reported from 3 % on, the limit of medium severity: seen outside its
    worst step and after subtracting the handing over of batches, it is no accident."""

    hand_over_ns = 1_400_000
    """In PyTorch's ResNet-50 sample, taking over a batch from a worker costs up to 1.4 ms."""

    minimum_wait_ns = 3_000_000
    """Taking over a finished batch from a worker is not a wait: unpacking it and mapping its memory
    takes up to 2.6 ms on two busy cores."""

    def check(self, signals: Signals) -> Iterable[Finding]:
        found = [*self._in_steps(signals)] if self.meets_needs(signals) else []
        found = [_as_over_run(each, signals) for each in found]
        cost = input_over_run(signals, self.minimum_share)
        if cost is None or cost.run_share < self.minimum_share:
            yield from found
            return
        evidence = (
            run_series("Waiting for input over the run, per step", cost, cost.parts.input_ns),
            run_series("Time of a step over the run", cost, cost.parts.step_ns),
        )
        yield from (with_run(each, cost, evidence) for each in found)
        if found:
            return
        share, loader = format_share(cost.run_share), loader_in_process(signals)
        yield run_finding(
            cost,
            f"Feed the loop without making it wait: input takes {share} of the run",
            f"Over the whole run, {share} of the time is spent waiting for the DataLoader:"
            f" {format_duration(cost.mean_ns)} of {format_duration(cost.mean_step_ns)}"
            f" {steps_of(cost)}. The recorded steps do not wait for it.",
            (*evidence, *made_tables(() if loader is None else (loader,))),
            advise("more-loader-workers", "loader-workers", "load-ahead"),
        )

    def _in_steps(self, signals: Signals) -> Iterable[Finding]:
        attribution = signals.attribution
        claims = attribution.intervals[Cause.INPUT]
        stall_ns = total_ns(claims)
        if stall_ns == 0:
            return
        trace = signals.trace
        rows, idle, has_workers, loads_itself = waiting_fetches(signals)
        duration_ns = trace.events.duration_ns[rows]
        # A process that loads its own data hands nothing over.
        hand_over_ns = 0 if loads_itself else int(self.hand_over_ns)
        if not self._is_large_or_recurs(claims, hand_over_ns, signals):
            return
        if has_workers and signals.device.is_host_only:
            waits = rows[duration_ns >= self.minimum_wait_ns]
            claims = intersect(claims, trace.events.spans(waits))
            stall_ns = total_ns(claims)
            if not self._is_large_or_recurs(claims, hand_over_ns, signals):
                return
        low_ns = min(stall_ns, attribution.window_ns - stall_ns)
        is_parallel = has_workers or ends_in_prefetch(signals)
        if is_parallel:
            low_ns = saving_of_doubled_input_rate_ns(stall_ns, attribution.window_ns)
        more = more_workers(signals)
        prices = host_loading(signals) if loads_itself else None
        # A recorder's totals do not say where the step waits.
        is_nameless = not len(rows) and trace.totals is None
        if is_nameless:
            rows = blocking_calls(signals, claims)
            idle = overlap_ns(claims, trace.events.start_ns[rows], trace.events.end_ns[rows])
        is_sum = not len(rows) or trace.totals is not None
        name = "" if is_sum else trace.name(int(rows[np.argmax(idle)]))
        article = "the " if fetch_name(name) != name else ""
        where = f", in {article}{fetch_name(name)}" if name else ""
        on_cpu = signals.device.is_host_only
        subject = "The step's operators wait" if on_cpu else "The device waits"
        loader = loader_in_process(signals) if loads_itself else None
        keeps_in_memory = prices is not None and prices.keeps_in_memory
        yield Finding(
            title="Feed the step without making it wait" if on_cpu else "",
            instance=fetch_name(name),
            summary=f"{subject} {per_step(stall_ns, signals)} for input{where}."
            + _about_waits(signals, more, is_nameless=is_nameless, is_blocked=not is_sum),
            saving=stall_saving(signals, claims, low_ns, prices, is_parallel=is_parallel)
            if more is None
            else _saving_of_workers(claims, low_ns, more),
            evidence=nameless_tables(signals, claims, "Where batches are late")
            if is_nameless
            else (
                costliest("The longest waits", signals.worker, rows, idle),
                _stages(signals)
                or events_by_name(
                    "Fetches of the training thread",
                    "Fetch",
                    trace,
                    rows,
                    (
                        (Column("duration_ns", "In the call", "ns"), duration_ns),
                        (Column("idle_ns", "Device idle", "ns"), idle),
                    ),
                ),
                *_stall_by_step(signals),
                *made_tables(() if loader is None else (loader,)),
                *lines_tables(trace.facts.lines, of_input=True),
            ),
            remedies=advise(
                *changes_of_parallel_map(signals),
                "more-loader-workers",
                *(("prepared-samples",) if keeps_in_memory else ("loader-workers",)),
                "load-ahead",
                *missing_overlap(signals),
                "more-service-workers",
                "grain-workers",
                workers=workers_to_keep_up(signals),
                more=number_of_workers(signals),
            ),
        )

    def _is_large_or_recurs(self, stalls: Intervals, hand_over_ns: int, signals: Signals) -> bool:
        """Whether stalls take a large part of the steps, or a smaller part of several steps."""
        if not self.is_minor(total_ns(stalls), signals):
            return True
        steps = signals.steps
        if len(steps) < 2:
            return False
        beyond_ns = overlap_ns(stalls, steps.start_ns, steps.end_ns) - hand_over_ns
        length_ns = steps.end_ns - steps.start_ns
        is_other = np.arange(len(steps)) != beyond_ns.argmax()
        lost_ns = float(np.maximum(beyond_ns[is_other], 0).sum())
        least_share = self.minimum_share - self.recurring_share
        return lost_ns >= least_share * float(length_ns[is_other].sum())


def _as_over_run(finding: Finding, signals: Signals) -> Finding:
    """A finding whose saving is expected to be no larger than what all steps of the run wait.

    A few recorded steps may have met a slow batch that the run seldom has.
    """
    saving, parts = finding.saving, parts_of_worker(signals)
    if saving is None or parts is None or not parts.input_share:  # no loader was timed
        return finding
    most_ns = int(parts.input_share * signals.attribution.window_ns)
    if saving.expected_ns <= most_ns:
        return finding
    low_ns = min(saving.low_ns, most_ns)
    return replace(finding, saving=replace(saving, low_ns=low_ns, expected_ns=most_ns, fix=()))


def _about_waits(
    signals: Signals, more: MoreWorkers | None, *, is_nameless: bool, is_blocked: bool
) -> str:
    """What the rhythm of the waits says of the loader, as sentences that follow."""
    nothing = "Nothing is recorded on the host before batches are copied"
    other = "There it waits for another process or thread"
    if more is None:
        by_thread = "which another thread does than the one that launches kernels"
        seen = f" {other}." if is_blocked else f" {nothing}, {by_thread}, as loaders like DALI do."
        return seen if is_nameless else ""
    where = other if is_blocked else nothing
    late, loader = "each batch is late", "a single worker"
    if more.now > 1:
        late, loader = f"one batch in {more.now} is late", f"a loader with {more.now} workers"
    would = ""
    if more.enough > more.now:
        would = f" {more.enough} workers would save {per_step(more.saved_ns, signals)}."
    return f" {where}: {late}, as from {loader}.{would}"


def _saving_of_workers(claims: Intervals, low_ns: int, more: MoreWorkers) -> Saving:
    """What more workers bring. At best, with less work in each, the loop does not wait at all."""
    stall_ns, saved_ns, fix = total_ns(claims), more.saved_ns, (Remove(claims),)
    share, low_ns = saved_ns / max(stall_ns, 1), min(low_ns, saved_ns)
    return Saving(low_ns, saved_ns, stall_ns, claims, "modeled", fix, realized_share=share)


def _stages(signals: Signals) -> Table | None:
    """The time of each stage of the input pipeline, if the recorder summed it up."""
    totals = signals.trace.totals
    if totals is None or not totals.input_stages:
        return None
    return Table(
        "Stages of the input pipeline, summed over the whole recording and all threads",
        (
            Column("name", "Stage"),
            Column("type", "Type"),
            Column("count", "Count", "count"),
            Column("total_ns", "Time", "ns"),
            Column("self_ns", "Self time", "ns"),
        ),
        tuple(
            (stage.name, stage.type, stage.count, stage.total_ns, stage.self_ns)
            # A stage that prefetches only waits for those below it.
            for stage in sorted(totals.input_stages, key=_only_waits)
        ),
    )


def _only_waits(stage: OperatorTotal) -> bool:
    """Whether a stage hands on what those below it make, as the copy to each device does."""
    return kind_of(stage.name) == "Prefetch" or stage.name == "Iterator::Prefetch::Generator"


def _stall_by_step(signals: Signals) -> tuple[Series, ...]:
    if len(signals.steps) < 2:
        return ()
    stall_ns = signals.attribution.step_total_ns[Cause.INPUT]
    return (series_by_step("Waiting for input, by step", signals, stall_ns),)


_MOST_STEPS_NAMED = 5


class SlowBatch(Rule):
    """A few fetches take much longer than the others, and the device waits for them."""

    id = "slow-batch"
    title = "Even out the batches that come late"
    refines = "input-stall"
    needs = (Need.WORK, Need.INPUT)
    is_preview = False

    minimum_share = Limit(0.02, "share", "Single steps vary by up to 2 % for other reasons.")
    factor = Limit(
        3.0,
        "ratio",
        "Batches of images or padded text commonly vary by a factor of two.",
    )
    minimum_fetches = Limit(5, "count", "The median of fewer fetches is not reliable.")
    maximum_share = Limit(
        0.2, "share", "If more than every fifth fetch is slow, the whole pipeline is slow."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        trace = signals.trace
        events = trace.events
        rows = _fetches(signals)
        if len(rows) < self.minimum_fetches:
            return
        duration = events.duration_ns[rows]
        median_ns = int(np.median(duration))
        is_slow = duration > self.factor * median_ns
        is_slow[0] = False
        place = np.flatnonzero(is_slow)
        if len(place) == 0 or len(place) > self.maximum_share * len(rows):
            return
        if _is_periodic(place):
            return
        slow = rows[is_slow]
        fix = shrink(events.start_ns[slow], events.end_ns[slow], median_ns)
        claims = intersect(signals.attribution.intervals[Cause.INPUT], fix.intervals)
        excess_ns = total_ns(claims)
        if self.is_minor(excess_ns, signals):
            return
        idle = overlap_ns(claims, events.start_ns[slow], events.end_ns[slow])
        step = signals.steps.owner[slow]
        numbers = signals.steps.number[step[step >= 0]].tolist()
        named = ", ".join(map(str, numbers[:_MOST_STEPS_NAMED]))
        where = f" in step {named}" if named else ""
        count = "one fetch takes" if len(slow) == 1 else f"{len(slow)} of {len(rows)} fetches take"
        yield Finding(
            instance=f"{count} up to {format_duration(int(duration.max()))}",
            summary=(
                f"The device waits {per_step(excess_ns, signals)} for a few slow batches:"
                f" {count} up to {format_duration(int(duration.max()))}{where}, against a median of"
                f" {format_duration(median_ns)}."
            ),
            saving=Saving(
                int(excess_ns * (1 - len(slow) ** -0.5)),
                excess_ns,
                excess_ns,
                claims,
                "measured",
                (fix,),
            ),
            evidence=(
                costliest("Slow fetches", signals.worker, slow, idle),
                Series(
                    "Duration of each fetch, in order",
                    "count",
                    "ns",
                    tuple((float(i), float(took)) for i, took in enumerate(duration.tolist())),
                ),
            ),
            remedies=advise(
                "timed-samples",
                "more-loader-workers",
                "batch-order",
                "loader-workers",
                "load-ahead",
                "batches-ready",
                workers=workers_to_keep_up(signals),
                more=number_of_workers(signals),
            ),
        )


def _fetches(signals: Signals) -> Int32:
    """Outermost fetches of the training thread that begin in the used steps."""
    trace = signals.trace
    events, rows = trace.events, trace.rows(EventKind.INPUT_WAIT)
    # A loader's iterators, such as Grain's, fetch from each other.
    rows = rows[~has_ancestor(events.parent, rows, events.kind == EventKind.INPUT_WAIT)]
    rows = signals.steps.own(rows)
    if trace.source.framework != "tensorflow":
        rows = rows[events.track[rows] == signals.step_track]
    return rows


def _is_periodic(place: NDArray[np.int64]) -> bool:
    """Whether there are three or more slow fetches at equal distances."""
    return len(place) >= 3 and len(distinct(np.diff(place))) == 1


_LABELS = {
    Stage.WORKERS: "Waiting for the loader's workers",
    Stage.READING: "Reading",
    Stage.PREPROCESSING: "Preprocessing (the dataset's own code: decoding, transforming)",
    Stage.COLLATE: "Collating samples into batches",
    Stage.TRANSFER: "Pinning and enqueueing the batch",
}
_VERBS = {
    Stage.READING: "Reading files",
    Stage.PREPROCESSING: "Preprocessing (the dataset's own code)",
    Stage.COLLATE: "Collating samples into batches",
    Stage.TRANSFER: "Pinning the batch",
}

_ADVICE = {
    Stage.READING: ("shards", "more-loader-workers", "loader-workers", "load-ahead"),
    Stage.PREPROCESSING: (
        "processor-backend",
        "prepare-once",
        "augment-on-device",
        "more-loader-workers",
        "loader-workers",
        "load-ahead",
    ),
    Stage.COLLATE: ("more-loader-workers", "loader-workers", "load-ahead"),
    Stage.TRANSFER: ("pinned-memory", "more-loader-workers", "loader-workers", "load-ahead"),
}
_TFDATA = {
    Stage.READING: ("parallel-reads",),
    Stage.PREPROCESSING: ("prepare-once", "augment-on-device"),
    Stage.COLLATE: ("parallel-batch",),
}


class HostPreprocessing(Rule):
    """One stage of the input pipeline causes most of the wait for input."""

    id = "host-preprocessing"
    title = "Take work out of the input pipeline"
    refines = "input-stall"
    needs = (Need.WORK, Need.INPUT, Need.INPUT_STAGES)
    is_preview = False

    minimum_share = Limit(0.05, "share", "The same limit as that of input-stall.")
    dominating_share = Limit(
        0.5,
        "share",
        "If no stage causes half of the wait, no single fix is the place to start.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        stages, window = input_stages(signals), signals.attribution
        stall = window.intervals[Cause.INPUT]
        idle = {stage: intersect(stall, stages.intervals[stage]) for stage in Stage}
        worst = max(WORK, key=lambda stage: total_ns(idle[stage]))
        claims = idle[worst]
        idle_ns, stall_ns = total_ns(claims), total_ns(stall)
        if self.is_minor(idle_ns, signals):
            return
        if idle_ns < self.dominating_share * stall_ns:
            return
        calls = _calls(signals.trace, stages, worst)
        least, share, _ = IN_MEMORY
        waiting = "the step's operators" if signals.device.is_host_only else "the device"
        yield Finding(
            instance=short_name(f"{calls.rows[0][0]}") if calls.rows else "",
            summary=(
                f"{_VERBS[worst]} makes {waiting} wait {per_step(idle_ns, signals)}:"
                f" {format_share(idle_ns / stall_ns)} of the wait for input."
            ),
            saving=Saving(
                min(round(least * idle_ns), window.window_ns - stall_ns),
                round(share * idle_ns),
                idle_ns,
                claims,
                "measured",
                (Remove(stages.intervals[worst]),),
                realized_share=share,
            ),
            evidence=(
                Table(
                    "Wait for input by stage",
                    (Column("stage", "Stage"), Column("idle_ns", "Device idle", "ns")),
                    (
                        *(
                            (_LABELS[stage], total_ns(idle[stage]))
                            for stage in Stage
                            if len(idle[stage])
                        ),
                        ("(not recorded)", stall_ns - sum(map(total_ns, idle.values()))),
                    ),
                ),
                calls,
            ),
            remedies=advise(*_TFDATA[worst])
            if len(tfdata(signals))
            else advise(*_ADVICE[worst], workers=workers_to_keep_up(signals)),
        )


def _calls(trace: Trace, stages: InputStages, stage: Stage) -> Table:
    """The calls of a stage by name, with their self time."""
    rows, self_ns = stages.rows_of(stage)
    names = trace.events.name[rows]
    unique, first, inverse, count = np.unique(
        names, return_index=True, return_inverse=True, return_counts=True
    )
    self_total = np.bincount(inverse, weights=self_ns, minlength=len(unique)).astype(np.int64)
    merged: dict[str, list[int]] = {}
    for place in np.argsort(-self_total, kind="stable").tolist():
        name = _short(trace.strings[unique[place]])
        total = merged.setdefault(name, [0, 0, int(rows[first[place]])])
        total[0] += int(count[place])
        total[1] += int(self_total[place])
    ranked = sorted(merged.items(), key=lambda item: -item[1][1])
    return Table(
        "Calls of this stage in the whole profile",
        (
            Column("name", "Call"),
            Column("caller", "Called in"),
            Column("count", "Count", "count"),
            Column("own_ns", "Self time", "ns"),
        ),
        tuple(_call(trace, name, *total) for name, total in ranked),
    )


def _call(trace: Trace, name: str, count: int, self_ns: int, row: int) -> tuple[Cell, ...]:
    parent = int(trace.events.parent[row])
    caller = trace.name(parent) if parent >= 0 else None
    return (name, caller, count, self_ns)


def _short(name: str) -> str:
    """`decode of ImagingDecoder`, without the address that differs between objects of a type."""
    if not name.startswith("<built-in "):
        return name
    return name.split(" object at 0x")[0].split(" ", 2)[-1].removesuffix(">")


class InfeedWait(Rule):
    """The TPU waits in infeed operations for the host's next batch."""

    id = "infeed-wait"
    title = "Fill the infeed before the device asks"
    refines = "input-stall"
    reads_sums = True
    needs = (Need.DEVICE_EVENTS, Need.INFEED)
    is_preview = False

    minimum_share = Limit(0.05, "share", "XProf also reports input from 5 % of infeed on.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        trace, window = signals.trace, signals.attribution
        events = trace.events
        rows = trace.rows(EventKind.INFEED_WAIT)
        rows = rows[trace.tracks.device[events.track[rows]] == signals.device.index]
        claims = intersect(window.intervals[Cause.INPUT], events.spans(rows))
        waited_ns = total_ns(claims)
        if self.is_minor(waited_ns, signals):
            return
        idle = overlap_ns(claims, events.start_ns[rows], events.end_ns[rows])
        rows, idle = rows[idle > 0], idle[idle > 0]
        yield Finding(
            instance=f"the core waits for {share_of_each(waited_ns, signals)}",
            summary="The core does nothing else while it is in infeed and outfeed operations.",
            saving=pipeline_saving(
                claims, min(waited_ns, window.window_ns - waited_ns), is_parallel=False
            ),
            evidence=(
                costliest("Longest waits", signals.worker, rows, idle),
                events_by_name(
                    "Infeed and outfeed operations",
                    "Operation",
                    trace,
                    rows,
                    ((Column("idle_ns", "Device idle", "ns"), idle),),
                ),
            ),
            remedies=advise("batches-on-device"),
        )
