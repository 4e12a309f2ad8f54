"""TensorFlow's loops over the samples of a batch."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Saving
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.input.tfdata import tfdata
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import (
    EMPTY,
    Intervals,
    intersect,
    join,
    last_before,
    minus,
    single,
    total_ns,
    union,
)
from tb_perfadvisor.trace.tables import Int32

_PART: Final = re.compile(
    r"(?P<loop>(?:.*/)?map(?:_\d+)?)/"
    r"(?:TensorArrayUnstack\w*/\w+:(?P<first>TensorListFromTensor)"
    r"|TensorArrayV2Stack\w*/\w+:(?P<last>TensorListStack)"
    r"|while/body/.*)$"
)
"""Operators that `tf.map_fn` makes: it takes its inputs apart, calls a function for each of the
pieces, and puts the results together."""

_SAVED: Final = (0.5, 0.85, 1.0)
"""The part of the loop's time that goes: at least, as expected, and at most. The operators run once
for the batch, on more data."""


class MappedSamples(Rule):
    """`tf.map_fn` calls a function of small operators for one sample after the other.

    What it finds
    -------------
    Loops of `tf.map_fn` in TensorFlow programs on the CPU, outside of `tf.data`, whose operators
    are short.

    Why it matters
    --------------
    Starting an operator takes about a microsecond, and the loop passes on its state in each trip.
    With a hundred samples, a handful of operators takes milliseconds. On the whole batch, each
    operator runs once.

    How it is measured
    ------------------
    The time from the last input that is taken apart to the first result that is put together,
    without operators outside of the loop and long ones in it. Short operators in the loop are not
    recorded one by one. The gradient of the loop is not counted. Expected is 85 % of this time, low
    a half, and high all.

    When to ignore
    --------------
    When the samples differ in shape, or all results do not fit into memory at once.

    How to verify
    -------------
    No operator of the profile has `map/while` in its name, and the step is shorter.

    References:
    ----------
    TensorFlow API documentation, "tf.map_fn" and "tf.vectorized_map".
    """

    id = "mapped-samples"
    title = "Map the whole batch at once"
    category = "launch"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.CPU_PROGRAM)

    minimum_share = Limit(0.05, "share", "A short loop is not worth rewriting.")
    maximum_run_ns = Limit(
        100_000, "ns", "Starting a longer operator costs little, compared to its work."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when such loops take a good part of the steps."""
        trace, events = signals.trace, signals.trace.events
        if trace.source.framework != "tensorflow":
            return
        rows, spans = _loops(trace)
        operators = trace.rows(EventKind.OPERATOR)
        is_long = events.duration_ns[rows] > self.maximum_run_ns
        others = np.setdiff1d(operators, rows[~is_long])
        waiting = join(signals.host_idle, signals.attribution.intervals[Cause.HOST_COMPUTE])
        claims = minus(
            intersect(spans, waiting),
            join(union(events.start_ns[others], events.end_ns[others]), *tfdata(signals).work),
        )
        spent_ns = total_ns(claims)
        if not len(spans) or self.is_minor(spent_ns, signals):
            return
        low, expected, high = (int(part * spent_ns) for part in _SAVED)
        used = single(signals.attribution.window_start_ns, signals.attribution.window_end_ns)
        yield Finding(
            instance=count_per_step(len(intersect(spans, used)), "loop", signals),
            summary=(
                f"{per_step(spent_ns, signals)} goes into `tf.map_fn`, which runs small operators"
                " for one sample after the other."
            ),
            saving=Saving(low, expected, high, claims, "modeled"),
            evidence=(
                events_by_name(
                    "Recorded operators of the loop",
                    "Operator",
                    trace,
                    rows,
                    ((Column("duration_ns", "Time", "ns"), events.duration_ns[rows]),),
                ),
            ),
            remedies=advise("batch-mapped-at-once"),
        )


def _loops(trace: Trace) -> tuple[Int32, Intervals]:
    """Recorded operators of the loops, and when the loops run."""
    events, rows = trace.events, trace.rows(EventKind.OPERATOR)
    names = events.name[rows]
    parts = {
        name: part
        for name in distinct(names).tolist()
        if (part := _PART.match(trace.strings[name])) is not None
    }
    first: defaultdict[str, list[Int32]] = defaultdict(list)
    last: defaultdict[str, list[Int32]] = defaultdict(list)
    for name, part in parts.items():
        for ends, of_loop in ((part["first"], first), (part["last"], last)):
            if ends:
                of_loop[part["loop"]].append(rows[names == name])
    spans = EMPTY
    for loop in first.keys() & last.keys():
        begin = np.sort(events.end_ns[np.concatenate(first[loop])])
        end = np.sort(events.start_ns[np.concatenate(last[loop])])
        before = last_before(begin, end)
        # Further results of the same loop are put together later.
        before, chosen = np.unique(before, return_index=True)
        is_paired = before >= 0
        spans = join(spans, union(begin[before[is_paired]], end[chosen[is_paired]]))
    of_loops: Int32 = rows[np.isin(names, list(parts))]
    return of_loops, spans
