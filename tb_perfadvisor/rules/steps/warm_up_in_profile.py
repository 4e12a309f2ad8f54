"""The profile contains the start of the program."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import share_of_window
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name, step_time_series
from tb_perfadvisor.rules.finding import Column, Finding, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.steps.step_variation import step_variation
from tb_perfadvisor.soundness.waits import waiting_calls
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import is_in
from tb_perfadvisor.trace.intervals import intersect, overlap_ns, total_ns, union
from tb_perfadvisor.units import format_duration, format_share

_START_UP_CALLS = (EventKind.LAUNCH, EventKind.ALLOCATE, EventKind.RUNTIME)

_ADVICE = ("record-later", "record-after-warm-up")


class WarmUpInProfile(Rule):
    """The profile contains work that a program does only once, when it starts.

    What it finds
    -------------
    A first step that takes at least 50 % longer than the others; or, if there are no steps to
    compare, calls of the device's runtime that take many milliseconds, because the context is
    created, libraries and kernels are loaded, or memory is allocated for the first time.

    Why it matters
    --------------
    Means and shares of such a profile are not those of the run: work that happens once counts as
    if it happened in each handful of steps.

    How it is measured
    ------------------
    From the step times. Steps that compile or load while the others do not are excluded as warm-up
    and not reported here. Without steps, from the idle time in single runtime calls of more than
    ten milliseconds. There is nothing to save: the finding says how far to trust the other
    findings.

    When to ignore
    --------------
    When you profile the start itself.

    How to verify
    -------------
    The first step of the next profile is like the others.

    References:
    ----------
    PyTorch documentation, torch.profiler.schedule; NVIDIA CUDA C++ Programming Guide, "Lazy
    Loading".
    """

    id = "warm-up-in-profile"
    title = "Start recording after the warm-up"
    category = "steps"
    needs = (Need.WORK, Need.HOST_EVENTS)
    is_preview = False

    minimum_share = Limit(0.05, "share", "Less hardly changes the numbers of the profile.")
    minimum_call_ns = Limit(
        10_000_000, "ns", "Launches take microseconds and allocations at most a few milliseconds."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the start distorts the numbers."""
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
        total = total_ns(intersect(waits, union(events.start_ns[rows], events.end_ns[rows])))
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
