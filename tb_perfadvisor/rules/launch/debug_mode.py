"""The program runs in a mode that is meant for finding errors."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Remedy, Saving, costliest
from tb_perfadvisor.signals import HOST_CAUSED, Cause, Need, Signals
from tb_perfadvisor.signals.host.debugging import debugging
from tb_perfadvisor.trace.intervals import (
    clip,
    contains,
    intersect,
    join,
    total_ns,
    union,
)
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.whatif import Async, Remove, Shorten

_UNBLOCK = Remedy(
    text=(
        "Unset CUDA_LAUNCH_BLOCKING (on AMD HIP_LAUNCH_BLOCKING and AMD_SERIALIZE_KERNEL): look "
        "for it in the launch script, the container's image and os.environ."
    ),
    snippet="unset CUDA_LAUNCH_BLOCKING HIP_LAUNCH_BLOCKING AMD_SERIALIZE_KERNEL",
    language="bash",
    reference="https://pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution",
)
_NO_ANOMALY = Remedy(
    text=(
        "Leave anomaly detection off, and switch it on for the one run that looks for a NaN. "
        "PyTorch Lightning's Trainer has it as detect_anomaly."
    ),
    snippet="torch.autograd.set_detect_anomaly(False)",
    framework="pytorch",
    reference="https://pytorch.org/docs/stable/autograd.html#anomaly-detection",
)
_NO_FILL = Remedy(
    text=(
        "Keep deterministic algorithms, and leave uninitialized memory as it is: filling it only "
        "serves to find programs that read it."
    ),
    snippet=(
        "torch.use_deterministic_algorithms(True)\n"
        "torch.utils.deterministic.fill_uninitialized_memory = False"
    ),
    framework="pytorch",
    reference="https://pytorch.org/docs/stable/deterministic.html",
)


class DebugMode(Rule):
    """A debugging mode is on: blocking launches, anomaly detection, or filling of new memory.

    What it finds
    -------------
    Launches that return after their kernels; NaN checks that autograd's engine adds to every
    node; and `torch.empty` filling what it allocates, as it does under deterministic algorithms.

    Why it matters
    --------------
    Such modes are switched on for one search and stay. Blocking launches take from the host all
    that it could do ahead of the device, anomaly detection adds operators and a wait to each
    backward node, and filled memory is written twice.

    How it is measured
    ------------------
    Each mode leaves what nothing else does, and must be on for 95 % of at least 20 events: of
    kernels longer than any launch that lie within their own launch call; of autograd nodes with
    a NaN check outside of the node's own function; of `torch.empty` with a `fill_` inside. That
    a program is bound by its host is no evidence. With blocking launches the step is at least
    as long as host and device work one after the other: expected, where it cannot be re-timed,
    is the shorter of both. The others cost what their operators and kernels take.

    When to ignore
    --------------
    While you search for the error. Blocking launches also when the profile was recorded for the
    exact place of a fault.

    How to verify
    -------------
    Record again with the mode off: kernels end after their launch calls, `aten::isnan` is gone
    from the backward nodes, `aten::fill_` from `aten::empty`.

    References:
    ----------
    NVIDIA CUDA C++ Programming Guide, "Concurrent execution between host and device"; PyTorch
    documentation, "Anomaly detection" and
    `torch.utils.deterministic.fill_uninitialized_memory`.
    """

    id = "debug-mode"
    title = "Switch debugging modes off"
    category = "launch"
    needs = (Need.WORK, Need.HOST_EVENTS)
    is_preview = False

    minimum_share = Limit(
        0.01, "share", "A mode that costs less than a hundredth of the step may well stay on."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding for each mode that costs something."""
        modes = debugging(signals)
        found = (
            _blocking(signals, _used(signals, modes.blocked)),
            _added(
                signals,
                _used(signals, modes.checks),
                "Autograd checks every gradient for NaNs (anomaly detection)",
                _NO_ANOMALY,
            ),
            _added(
                signals,
                _used(signals, modes.fills),
                "Memory is filled right after it is allocated (deterministic algorithms)",
                _NO_FILL,
            ),
        )
        for finding in found:
            if finding is None or finding.saving is None:
                continue
            if not self.is_minor(finding.saving.expected_ns, signals):
                yield finding


def _used(signals: Signals, rows: Int32) -> Int32:
    """Those that begin in the used window."""
    start, window = signals.trace.events.start_ns[rows], signals.attribution
    used: Int32 = rows[(start >= window.window_start_ns) & (start < window.window_end_ns)]
    return used


def _blocking(signals: Signals, kernels: Int32) -> Finding | None:
    """What it costs that launches wait for their kernels."""
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
            f"Every launch waits for its kernel ({launches}): host and device take turns, which"
            f" costs {per_step(expected_ns, signals)}."
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
            costliest("The longest", signals.worker, calls, events.duration_ns[calls]),
        ),
        remedies=(_UNBLOCK,),
    )


def _added(signals: Signals, rows: Int32, what: str, remedy: Remedy) -> Finding | None:
    """What operators cost that a mode adds to the program."""
    if len(rows) == 0:
        return None
    trace, window = signals.trace, signals.attribution
    events, device, waits = trace.events, signals.device, signals.synchronizations
    start, end = window.window_start_ns, window.window_end_ns
    spans = clip(union(events.start_ns[rows], events.end_ns[rows]), start, end)
    own = contains(spans, events.start_ns[waits.row])
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
        after = union(events.start_ns[waits.row[own]], waits.until_ns[own])
        claims = join(busy, intersect(signals.host_idle, join(spans, after)))
        low_ns = total_ns(busy)
    saved_ns = total_ns(claims)
    return Finding(
        summary=(
            f"{what}: {count_per_step(len(rows), 'operator', signals)} cost"
            f" {per_step(saved_ns, signals)}."
        ),
        saving=Saving(
            low_ns,
            saved_ns,
            saved_ns,
            claims,
            "measured",
            (
                Remove(spans),
                Async(waits.row[own]),
                Shorten(kernels, np.zeros(len(kernels), dtype=np.int64)),
            ),
        ),
        evidence=(
            events_by_name(
                "What the mode adds",
                "Operator",
                trace,
                rows,
                ((Column("duration_ns", "On the host", "ns"), events.duration_ns[rows]),),
            ),
            costliest("The longest", signals.worker, rows, events.duration_ns[rows]),
        ),
        remedies=(remedy,),
    )
