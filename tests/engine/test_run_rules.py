from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tb_perfadvisor.engine.run_rules import run_rule, run_rules
from tb_perfadvisor.rules.base import Finding, Rule
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of

ROOT = Path(__file__).resolve().parents[2]

forks = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has what this needs")

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


FORKING = """
import os, sys, time
from collections.abc import Iterable
from tb_perfadvisor import api
from tb_perfadvisor.engine import run_rules as running
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.ingest.fork import Fork
from tb_perfadvisor.rules.base import Finding, Rule
from tb_perfadvisor.signals import Signals
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.sched_getaffinity = lambda process: {0, 1}
running._WORTH_EVENTS = 1000
(run,) = api.load(sys.argv[1])
rules = Config().rules()

class Where(Rule):
    id, title, category = "where", "Do", "memory"

    def check(self, signals: Signals) -> Iterable[Finding]:
        time.sleep(0.2)  # in which the other process takes the other one
        yield Finding(str(os.getpid()), severity="low")

def told(outcomes):
    return [
        (one.rule.id, one.status, one.reason, repr(one.findings), one.missing) for one in outcomes
    ]
"""


def forked(do: str) -> str:
    trace = next((ROOT / "demo_logs" / "pytorch_input_slow").glob("**/*.pt.trace.json.gz"))
    done = subprocess.run(
        [sys.executable, "-c", FORKING + do, str(trace)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.stderr == ""
    return done.stdout


@forks
def test_in_two_processes_they_find_the_same() -> None:
    do = (
        "one = running.run_rules(rules, Signals(run))\n"
        "two = running.run_rules_in_two(rules, Signals(run))\n"
        "assert told(one) == told(two)\n"
        "assert all(a.rule is b.rule for a, b in zip(one, two))\n"
        "print(sum(len(outcome.findings) for outcome in two))"
    )
    assert int(forked(do)) >= 1


@forks
@pytest.mark.parametrize(
    ("before", "is_elsewhere"),
    [
        ("", True),
        ("running._WORTH_EVENTS = 10**9", False),
        ("import threading; threading.Timer(1, int).start()", False),
        ("Fork.__init__ = lambda self, prepare: exec('raise OSError')", False),
        # Ended from outside, or with what cannot be handed over: all is run once more, here.
        ("Fork.result = lambda self: exec('raise ChildProcessError')", False),
    ],
)
def test_what_a_fork_is_asked(before: str, is_elsewhere: bool) -> None:
    do = (
        f"{before}\n"
        "_, last = running.run_rules_in_two([Where(), Where()], Signals(run))\n"
        "print(last.findings[0].summary != str(os.getpid()))"
    )
    assert forked(do) == f"{is_elsewhere}\n"
