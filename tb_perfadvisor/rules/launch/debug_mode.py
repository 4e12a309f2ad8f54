"""The program runs in a debugging mode."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.signals import HOST_CAUSED, Cause, Need, Signals
from tb_perfadvisor.signals.host.debugging import debugging
from tb_perfadvisor.trace.intervals import (
    clip,
    contains,
    intersect,
    join,
    single,
    total_ns,
    union,
)
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.whatif import Async, Remove, Shorten

_TRACING = (5.0, 10.0)
"""What anomaly detection costs on the CPU in all, in times of its checks for NaNs, as expected and
at most: formatting the stack of each forward operator takes most of it. Measured with PyTorch 2.13:
4.3 times for a model inside another, 8 times for a normalizing flow of modules in modules. The
deeper the stack, the more."""


class DebugMode(Rule):
    """A debugging mode is on: blocking launches, anomaly detection, or filling of new memory.

    What it finds
    -------------
    Launches that return only after their kernels finish; NaN checks that autograd adds to every
    node; and `torch.empty` filling the memory that it allocates, as it does under deterministic
    algorithms.

    Why it matters
    --------------
    Such modes are switched on to find one error and then forgotten. With blocking launches the
    host cannot run ahead of the device. Anomaly detection adds operators and a wait to each
    backward node. Filled memory is written twice.

    How it is measured
    ------------------
    Each mode leaves traces that nothing else leaves, in at least 95 % of at least 20 events:
    kernels longer than any launch that lie within their own launch call; autograd nodes with a NaN
    check outside the node's own function; `torch.empty` with a `fill_` inside. With blocking
    launches a step takes at least as long as host and device work one after the other: without a
    replay, expected is the shorter of the two. The other modes cost what their operators and
    kernels take. On the CPU, anomaly detection is expected to cost five times as much as its
    checks, because it also keeps the Python stack of each forward operator.

    When to ignore
    --------------
    While you search for the error. Ignore blocking launches also if the profile was recorded to
    find the exact place of a fault.

    How to verify
    -------------
    Record again with the mode off: kernels end after their launch calls, `aten::isnan` is gone
    from the backward nodes, and `aten::fill_` from `aten::empty`.

    References:
    ----------
    NVIDIA CUDA C++ Programming Guide, "Concurrent execution between host and device"; PyTorch
    documentation, "Anomaly detection" and `torch.utils.deterministic.fill_uninitialized_memory`.
    """

    id = "debug-mode"
    title = "Switch debugging modes off"
    category = "launch"
    needs = (Need.WORK, Need.HOST_EVENTS)
    is_preview = False

    minimum_share = Limit(0.01, "share", "A mode that costs less than 1 % of the step may stay on.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding for each mode that costs something."""
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
    waiting = clip(union(events.start_ns[kernels], events.end_ns[kernels]), start, end)
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
    spans = clip(union(events.start_ns[rows], events.end_ns[rows]), start, end)
    is_inside = contains(spans, events.start_ns[waits.row])
    if device.index is None:
        rows = rows[events.track[rows] == signals.step_track]
        kernels, claims = (
            rows[:0],
            clip(union(events.start_ns[rows], events.end_ns[rows]), start, end),
        )
        low_ns = total_ns(claims)
    else:
        launch = events.launched_by[device.rows]
        kernels = device.rows[(launch >= 0) & contains(spans, events.start_ns[launch])]
        busy = clip(union(events.start_ns[kernels], events.end_ns[kernels]), start, end)
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
