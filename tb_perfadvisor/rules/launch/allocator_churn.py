"""Steady steps allocate memory from the driver and free it again."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.snapshots import memory_over_time
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving, costliest
from tb_perfadvisor.signals import Cause, Need, Signals, why_missing
from tb_perfadvisor.signals.device.caching_allocator import Caching, allocator_use
from tb_perfadvisor.signals.device.device_work import is_within
from tb_perfadvisor.signals.snapshots.course import churn, memory_course
from tb_perfadvisor.signals.snapshots.sites import line_of
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.intervals import overlap_ns, total_ns, union
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.units import format_bytes
from tb_perfadvisor.whatif import Remove

_SEGMENTS = ("expandable-segments", "repeated-sizes")
_RARE_TITLE = "Keep device memory from running short"
_TRIES_ALGORITHMS = re.compile(r"aten::\w*convolution")
_SHORT = (
    " Memory is freed and allocated again, so it was short or in pieces."
    " How often that happens is unknown, and half of it is expected."
)


class AllocatorChurn(Rule):
    """Steady steps allocate device memory from the driver again and again.

    What it finds
    -------------
    Calls that allocate or free device memory or pinned memory (cudaMalloc, cudaFree,
    cudaHostAlloc) in most steps, with the device idle during them.

    Why it matters
    --------------
    Frameworks cache freed memory because the driver is slow: an allocation takes up to
    milliseconds, and a free waits for all work queued on the device.

    How it is measured
    ------------------
    The idle time attributed to *allocating*, if more than half of the steps have some: the first
    steps fill the allocator's cache once. Low, expected and high are that time. Where the profile
    allows it, expected is what the steps save in a replay without these calls.

    If fewer steps have some, it counts if a step after the first one frees and allocates, or one
    operator does: a cache that is only filled frees nothing, so memory was short. How often that
    happens is unknown. Then low is 0, and half is expected. A memory snapshot
    without a profile shows how often memory goes back to the driver, but not what it costs.

    PyTorch's caching allocator is off if the profile has the memory of tensors on the host but none
    on the device, or if nearly every call of aten::empty asks the driver. It is emptied if a call
    of empty_cache was recorded, or if the reserved memory falls.

    When to ignore
    --------------
    When every step has another size and memory is short: then retrying allocations keeps the
    program alive.

    How to verify
    -------------
    The steps of the next profile have no such calls, and reserved memory is constant.

    References:
    ----------
    PyTorch documentation, "CUDA semantics: Memory management"; NVIDIA CUDA C++ Programming Guide,
    "Implicit Synchronization".
    """

    id = "allocator-churn"
    title = "Keep device memory instead of allocating it in each step"
    category = "launch"
    needs = (Need.DEVICE_EVENTS, Need.HOST_EVENTS, Need.STEPS)
    is_preview = False

    needs_of_snapshots = (Need.MEMORY_HISTORY,)

    minimum_returns = Limit(
        10, "count", "A few returns to the driver are those of an evaluation or a failed request."
    )
    minimum_parts = Limit(
        6, "count", "Of ten parts of a history: less is a change of phase, not the loop."
    )
    minimum_share = Limit(0.01, "share", "Less than 1 % of the step is an occasional allocation.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when most steps allocate."""
        if any(why_missing(signals, need) is not None for need in self.needs):
            yield from self._of_snapshot(signals)
            return
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
                (Remove(union(events.start_ns[rows], events.end_ns[rows])),),
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

    def _of_snapshot(self, signals: Signals) -> Iterable[Finding]:
        """A finding when a snapshot's allocator gives memory back and gets it again."""
        course = memory_course(signals)
        found = churn(course) if course is not None else None
        if course is None or found is None:
            return
        if min(found.returns, found.gets) < self.minimum_returns or (
            found.parts < self.minimum_parts
        ):
            return
        line = line_of(course.snapshot.stacks.of(found.stack))
        is_emptied = 2 * found.by_empty_cache > found.returns
        why = "because the program calls torch.cuda.empty_cache()" if is_emptied else ""
        yield Finding(
            instance=f"{found.returns:,} returns to the driver",
            summary=(
                f"The allocator gives memory back to the driver {found.returns:,} times"
                f"{f', {why}' if why else ''}{f' (mostly at {line})' if line else ''}, and gets"
                f" {format_bytes(found.bytes)} again in {found.gets:,} calls. Each of them waits"
                " for the device; a profile shows for how long."
            ),
            severity="medium",
            evidence=memory_over_time(course),
            remedies=advise("keep-allocator-cache", *(() if is_emptied else _SEGMENTS)),
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
