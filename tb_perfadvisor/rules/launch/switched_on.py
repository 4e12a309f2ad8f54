"""Checks, and memory that is allocated anew: what a setting turns off."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.signals import HOST_CAUSED, Cause, Need, Signals
from tb_perfadvisor.signals.device.device_work import is_within
from tb_perfadvisor.signals.device.memory_use import Caching, allocator_use
from tb_perfadvisor.signals.host.debugging import debugging
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import (
    clip,
    contains,
    intersect,
    join,
    overlap_ns,
    single,
    total_ns,
    union,
)
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.units import format_share
from tb_perfadvisor.whatif import Async, Remove, Shorten

_TRACING = (5.0, 10.0)
"""What anomaly detection costs on the CPU in all, in times of its checks for NaNs, as expected and
at most: formatting the stack of each forward operator takes most of it. Measured with PyTorch 2.13:
4.3 times for a model inside another, 8 times for a normalizing flow of modules in modules. The
deeper the stack, the more."""


class DebugMode(Rule):
    """A debugging mode is on: blocking launches, anomaly detection, or filling of new memory."""

    id = "debug-mode"
    title = "Switch debugging modes off"
    needs = (Need.WORK, Need.HOST_EVENTS)
    is_preview = False

    minimum_share = Limit(0.01, "share", "A mode that costs less than 1 % of the step may stay on.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        modes = debugging(signals)
        findings = (
            _blocking_launches(signals, _in_used_steps(signals, modes.blocked)),
            _added_operators(
                signals,
                _in_used_steps(signals, modes.checks),
                "Autograd checks every gradient for NaNs (anomaly detection)",
                "no-anomaly-detection",
                is_anomaly=True,
            ),
            _added_operators(
                signals,
                _in_used_steps(signals, modes.fills),
                "Memory is filled right after it is allocated (deterministic algorithms)",
                "no-memory-fill",
            ),
        )
        for finding in findings:
            if finding is None or finding.saving is None:
                continue
            if not self.is_minor(finding.saving.expected_ns, signals):
                yield finding


def _in_used_steps(signals: Signals, rows: Int32) -> Int32:
    """The events that begin in the used steps."""
    return signals.steps.own(rows)


def _blocking_launches(signals: Signals, kernels: Int32) -> Finding | None:
    """The cost of launches that wait for their kernels."""
    if len(kernels) == 0:
        return None
    events, window = signals.trace.events, signals.attribution
    start, end = window.window_start_ns, window.window_end_ns
    waiting = clip(events.spans(kernels), start, end)
    launches = count_per_step(len(kernels), "launch", signals, plural="launches")
    idle = window.of(*HOST_CAUSED, Cause.QUEUED, Cause.BETWEEN_STEPS)
    expected_ns = min(total_ns(waiting), total_ns(idle))
    calls = events.launched_by[kernels]
    return Finding(
        summary=(
            f"Blocking launches cost {per_step(expected_ns, signals)}: every launch waits for its"
            f" kernel ({launches}), so that host and device take turns."
        ),
        saving=Saving(0, expected_ns, expected_ns, idle, "modeled", (Remove(waiting),)),
        evidence=(
            events_by_name(
                "Launches that wait",
                "Call",
                signals.trace,
                calls,
                ((Column("duration_ns", "In the call", "ns"), events.duration_ns[calls]),),
            ),
            costliest("Longest calls", signals.worker, calls, events.duration_ns[calls]),
        ),
        remedies=advise("no-launch-blocking"),
    )


def _added_operators(
    signals: Signals, rows: Int32, what: str, change: str, *, is_anomaly: bool = False
) -> Finding | None:
    """The cost of operators that a mode adds to the program."""
    if len(rows) == 0:
        return None
    trace, window = signals.trace, signals.attribution
    events, device, waits = trace.events, signals.device, signals.synchronizations
    start, end = window.window_start_ns, window.window_end_ns
    spans = clip(events.spans(rows), start, end)
    is_inside = contains(spans, events.start_ns[waits.row])
    if device.index is None:
        rows = rows[events.track[rows] == signals.step_track]
        kernels, claims = (
            rows[:0],
            clip(events.spans(rows), start, end),
        )
        low_ns = total_ns(claims)
    else:
        launch = events.launched_by[device.rows]
        kernels = device.rows[(launch >= 0) & contains(spans, events.start_ns[launch])]
        busy = clip(events.spans(kernels), start, end)
        after = union(events.start_ns[waits.row[is_inside]], waits.until_ns[is_inside])
        claims = join(busy, intersect(signals.host_idle, join(spans, after)))
        low_ns = total_ns(busy)
    saved_ns = most_ns = total_ns(claims)
    cost = f"{count_per_step(len(rows), 'operator', signals)} cost {per_step(saved_ns, signals)}"
    is_traced = is_anomaly and device.index is None
    if is_traced:
        claims = single(start, end)
        saved_ns, most_ns = (int(times * low_ns) for times in _TRACING)
        cost += ", and PyTorch keeps the Python stack of each forward operator"
    return Finding(
        summary=f"{what}: {cost}.",
        saving=Saving(
            low_ns,
            saved_ns,
            most_ns,
            claims,
            "modeled" if is_traced else "measured",
            (
                Remove(spans),
                Async(waits.row[is_inside]),
                Shorten(kernels, np.zeros(len(kernels), dtype=np.int64)),
            ),
        ),
        evidence=(
            events_by_name(
                "Operators that the mode adds",
                "Operator",
                trace,
                rows,
                ((Column("duration_ns", "Time on the host", "ns"), events.duration_ns[rows]),),
            ),
            costliest("Longest calls", signals.worker, rows, events.duration_ns[rows]),
        ),
        remedies=advise(change),
    )


_MOST_TIMES = 1.7
_MOST_OF_STEP = 0.9


class CheckedNumbers(Rule):
    """TensorFlow checks the numbers that each operator returns."""

    id = "checked-numbers"
    title = "Switch the checks of all numbers off"
    needs = (Need.WORK, Need.HOST_EVENTS)

    minimum_share = Limit(0.01, "share", "A mode that costs less than 1 % of the step may stay on.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        trace, window = signals.trace, signals.attribution
        rows = signals.steps.own(debugging(signals).number_checks)
        operators = len(signals.steps.own(trace.rows(EventKind.OPERATOR)))
        if len(rows) == 0:
            return
        start, end = window.window_start_ns, window.window_end_ns
        spans = trace.events.spans(rows)
        low_ns = total_ns(clip(spans, start, end))
        share = len(rows) / operators
        expected_ns = max(low_ns, int(share * window.window_ns))
        high_ns = int(min(_MOST_TIMES * expected_ns, _MOST_OF_STEP * window.window_ns))
        if self.is_minor(expected_ns, signals):
            return
        yield Finding(
            summary=(
                f"{format_share(share)} of all operators look for infinities and NaNs in what"
                f" others return ({count_per_step(len(rows), 'check', signals)})."
            ),
            saving=Saving(
                low_ns, expected_ns, max(expected_ns, high_ns), single(start, end), "modeled"
            ),
            evidence=(
                costliest("Longest checks", signals.worker, rows, trace.events.duration_ns[rows]),
            ),
            remedies=advise("no-number-checks"),
        )


_SEGMENTS = ("expandable-segments", "repeated-sizes")
_RARE_TITLE = "Keep device memory from running short"
_TRIES_ALGORITHMS = regex(r"aten::\w*convolution")
_SHORT = (
    " Memory is freed and allocated again, so it was short or in pieces."
    " How often that happens is unknown, and half of it is expected."
)


class AllocatorChurn(Rule):
    """Steady steps allocate device memory from the driver again and again."""

    id = "allocator-churn"
    title = "Keep device memory instead of allocating it in each step"
    needs = (Need.DEVICE_EVENTS, Need.HOST_EVENTS, Need.STEPS)
    is_preview = False

    minimum_share = Limit(0.01, "share", "Less than 1 % of the step is an occasional allocation.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        trace, window = signals.trace, signals.attribution
        claims = window.intervals[Cause.ALLOCATING]
        total = total_ns(claims)
        if self.is_minor(total, signals):
            return
        by_step = window.step_total_ns[Cause.ALLOCATING]
        steps = int((by_step > 0).sum())
        events, rows = trace.events, trace.rows(EventKind.ALLOCATE)
        idle = overlap_ns(claims, events.start_ns[rows], events.end_ns[rows])
        rows, idle = rows[idle > 0], idle[idle > 0]
        # Most of it in a single step is not a problem of the loop, unless memory is short.
        is_rare = 2 * steps <= len(by_step) or (len(by_step) > 2 and 2 * int(by_step.max()) > total)
        if len(by_step) < 2 or (is_rare and not _is_short_of_memory(signals, rows)):
            return
        short = _SHORT if is_rare else ""
        use = allocator_use(signals)
        off = f" PyTorch's caching allocator is off: {use.evidence}." if use.evidence else ""
        yield Finding(
            title="Turn PyTorch's caching allocator on" if off else _RARE_TITLE if is_rare else "",
            instance=count_per_step(len(rows), "call", signals),
            summary=(
                f"The device idles {per_step(total, signals)} while the host allocates or frees"
                f" device memory: {steps} of {len(by_step)} steps do, with"
                f" {count_per_step(len(rows), 'call', signals)}.{off}{short}"
            ),
            saving=Saving(
                0 if is_rare else total,
                total // 2 if is_rare else total,
                total,
                claims,
                "heuristic" if is_rare else "measured",
                (Remove(events.spans(rows)),),
                realized_share=0.5 if is_rare else 1.0,
            ),
            evidence=(
                events_by_name(
                    "Calls",
                    "Call",
                    trace,
                    rows,
                    ((Column("idle_ns", "Device idle", "ns"), idle),),
                ),
                costliest("Longest calls", signals.worker, rows, idle),
            ),
            remedies=advise(*_changes(trace, rows, use.caching)),
        )


def _is_short_of_memory(signals: Signals, rows: Int32) -> bool:
    """Whether the program frees memory of the device and allocates it again.

    A step after the first one does. In the first one, a single operator: PyTorch's allocator gives
    back what it has cached when the driver has no more. A convolution also does so after it has
    tried its algorithms.
    """
    trace, step = signals.trace, signals.steps.owner[rows]
    names, parent = trace.events.name[rows], trace.events.parent[rows]
    known = {name: trace.strings[name].lower() for name in distinct(names).tolist()}
    device = [name for name, text in known.items() if "host" not in text]
    frees = is_in(names, [name for name in device if "free" in known[name]])
    gets = is_in(names, [name for name in device if "alloc" in known[name]])
    later = step > 0
    if is_in(step[frees & later], step[gets & later]).any():
        return True
    trying = is_within(signals, parent, _TRIES_ALGORITHMS, (EventKind.OPERATOR,))
    inside = (parent >= 0) & (trace.events.kind[parent] == EventKind.OPERATOR) & ~trying
    return bool(is_in(parent[frees & inside], parent[gets & inside]).any())


def _changes(trace: Trace, rows: Int32, caching: Caching) -> tuple[str, ...]:
    """What helps against the calls in this profile, first."""
    if caching is Caching.OFF:
        return ("caching-allocator",)
    names = [trace.strings[i] for i in distinct(trace.events.name[rows]).tolist()]
    is_pinned = all("Host" in name for name in names)
    frees = any("Free" in name or "Release" in name for name in names)
    keep = "keep-allocator-cache"
    if is_pinned:
        pytorch: tuple[str, ...] = ("reused-staging-buffer",)
    elif caching is Caching.EMPTIED:
        pytorch = (keep,)
    else:
        pytorch = (keep, *_SEGMENTS) if frees else (*_SEGMENTS, keep)
    return (*pytorch, "preallocated-memory", "donated-arguments")
