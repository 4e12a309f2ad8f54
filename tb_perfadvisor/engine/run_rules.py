"""Runs rules in isolation: one that raises is `failed`, and the others go on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.engine.two_ends import TwoEnds
from tb_perfadvisor.ingest.fork import Fork, can_fork
from tb_perfadvisor.rules.base import Finding, Rule
from tb_perfadvisor.signals import Missing, Need, Signals

_LOG = logging.getLogger(__name__)

# What these work out, the steps re-timed above all, is asked for again when findings are ranked:
# the process that ranks them begins with these. What those work out, each kernel's roofline above
# all, takes longer than most rules: it is worked out in the other process alone.
_FIRST_HERE: Final = ("communication", "input", "launch", "steps")
_ONLY_THERE: Final = ("compute", "precision", "xla")
# Of fewer events all rules take no longer than a fork and what it hands over.
_WORTH_EVENTS: Final = 50_000

Status = Literal["found", "passed", "not_applicable", "failed"]


class RuleOutcome(Struct, frozen=True):
    """What became of one rule on one worker."""

    rule: Rule
    status: Status
    findings: tuple[Finding, ...]
    missing: tuple[Missing, ...]
    reason: str | None
    elapsed_ms: float


RunRules = Callable[[Sequence[Rule], Signals], tuple[RuleOutcome, ...]]


def run_rules(rules: Sequence[Rule], signals: Signals) -> tuple[RuleOutcome, ...]:
    """Run each rule on one worker's signals; never raises for what a rule does."""
    return tuple(run_rule(rule, signals) for rule in rules)


def run_rules_in_two(rules: Sequence[Rule], signals: Signals) -> tuple[RuleOutcome, ...]:
    """As `run_rules`, some of them in a fork: only for a process that is our own."""
    if len(rules) < 2 or len(signals.trace.events) < _WORTH_EVENTS or not can_fork():
        return run_rules(rules, signals)
    ordered = sorted(range(len(rules)), key=lambda index: _place(rules[index]))
    try:
        theirs = sum(rule.category in _ONLY_THERE for rule in rules)
        ends = TwoEnds(len(rules), only_last=theirs)
        fork = Fork(lambda: partial(_run_from, ends.take_last, ordered, rules, signals))
    except OSError:  # no further process, no shared memory
        return run_rules(rules, signals)
    with fork:
        outcomes = _run_from(ends.take_first, ordered, rules, signals)
        # Where it was ended, or what a stranger's rule found cannot be handed over, all is here.
        with suppress(Exception):
            for index, outcome in fork.result().items():
                outcomes[index] = replace(outcome, rule=rules[index])
    return tuple(
        outcomes[index] if index in outcomes else run_rule(rule, signals)
        for index, rule in enumerate(rules)
    )


def _place(rule: Rule) -> int:
    return (rule.category not in _FIRST_HERE) + (rule.category in _ONLY_THERE)


def _run_from(
    take: Callable[[], int | None], ordered: Sequence[int], rules: Sequence[Rule], signals: Signals
) -> dict[int, RuleOutcome]:
    """Run rules for as long as there are some left; their outcomes by number."""
    outcomes = {}
    while (place := take()) is not None:
        index = ordered[place]
        outcomes[index] = run_rule(rules[index], signals)
    return outcomes


def run_rule(rule: Rule, signals: Signals) -> RuleOutcome:
    """Run one rule: found, passed, not applicable or failed."""
    begun = time.perf_counter()
    findings: tuple[Finding, ...] = ()
    missing: tuple[Missing, ...] = ()
    reason = None
    status: Status
    try:
        needs = rule.needs if rule.reads_sums else (*rule.needs, Need.EVENTS)
        missing = tuple(m for m in map(signals.missing, needs) if m is not None)
        if missing:
            status = "not_applicable"
            reason = "; ".join(dict.fromkeys(one.reason for one in missing))
        else:
            findings = tuple(rule.check(signals))
            status = "found" if findings else "passed"
    except Exception as error:  # a rule, ours or a stranger's, must not take the report down
        _LOG.warning("rule %s failed on %s", rule.id, signals.trace.source.path, exc_info=True)
        status, findings = "failed", ()
        reason = f"{type(error).__name__}: {error}"
    elapsed_ms = (time.perf_counter() - begun) * 1e3
    return RuleOutcome(rule, status, findings, missing, reason, elapsed_ms)
