"""Runs the rules on a capture, and puts the analysis together."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import cache, partial

from msgspec.structs import replace

from tb_perfadvisor.engine.analysis import Analysis, Progress, RankedFinding, RuleOutcome, Status
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.headline import agreeing, blind_spot, headline
from tb_perfadvisor.engine.profile_notes import profile_notes, snapshot_notes
from tb_perfadvisor.engine.ranking import first_finding, leaders_of, rank
from tb_perfadvisor.engine.savings import estimated, saved_together, simulate, simulation_notes
from tb_perfadvisor.engine.trust import abstaining, lost_work_notes, too_little, trust_in
from tb_perfadvisor.errors import UnexpectedError, log_bug
from tb_perfadvisor.ingest.captures import Capture
from tb_perfadvisor.ingest.load import Summarize
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.evidence.host import annotation_table, claimed_idle
from tb_perfadvisor.rules.evidence.tables import instance_of
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.signals import (
    Missing,
    Need,
    Signals,
    reference_worker,
    why_missing,
    why_not_looked,
)
from tb_perfadvisor.signals.efficiency.costliest_work import costliest_work
from tb_perfadvisor.signals.efficiency.utilization import throughput, utilization
from tb_perfadvisor.signals.ranks.ranks import collectives_kept, summarize
from tb_perfadvisor.signals.recording.completeness import is_start_up
from tb_perfadvisor.signals.workload.fit import fitting
from tb_perfadvisor.signals.workload.workload import workload
from tb_perfadvisor.trace import Run, Trace
from tb_perfadvisor.trace.rank_summary import RankSummary
from tb_perfadvisor.whatif import most_saved_ns

_WORTH_THREADS = 150_000
"""Events. With fewer, rules are mostly Python, of which one thread runs at a time. With more they
are mostly numpy, which runs in several."""

_SWITCH_S = 0.0005
"""How long a thread that is done in numpy waits for one in Python. 5 ms are far longer than most
calls of numpy: with them, two threads were little faster than one."""


def run_rules(rules: Sequence[Rule], signals: Signals, threads: int = 1) -> tuple[RuleOutcome, ...]:
    """Run each rule on one worker's signals. Never raises, whatever a rule does.

    With several threads, they share what they compute: see `memoized`. What all reports show beside
    findings is computed in them, too.
    """
    if threads <= 1 or len(signals.trace.events) < _WORTH_THREADS:
        return tuple(run_rule(rule, signals) for rule in rules)
    from concurrent.futures import ThreadPoolExecutor

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        with ThreadPoolExecutor(threads) as executor:
            for compute in (throughput, utilization, costliest_work):
                executor.submit(compute, signals)
            return tuple(executor.map(partial(_run_and_simulate, signals=signals), rules))
    finally:
        sys.setswitchinterval(interval_s)


def _run_and_simulate(rule: Rule, signals: Signals) -> RuleOutcome:
    """Run one rule; then what its fixes save has been simulated, and is known when it is asked."""
    outcome = run_rule(rule, signals)
    simulate([(rule, finding) for finding in outcome.findings], signals)
    return outcome


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
    named = annotation_table(signals, idle) if idle is not None else ()
    return replace(
        finding,
        instance=instance_of(finding),
        remedies=fitting(finding.remedies, workload(signals)),
        evidence=(*finding.evidence, *named),
    )


SAVES_NOTHING = "what it found costs no time, as long as nothing else changes"
"""Why a rule has passed although it found something."""


def analyze_run(
    run: Run, config: Config, progress: Progress | None = None, threads: int = 1
) -> Analysis:
    """Analyze one capture.

    The capture has at least one trace. `progress` is called with the current stage and the share
    that is done (0-1). A large capture's rules run in several `threads`.
    """
    tell = progress or (lambda stage, share: None)
    rules = config.check()
    tell("comparing ranks", 0.0)
    signals = reference_worker(run, config.options)
    tell("checking rules", 0.2)
    few = too_little(signals)
    outcomes = abstaining(run_rules(rules if few is None else (), signals, threads), signals)
    found = [(outcome.rule, finding) for outcome in outcomes for finding in outcome.findings]
    tell("simulating the fixes", 0.8)
    findings, combined = rank(
        estimated(found, signals),
        signals.attribution.window_ns,
        saved_together(signals),
        signals.steps,
        partial(most_saved_ns, signals),
    )
    starts_up = is_start_up(signals, combined.expected_ns if combined is not None else 0)
    notes = (
        *run.notes,
        *profile_notes(signals, starts_up=starts_up),
        *lost_work_notes(signals),
        *(() if few is None else (few,)),
        *simulation_notes(found, signals),
    )
    trust = trust_in(notes)
    # Without a window there are no steps to check, and a selection of rules is the user's own.
    is_whole = bool(signals.attribution.window_ns) and not config.select and few is None
    unseen = blind_spot(outcomes) if is_whole else None
    first = None if trust.level == "do not act" else first_finding(findings)

    leaders = leaders_of(findings)

    @cache
    def say(first: int | None) -> str:
        return headline(signals, findings, first, unseen, trust, starts_up=starts_up)

    return Analysis(
        signals=signals,
        outcomes=tuple(_shown(outcome, findings) for outcome in outcomes),
        findings=agreeing(findings),
        first=first,
        combined=combined,
        notes=tuple(dict.fromkeys((*notes, *snapshot_notes(signals, findings)))),
        headline=say(first),
        leaders=frozenset(leaders.values()),
        headlines={place: say(place) for place in {*leaders, *leaders.values()}},
        headline_without_changes=say(None),
        is_start_up=starts_up,
        trust=trust,
        blind_spot=unseen,
    )


def _shown(outcome: RuleOutcome, findings: Sequence[RankedFinding]) -> RuleOutcome:
    """The outcome of a rule; it has passed if nothing that it found is worth showing."""
    if outcome.status != "found" or any(entry.rule is outcome.rule for entry in findings):
        return outcome
    return replace(outcome, status="passed", findings=(), reason=SAVES_NOTHING)


def summarizer_of(capture: Capture) -> Summarize | None:
    """The function that summarizes each worker of a capture; None if there is only one worker."""
    workers = len(capture.workers)
    return partial(summarize_trace, collectives_kept(workers)) if workers > 1 else None


def summarize_trace(max_collectives: int, trace: Trace) -> RankSummary:
    """Summarize one worker's trace, in whichever process it was read."""
    run = Run(id="", name="", session="", traces=(trace,))
    return summarize(Signals(run), max_collectives)
