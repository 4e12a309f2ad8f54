"""TensorFlow checks every result for infinities and NaNs."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Finding, Saving, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.host.debugging import debugging
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import clip, single, total_ns, union
from tb_perfadvisor.units import format_share

_MOST_TIMES = 1.7
_MOST_OF_STEP = 0.9


class CheckedNumbers(Rule):
    """TensorFlow checks the numbers that each operator returns.

    What it finds
    -------------
    The operators that `tf.debugging.enable_check_numerics` adds behind all others that return
    floating-point numbers.

    Why it matters
    --------------
    The mode is switched on to find one NaN and then forgotten. It adds one or two operators to
    each, which keeps others from being fused, and runs Python code for each that is called eagerly.

    How it is measured
    ------------------
    The checks are expected to cost their share of all operators, of the whole step. Low is the time
    that they run, high is 1.7 times the expected cost, and at most 90 % of the step: in a program
    of small layers, 51 % of the operators were checks, and without them a step took 84 % less.

    When to ignore
    --------------
    While you search for the NaN.

    How to verify
    -------------
    The operators `CheckNumericsV2` and `DebugNumericSummaryV2` are gone.

    References:
    ----------
    TensorFlow documentation, `tf.debugging.enable_check_numerics`.
    """

    id = "checked-numbers"
    title = "Switch the checks of all numbers off"
    category = "launch"
    needs = (Need.WORK, Need.HOST_EVENTS)

    minimum_share = Limit(0.01, "share", "A mode that costs less than 1 % of the step may stay on.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding if the operators are there."""
        trace, window = signals.trace, signals.attribution
        rows = signals.steps.own(debugging(signals).number_checks)
        operators = len(signals.steps.own(trace.rows(EventKind.OPERATOR)))
        if len(rows) == 0:
            return
        start, end = window.window_start_ns, window.window_end_ns
        spans = union(trace.events.start_ns[rows], trace.events.end_ns[rows])
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
