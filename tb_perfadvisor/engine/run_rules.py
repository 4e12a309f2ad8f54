"""Runs rules in isolation: a rule that raises has failed, and the others still run."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec.structs import replace

from tb_perfadvisor.engine.analysis import RuleOutcome, Status
from tb_perfadvisor.errors import UnexpectedError, log_bug
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.evidence.host import annotation_table, claimed_idle, sampled_functions
from tb_perfadvisor.rules.evidence.instance import instance_of
from tb_perfadvisor.rules.finding import Finding, Table
from tb_perfadvisor.signals import Missing, Need, Signals, why_missing, why_not_looked
from tb_perfadvisor.signals.workload.workload import fitting, workload


def run_rules(rules: Sequence[Rule], signals: Signals) -> tuple[RuleOutcome, ...]:
    """Run each rule on one worker's signals. Never raises, whatever a rule does."""
    return tuple(run_rule(rule, signals) for rule in rules)


def run_rule(rule: Rule, signals: Signals) -> RuleOutcome:
    """Run one rule: found, passed, not applicable or failed."""
    begun = time.perf_counter()
    findings: tuple[Finding, ...] = ()
    missing: tuple[Missing, ...] = ()
    reason = None
    status: Status
    try:
        missing = missing_of(rule, signals)
        if missing:
            status = "not_applicable"
            reason = "; ".join(dict.fromkeys(need.reason for need in missing))
        else:
            findings = tuple(completed(finding, signals) for finding in rule.check(signals))
            status = "found" if findings else "passed"
    except Exception as error:  # a broken rule, built in or added, must not break the report
        log_bug(UnexpectedError(error, signals.trace.source.path, f"the rule {rule.id} failed"))
        status, findings = "failed", ()
        reason = f"{type(error).__name__}: {error}"
    elapsed_ms = (time.perf_counter() - begun) * 1e3
    return RuleOutcome(rule, status, findings, missing, reason, elapsed_ms)


def missing_of(rule: Rule | type[Rule], signals: Signals) -> tuple[Missing, ...]:
    """What this profile lacks for a rule; empty if the rule is applicable."""
    if rule.suffices is not None and why_missing(signals, rule.suffices) is None:
        return ()
    answers = [why_missing(signals, need) for need in needs_of(rule, signals)]
    if rule.look is not None:
        answers.append(why_not_looked(signals, rule.look))
    return tuple(answer for answer in answers if answer is not None)


def needs_of(rule: Rule | type[Rule], signals: Signals) -> tuple[Need, ...]:
    """What a rule needs of this profile, or of the memory snapshot beside it."""
    of_snapshot = rule.needs_of_snapshots
    if of_snapshot is not None and signals.trace.snapshot is not None:
        is_met = all(why_missing(signals, need) is None for need in of_snapshot)
        if is_met or signals.trace.is_snapshot_only:
            return of_snapshot
    if rule.needs_on_cpu is not None and why_missing(signals, Need.CPU_PROGRAM) is None:
        return (*rule.needs_on_cpu, Need.EVENTS)
    if not rule.reads_sums:
        return (*rule.needs, Need.EVENTS)
    if signals.trace.totals is None or rule.needs_of_sums is None:
        return rule.needs
    return rule.needs_of_sums


def completed(finding: Finding, signals: Signals) -> Finding:
    """A finding with the remedies that fit the program, and where its idle time lies."""
    idle = claimed_idle(finding, signals)
    named: tuple[Table, ...] = ()
    if idle is not None:
        named = (*annotation_table(signals, idle), *sampled_functions(signals, idle))
    return replace(
        finding,
        instance=instance_of(finding),
        remedies=fitting(finding.remedies, workload(signals)),
        evidence=(*finding.evidence, *named),
    )
