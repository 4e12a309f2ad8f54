"""A few batches arrive much later than the others."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Series, Table, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.core.placement import has_ancestor
from tb_perfadvisor.signals.input.waiting_fetches import workers_to_keep_up
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import intersect, overlap_ns, total_ns
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.units import format_duration
from tb_perfadvisor.whatif import shrink

_MOST_STEPS_NAMED = 5


class SlowBatch(Rule):
    """A few fetches take much longer than the others, and the device waits for them.

    What it finds
    -------------
    Single fetches that take several times the median, which ones they are, and how long the device
    waited for them beyond the median.

    Why it matters
    --------------
    Input that is fast enough on average still stalls a step when one batch holds a huge image, a
    long sequence, or the first read of a new file. More workers do not help. Evening out that
    batch does, or prefetching more batches.

    How it is measured
    ------------------
    For each fetch far above the median: the time attributed to *input* inside it, beyond the
    median. Expected is what the steps save in a replay in which these fetches take the median;
    high is the whole time beyond the median. Low allows for chance in a small count: of n slow
    fetches it leaves out one part in the square root of n, because nobody knows whether a single
    slow batch comes again. Slow fetches at a constant distance are not reported (workers that
    cannot keep up deliver in turns), nor is the first fetch, which starts the pipeline.

    When to ignore
    --------------
    When the slow batch is the first of an epoch, or coincides with a checkpoint or an evaluation
    that used the same disk.

    How to verify
    -------------
    The listed fetches take as long as the others.

    References:
    ----------
    PyTorch documentation, "torch.utils.data"; TensorFlow guide, "Better performance with the
    tf.data API".
    """

    id = "slow-batch"
    title = "Even out the batches that come late"
    category = "input"
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
        """Yield a finding when the device waits for single slow fetches."""
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
        numbers = _steps_of(signals, slow)
        named = ", ".join(
            f"{number}" for number in numbers[:_MOST_STEPS_NAMED] if number is not None
        )
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
                Table(
                    "Slow fetches by step",
                    (
                        Column("step", "Step", "count"),
                        Column("duration_ns", "In the fetch", "ns"),
                        Column("idle_ns", "Device idle beyond the median", "ns"),
                    ),
                    tuple(
                        (number, int(took), int(lost))
                        for number, took, lost in zip(
                            numbers, duration[is_slow].tolist(), idle.tolist(), strict=True
                        )
                    ),
                ),
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


def _steps_of(signals: Signals, rows: Int32) -> list[int | None]:
    steps = signals.steps
    if len(steps) == 0:
        return [None] * len(rows)
    step = steps.owner[rows]
    return [int(steps.number[i]) if i >= 0 else None for i in step.tolist()]
