from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import pytest

from tb_perfadvisor import api
from tb_perfadvisor.engine import run_rules as running
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.run_rules import (
    RuleOutcome,
    begin_in_two_threads,
    run_rule,
    run_rules,
)
from tb_perfadvisor.rules.base import Finding, Rule
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of

ROOT = Path(__file__).resolve().parents[2]

DRAWING = """
    cell 1ms
    step  |....|....|
    main  |oo..|oo..|
    gpu 7 |.KK.|.KK.|
"""


class _Found(Rule):
    id, title, category = "found", "Do", "steps"

    def check(self, signals: Signals) -> Iterable[Finding]:
        yield Finding("something", severity="low")


class _Passed(Rule):
    id, title, category = "passed", "Do", "steps"

    def check(self, signals: Signals) -> Iterable[Finding]:
        return ()


class _Failed(Rule):
    id, title, category = "failed", "Do", "steps"

    def check(self, signals: Signals) -> Iterable[Finding]:
        yield Finding("half of the truth", severity="high")
        raise ZeroDivisionError("of a stranger's rule")


class _NotApplicable(Rule):
    id, title, category = "not-applicable", "Do", "steps"
    needs = (Need.WORK, Need.MEMORY, Need.COLLECTIVES)

    def check(self, signals: Signals) -> Iterable[Finding]:
        raise AssertionError("never asked")


def test_each_rule_ends_in_one_of_four_ways(caplog: pytest.LogCaptureFixture) -> None:
    signals = Signals(run_of(draw(DRAWING)))
    rules = (_Failed(), _Found(), _Passed(), _NotApplicable())
    with caplog.at_level(logging.WARNING):
        outcomes = run_rules(rules, signals)
    assert [(one.rule.id, one.status) for one in outcomes] == [
        ("failed", "failed"),
        ("found", "found"),
        ("passed", "passed"),
        ("not-applicable", "not_applicable"),
    ]
    failed, found, passed, _ = outcomes
    # What it said before it raised is not half believed.
    assert failed.findings == ()
    assert failed.reason == "ZeroDivisionError: of a stranger's rule"
    assert "rule failed failed" in caplog.text
    assert [one.summary for one in found.findings] == ["something"]
    assert (passed.findings, passed.reason) == ((), None)
    assert all(one.elapsed_ms >= 0 for one in outcomes)


def test_not_applicable_names_what_is_missing_and_how_to_record_it() -> None:
    outcome = run_rule(_NotApplicable(), Signals(run_of(draw(DRAWING))))
    assert [one.need for one in outcome.missing] == [Need.MEMORY, Need.COLLECTIVES]
    assert outcome.missing[0].remedy == "Record with profile_memory=True."
    assert outcome.reason == ("device memory was not recorded; the profile has no collectives")


def test_the_same_reason_is_said_once() -> None:
    signals = Signals(run_of(TraceBuilder().step(0, 0, ms(2)).launch(0, ms(1)).build()))

    class _Needy(_NotApplicable):
        needs = (Need.WORK, Need.DEVICE_EVENTS, Need.PEAKS)

    outcome = run_rule(_Needy(), signals)
    assert len(outcome.missing) == 3
    assert outcome.reason == "the profile has no events of the device"


class _Where(Rule):
    """Tells the thread that it runs in, once another one runs too or does not for a while."""

    id, title, category = "where", "Do", "memory"

    def __init__(self, meeting: Barrier) -> None:
        super().__init__()
        self.meeting = meeting

    def check(self, signals: Signals) -> Iterable[Finding]:
        with suppress(BrokenBarrierError):
            self.meeting.wait()
        yield Finding(threading.current_thread().name, severity="low")


class _Ours(_Where):
    __module__ = "tb_perfadvisor.rules.memory.where"


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Signals:
    """Of a recorded trace, which counts as one that is worth two threads."""
    monkeypatch.setattr(running, "_WORTH_EVENTS", 1000)
    monkeypatch.setattr(running, "processors", lambda: 2)
    trace = next((ROOT / "demo_logs" / "pytorch_input_slow").glob("**/*.pt.trace.json.gz"))
    (run,) = api.load(str(trace))
    return Signals(run)


def run_in_two_threads(rules: Sequence[Rule], signals: Signals) -> tuple[RuleOutcome, ...]:
    with begin_in_two_threads(rules, signals) as run:
        return run()


def others() -> list[threading.Thread]:
    """The threads of ours that run rules; other tests may have some of theirs."""
    return [thread for thread in threading.enumerate() if thread.name == running.THREAD]


def threads_of(rule: type[_Where], signals: Signals, timeout_s: float) -> set[str]:
    meeting = Barrier(2, timeout=timeout_s)
    outcomes = run_in_two_threads([rule(meeting), rule(meeting)], signals)
    return {outcome.findings[0].summary for outcome in outcomes}


def test_in_two_threads_they_find_the_same(signals: Signals) -> None:
    def told(outcomes: Iterable[RuleOutcome]) -> list[tuple[object, ...]]:
        return [
            (one.rule, one.status, one.reason, repr(one.findings), one.missing) for one in outcomes
        ]

    rules = Config().rules()
    two = run_in_two_threads(rules, Signals(signals.run))
    assert told(two) == told(run_rules(rules, signals))
    assert any(outcome.findings for outcome in two)


def test_two_run_at_a_time(signals: Signals) -> None:
    turn_s = sys.getswitchinterval()
    assert len(threads_of(_Ours, signals, timeout_s=30)) == 2
    assert sys.getswitchinterval() == turn_s
    assert not others()


@pytest.mark.parametrize(("name", "value"), [("_WORTH_EVENTS", 10**9), ("processors", lambda: 1)])
def test_one_after_the_other_where_two_are_of_no_use(
    signals: Signals, monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    monkeypatch.setattr(running, name, value)
    assert threads_of(_Ours, signals, timeout_s=0.05) == {threading.current_thread().name}


def test_where_there_is_no_further_thread_all_run_here(
    signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    turn_s = sys.getswitchinterval()
    assert threads_of(_Ours, signals, timeout_s=0.05) == {threading.current_thread().name}
    assert sys.getswitchinterval() == turn_s


def test_strangers_rules_need_not_know_of_threads(signals: Signals) -> None:
    assert threads_of(_Where, signals, timeout_s=0.05) == {threading.current_thread().name}


def test_who_interrupts_ends_both(signals: Signals) -> None:
    meeting = Barrier(2, timeout=30)

    class Interrupted(_Where):
        __module__ = _Ours.__module__

        def check(self, signals: Signals) -> Iterable[Finding]:
            yield from super().check(signals)
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt

    turn_s = sys.getswitchinterval()
    with pytest.raises(KeyboardInterrupt):
        run_in_two_threads([Interrupted(meeting) for _ in range(2)], signals)
    assert sys.getswitchinterval() == turn_s
    assert not others()


def test_what_is_not_asked_for_ends_too(signals: Signals) -> None:
    meeting = Barrier(2, timeout=0.05)
    with begin_in_two_threads([_Ours(meeting) for _ in range(9)], signals):
        pass
    assert not others()
