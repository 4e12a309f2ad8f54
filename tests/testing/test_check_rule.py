from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import pytest

from tb_perfadvisor.advice import Remedy
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.finding import Events, Evidence, Finding, Saving
from tb_perfadvisor.rules.input.stalls import InputStall
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.variants import keep_events, renamed, shifted, stretched, without
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import single, total_ns

SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|
"""
FIXED = """
    cell 1ms
    step   |......|......|
    main   |oo....|oo....|
    worker |DDDD..|DDDD..|
    gpu 7  |.KKKKK|.KKKKK|
"""


class Stall(Rule):
    """A small stand-in whose parts the tests break one after the other."""

    id = "stall"
    title = "Stall less"
    category = "input"
    needs = (Need.DEVICE_EVENTS,)
    factor: ClassVar[float] = 1.0

    def check(self, signals: Signals) -> Iterable[Finding]:
        claims = signals.attribution.intervals[Cause.INPUT]
        if len(claims):
            saved = round(total_ns(claims) * self.factor)
            yield Finding(
                "It stalls.",
                Saving(saved, saved, saved, claims, "measured"),
                self.evidence(signals),
                self.remedies(),
            )

    def evidence(self, signals: Signals) -> tuple[Evidence, ...]:
        return (Events("Waits", signals.trace.rows(EventKind.INPUT_WAIT), 0),)

    def remedies(self) -> tuple[Remedy, ...]:
        return (Remedy("Do.", "x = 1"),)


def test_a_rule_that_keeps_its_contract() -> None:
    checked = check_rule(Stall, slow=SLOW, fixed=FIXED, saves="4ms")
    assert checked.expected_ns == 4_000_000
    check_rule(InputStall, slow=SLOW, fixed=FIXED, saves=4_000_000, exactly=False)


def test_a_trace_serves_as_well_as_a_drawing() -> None:
    check_rule(Stall, slow=draw(SLOW), fixed=draw(FIXED), saves="4000us")


def test_find_tells_not_applicable_from_nothing() -> None:
    assert find(Stall, FIXED) == ()
    assert find(Stall, "cell 1ms\nstep |....|\nmain |oooo|") is None


class Estimates(Stall):
    factor = 0.5


class Always(Stall):
    def check(self, signals: Signals) -> Iterable[Finding]:
        window = signals.attribution
        claims = single(window.window_start_ns, window.window_end_ns)
        yield Finding(
            "Always.",
            Saving(0, 0, 0, claims, "heuristic"),
            self.evidence(signals),
            self.remedies(),
        )


class Never(Stall):
    def check(self, signals: Signals) -> Iterable[Finding]:
        return ()


class Unlike(Stall):
    def evidence(self, signals: Signals) -> tuple[Evidence, ...]:
        return (Events("Waits", np.array([10_000], dtype=np.int32), 0),)


class Unproved(Stall):
    def evidence(self, signals: Signals) -> tuple[Evidence, ...]:
        return ()


class Helpless(Stall):
    def remedies(self) -> tuple[Remedy, ...]:
        return ()


class Misspelt(Stall):
    def remedies(self) -> tuple[Remedy, ...]:
        return (Remedy("Do.", "x = = 1"),)


class ByName(Stall):
    def check(self, signals: Signals) -> Iterable[Finding]:
        labels = {signals.trace.text(index) for index in signals.trace.tracks.label.tolist()}
        return super().check(signals) if "main" in labels else ()


class ByClock(Stall):
    def check(self, signals: Signals) -> Iterable[Finding]:
        return super().check(signals) if signals.steps.window_start_ns == 0 else ()


class ByLength(Stall):
    def check(self, signals: Signals) -> Iterable[Finding]:
        return super().check(signals) if signals.steps.window_ns <= 20_000_000 else ()


class Demanding(Stall):
    needs = (Need.DEVICE_EVENTS, Need.SEVERAL_STEPS, Need.SHAPES)


class Outside(Stall):
    def check(self, signals: Signals) -> Iterable[Finding]:
        for finding in super().check(signals):
            beyond = single(signals.trace.duration_ns, signals.trace.duration_ns + 9_000_000)
            yield Finding(
                finding.summary,
                Saving(8_000_000, 8_000_000, 8_000_000, beyond, "measured"),
                finding.evidence,
                finding.remedies,
            )


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Never, "finds nothing in the slow"),
        (Always, "still finds something in the fixed"),
        (Estimates, "estimates 2000000 to 2000000 ns a step, the fix saves 4000000"),
        (Unlike, "rows that the trace lacks"),
        (Unproved, "without evidence"),
        (Helpless, "without a remedy"),
        (ByName, "renaming the tracks changes"),
        (ByClock, "shifting the clock changes"),
        (ByLength, "at twice the time it saves 0 ns, not 8000000"),
        (Outside, "outside the used steps"),
        (Demanding, "slow trace .Need.SEVERAL_STEPS: .* fewer than 5 .*; Need.SHAPES: "),
    ],
)
def test_a_rule_that_breaks_its_contract_is_told(rule: type[Rule], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_rule(rule, slow=SLOW, fixed=FIXED, saves="4ms")


def test_a_snippet_that_does_not_parse_is_told() -> None:
    with pytest.raises(SyntaxError):
        check_rule(Misspelt, slow=SLOW, fixed=FIXED, saves="4ms")


def test_a_wrong_sum_in_the_test_itself_is_told() -> None:
    with pytest.raises(AssertionError, match="differ by 4000000 ns a step, not by 5ms"):
        check_rule(Stall, slow=SLOW, fixed=FIXED, saves="5ms")
    with pytest.raises(ValueError, match="not a duration"):
        check_rule(Stall, slow=SLOW, fixed=FIXED, saves="4 parsecs")


def test_variants_change_what_they_say() -> None:
    trace = draw(SLOW)
    assert stretched(trace, 3).duration_ns == 60_000_000
    assert shifted(trace, 5).events.start_ns.min() == 5
    labels = {renamed(trace).text(index) for index in renamed(trace).tracks.label.tolist()}
    assert labels == {"renamed 0", "renamed 1"}
    assert not (without(trace, Need.LAUNCH_LINKS) or trace).events.launched_by.max() >= 0


def test_keeping_some_events_keeps_their_links() -> None:
    trace = draw(SLOW)
    # Without the first four rows (step, fetch, operator, launch) of the first step.
    keep = np.ones(len(trace.events), dtype=bool)
    keep[trace.rows(EventKind.STEP)] = False
    kept = keep_events(trace, keep)
    assert len(kept.events) == len(trace.events) - 2
    for row in kept.rows(EventKind.KERNEL):
        assert kept.events.kind[kept.events.launched_by[row]] == EventKind.LAUNCH
    assert [kept.name(row) for row in kept.kernels.row] == ["ampere_sgemm_128x64_nn"] * 2
