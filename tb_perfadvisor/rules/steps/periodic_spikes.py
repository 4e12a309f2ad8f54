"""Steps take longer at regular intervals."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.host_code import host_code_table
from tb_perfadvisor.rules.evidence.tables import step_time_series
from tb_perfadvisor.rules.finding import Column, Finding, Saving, Span
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.steps.step_variation import dominant_event, in_steps, step_variation
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.units import format_duration

_ENDINGS = {1: "st", 2: "nd", 3: "rd"}
_MOST_STEPS_LISTED = 5


class PeriodicSpikes(Rule):
    """At regular intervals a step takes longer because the host does additional work.

    What it finds
    -------------
    Steps at a fixed distance (every second, every tenth) in which the device, or the program's
    operators, wait longer for the host than in the others, and what the host does in them.

    Why it matters
    --------------
    Logging, saving, evaluating or collecting garbage every few steps is invisible in most steps,
    but it raises the mean.

    How it is measured
    ------------------
    For each kind of idle time (input, between steps, compiling, Python, unexplained and so on),
    the time per step. Spikes exceed the typical value of the lower half of the steps by a tenth of
    the median step and by three times the variation of those steps. There must be at least three
    spikes at equal distances from one end of the profile to the other. Expected is their mean
    excess, once per period of the recorded steps; low and high use the number of spikes in the
    profile if that is lower or higher. Steps in which the device computes more, as with gradient
    accumulation, are not spikes.

    When to ignore
    --------------
    When the work has to happen that often.

    How to verify
    -------------
    The step times of the next profile are even.

    References:
    ----------
    TensorFlow guide, "Optimize TensorFlow GPU performance with the TensorFlow Profiler", on what
    runs between steps.
    """

    id = "periodic-spikes"
    title = "Do periodic work less often"
    category = "steps"
    needs = (Need.WORK, Need.HOST_EVENTS, Need.STEPS, Need.SEVERAL_STEPS)
    is_preview = False

    minimum_share = Limit(
        0.02, "share", "Spread over all steps, less than 2 % is lost in their variation."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when steps spike at equal distances."""
        variation = step_variation(signals)
        spikes = variation.spikes
        if spikes is None:
            return
        claims = in_steps(signals, spikes.part, spikes.index)
        count, seen = len(variation.duration_ns), len(spikes.index)
        mean_ns = float(spikes.excess_ns.mean())
        # The profile may contain one spike more or less than its length suggests.
        due_ns, seen_ns = round(mean_ns * count / spikes.period), round(mean_ns * seen)
        high_ns = min(max(due_ns, seen_ns), total_ns(claims))
        expected_ns = min(due_ns, high_ns)
        if self.is_minor(expected_ns, signals):
            return
        name, host_code = dominant_event(signals, claims, int(spikes.excess_ns.sum()))
        numbers = [str(number) for number in signals.steps.number[spikes.index].tolist()]
        listed = ", ".join(numbers[:_MOST_STEPS_LISTED]) + (
            ", …" if seen > _MOST_STEPS_LISTED else ""
        )
        doing = f"the host is in {name}" if name else "the host does something unrecorded"
        start, end = claims[(claims[:, 1] - claims[:, 0]).argmax()].tolist()
        yield Finding(
            instance=(
                f"every {_ordinal(spikes.period)} step takes {format_duration(mean_ns)} longer"
            ),
            summary=(
                f"Every {_ordinal(spikes.period)} step ({listed}) takes"
                f" {format_duration(mean_ns)} longer ({spikes.part.lower()}): {doing}."
            ),
            saving=Saving(
                min(due_ns, seen_ns, expected_ns), expected_ns, high_ns, claims, "measured"
            ),
            evidence=(
                step_time_series(signals),
                host_code_table(
                    "Host code during the longer steps",
                    "Code",
                    Column("own_ns", "Idle time", "ns"),
                    host_code,
                    total_ns(claims) - sum(host_code.self_ns),
                ),
                Span("Longest wait", signals.worker, start, end, "", spikes.part),
            ),
            remedies=advise("save-rarely"),
        )


def _ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 20 else _ENDINGS.get(number % 10, "th")
    return f"{number}{ending}"
