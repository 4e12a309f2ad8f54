from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable

import msgspec
import pytest

from tb_perfadvisor import load
from tb_perfadvisor.engine.analyze import analyze_run, run_rule, run_rules
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of
from tests.support.command import DEMO

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


def test_the_four_outcomes_of_a_rule(caplog: pytest.LogCaptureFixture) -> None:
    signals = Signals(run_of(draw(DRAWING)))
    rules = (_Failed(), _Found(), _Passed(), _NotApplicable())
    with caplog.at_level(logging.WARNING):
        outcomes = run_rules(rules, signals)
    assert [(outcome.rule.id, outcome.status) for outcome in outcomes] == [
        ("failed", "failed"),
        ("found", "found"),
        ("passed", "passed"),
        ("not-applicable", "not_applicable"),
    ]
    failed, found, passed, _ = outcomes
    # Findings yielded before it raised are dropped.
    assert failed.findings == ()
    assert failed.reason == "ZeroDivisionError: of a stranger's rule"
    assert "rule failed failed" in caplog.text
    assert [finding.summary for finding in found.findings] == ["something"]
    assert (passed.findings, passed.reason) == ((), None)
    assert all(outcome.elapsed_ms >= 0 for outcome in outcomes)


def test_threads_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tb_perfadvisor.engine.analyze._WORTH_THREADS", 0)
    for name in ("pytorch_input_slow", "synthetic_gpu_allreduce_8rank"):
        reports = []
        for threads in (1, 4):
            (run,) = load(DEMO / name)
            report = build_report(analyze_run(run, Config(), threads=threads), Config())
            contents = json.loads(msgspec.json.encode(report))
            for outcome in contents["outcomes"]:
                del outcome["elapsed_ms"]
            reports.append(contents)
        assert reports[0] == reports[1]


def test_not_applicable_names_what_is_missing_and_how_to_record_it() -> None:
    outcome = run_rule(_NotApplicable(), Signals(run_of(draw(DRAWING))))
    assert [missing.need for missing in outcome.missing] == [Need.MEMORY, Need.COLLECTIVES]
    assert outcome.missing[0].remedy == "Record with profile_memory=True."
    assert outcome.reason == ("device memory was not recorded; the profile has no collectives")


def test_equal_reasons_are_given_once() -> None:
    signals = Signals(run_of(TraceBuilder().step(0, 0, ms(2)).launch(0, ms(1)).build()))

    class _Needy(_NotApplicable):
        needs = (Need.WORK, Need.DEVICE_EVENTS, Need.PEAKS)

    outcome = run_rule(_Needy(), signals)
    assert len(outcome.missing) == 3
    assert outcome.reason == "the profile has no events of the device"


def test_an_outcome_says_how_long_its_rule_took(monkeypatch: pytest.MonkeyPatch) -> None:
    moments_s = iter([2.0, 2.25])
    monkeypatch.setattr(time, "perf_counter", lambda: next(moments_s))
    outcome = run_rule(_NotApplicable(), Signals(run_of(draw(DRAWING))))
    assert outcome.elapsed_ms == 250.0
