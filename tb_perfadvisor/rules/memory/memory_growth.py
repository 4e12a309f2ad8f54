"""Each step leaves more memory behind."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.memory import allocated_memory_series, memory_by_operator
from tb_perfadvisor.rules.finding import Evidence, Finding, Remedy, Series, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.device.memory_use import Allocations, MemoryUse, by_operator, memory_use
from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.units import format_bytes

_STEPS_LEFT = 10_000
_REMEDIES = (
    Remedy(
        text="Keep numbers, not tensors: a loss that is kept from step to step keeps the whole "
        "graph that it was computed with.",
        snippet=(
            "losses.append(loss.detach())       # not losses.append(loss)\n"
            "total += loss.detach()             # not total += loss"
        ),
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/notes/faq.html",
    ),
    Remedy(
        text="See which tensors stay and where they were made.",
        snippet=(
            "torch.cuda.memory._record_memory_history()\n"
            "train_some_steps()\n"
            "torch.cuda.memory._dump_snapshot('memory.pickle')  # open at pytorch.org/memory_viz"
        ),
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/torch_cuda_memory.html",
    ),
    Remedy(
        text="Do not append tensors to Python lists from step to step, and create variables, "
        "datasets and functions once, outside the loop.",
        snippet="history.append(float(loss))  # not history.append(loss)",
        framework="tensorflow",
    ),
    Remedy(
        text="Fetch what is logged, and see which arrays stay alive.",
        snippet=(
            "history.append(float(loss))  # not history.append(loss)\n"
            "jax.profiler.save_device_memory_profile('memory.prof')"
        ),
        framework="jax",
        reference="https://docs.jax.dev/en/latest/device_memory_profiling.html",
    ),
)


class MemoryGrowth(Rule):
    """More memory is allocated at the end of each step than at the end of the one before.

    What it finds
    -------------
    Allocated memory that rises from step to step, and the operators whose results stay.

    Why it matters
    --------------
    A loop that leaves something behind in every step ends in an out-of-memory error, after
    minutes or after days.

    How it is measured
    ------------------
    What is allocated when each used step ends. It must never fall, rise in most of the steps and
    in both halves of them, and by a noticeable share. What stays is what was allocated in the
    steps before the last one and is not freed when the last one ends. On a CPU-only profile it is
    the host's memory. It carries no saving: it is a risk.

    When to ignore
    --------------
    When something is meant to fill over the first steps: a cache, a replay buffer, a sequence
    that is being generated.

    How to verify
    -------------
    Record more steps: what is allocated at their ends stays the same.

    References:
    ----------
    PyTorch documentation, "Frequently Asked Questions: My model reports out of memory".
    """

    id = "memory-growth"
    title = "Leave nothing behind in a step"
    category = "memory"
    needs = (Need.WORK, Need.STEPS, Need.MEMORY_CHANGES)
    is_preview = False

    minimum_steps = Limit(
        5, "count", "Caches, workspaces and optimizer state fill in the first two or three steps."
    )
    minimum_growth = Limit(
        0.01, "share", "Less than a hundredth of the peak over the profile is bookkeeping."
    )
    minimum_bytes = Limit(
        1 << 20, "bytes", "Below a mebibyte a profile of some steps shows rounding of blocks."
    )
    rising_share = Limit(
        0.8, "share", "A program that logs every few steps may free a little in some of them."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when memory rises with the steps."""
        use, steps = memory_use(signals), signals.steps
        if use is None or len(steps) < self.minimum_steps:
            return
        ends = use.at_times(steps.end_ns)
        rise = np.diff(ends)
        growth, half = int(ends[-1] - ends[0]), len(rise) // 2
        if (rise < 0).any() or (rise > 0).mean() < self.rising_share:
            return
        # What fills once rises in the beginning alone.
        if growth < self.minimum_bytes or min(rise[:half].sum(), rise[half:].sum()) == 0:
            return
        if growth < self.minimum_growth * int(use.allocated_bytes[use.peak]):
            return
        each = growth / len(rise)
        memory = signals.memory
        capacity = memory.capacity_bytes if memory is not None and use.has_totals else None
        left = None
        if capacity is not None:
            left = max(int((capacity - int(use.allocated_bytes[use.peak])) / each), 0)
        kept = _kept(signals, use)
        holders = sorted(by_operator(signals, kept), key=lambda one: -one.bytes)
        named = [one.operator for one in holders if one.operator]
        where = f", mostly from {named[0]}" if named else ""
        outlook = f": at that rate it is full in {left:,} steps" if left is not None else ""
        yield Finding(
            summary=(
                f"Each step leaves {format_bytes(round(each))} allocated{where}, "
                f"{format_bytes(growth)} over {len(steps)} steps{outlook}."
            ),
            severity="high" if left is not None and left < _STEPS_LEFT else "medium",
            evidence=_evidence(signals, use, ends, kept),
            remedies=_REMEDIES,
        )


def _kept(signals: Signals, use: MemoryUse) -> Allocations:
    """What the steps before the last one allocated and the last one has not freed."""
    steps, all_ = signals.steps, use.allocations
    if all_ is None:
        none = np.empty(0, dtype=np.int64)
        return Allocations(none, none, none, none.astype(np.int32))
    # What the first step allocates may be what every program keeps: state and gradients.
    inside = (all_.at_ns >= steps.start_ns[1]) & (all_.at_ns < steps.start_ns[-1])
    return all_.select(inside & (all_.freed_ns > steps.end_ns[-1]))


def _evidence(
    signals: Signals, use: MemoryUse, ends: Int64, kept: Allocations
) -> tuple[Evidence, ...]:
    points = zip(signals.steps.number.tolist(), ends.tolist(), strict=True)
    found: list[Evidence] = [
        Series(
            "Allocated at the end of each step",
            "count",
            "bytes",
            tuple((float(x), float(y)) for x, y in points),
        )
    ]
    if len(kept):
        holders = sorted(by_operator(signals, kept), key=lambda one: -one.bytes)
        found.append(
            memory_by_operator("Allocated in steps before the last and not freed", holders)
        )
        shown = kept.row >= 0
        if shown.any():
            rows, first = unique_inverse(kept.row[shown])
            total = np.bincount(first, weights=kept.bytes[shown]).astype(np.int64)
            found.append(costliest("Where it was allocated", signals.worker, rows, total))
    found.append(allocated_memory_series(use))
    return tuple(found)
