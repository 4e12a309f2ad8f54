"""The pipeline from a run to its analysis: run the rules, simulate and rank what they find."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from tb_perfadvisor.engine.agreement import agreeing
from tb_perfadvisor.engine.analysis import Analysis, Progress, RankedFinding, RuleOutcome
from tb_perfadvisor.engine.blind_spot import blind_spot
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.headline import headline
from tb_perfadvisor.engine.profile_notes import profile_notes
from tb_perfadvisor.engine.ranking import first_finding, rank
from tb_perfadvisor.engine.run_rules import run_rules
from tb_perfadvisor.engine.savings.estimates import estimated
from tb_perfadvisor.engine.savings.simulated import saved_together, simulation_notes
from tb_perfadvisor.engine.snapshot_notes import snapshot_notes
from tb_perfadvisor.engine.trust import abstaining, lost_work_notes, too_little, trust_in
from tb_perfadvisor.signals import reference_worker
from tb_perfadvisor.signals.host.idle_owners import happening_once
from tb_perfadvisor.signals.recording.start_up import is_start_up
from tb_perfadvisor.trace import Run
from tb_perfadvisor.whatif import most_saved_ns

SAVES_NOTHING = "what it found costs no time, as long as nothing else changes"
"""Why a rule has passed although it found something."""


def analyze_run(run: Run, config: Config, progress: Progress | None = None) -> Analysis:
    """Analyze one capture.

    Args:
        run: The capture, with at least one trace.
        config: Which rules to run, and their limits.
        progress: Called with the current stage and the share that is done (0-1).

    Raises:
        UsageError: When the configuration names a rule, limit or device that does not exist.
    """
    tell = progress or (lambda stage, share: None)
    config.check()
    rules = config.rules()
    tell("comparing ranks", 0.0)
    signals = reference_worker(run, config.options)
    tell("checking rules", 0.2)
    few = too_little(signals)
    outcomes = abstaining(run_rules(rules if few is None else (), signals), signals)
    found = [(outcome.rule, finding) for outcome in outcomes for finding in outcome.findings]
    tell("simulating the fixes", 0.8)
    findings, combined = rank(
        estimated(found, signals),
        signals.attribution.window_ns,
        saved_together(signals),
        signals.steps,
        partial(most_saved_ns, signals),
        happening_once(signals),
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
    return Analysis(
        signals=signals,
        outcomes=tuple(_shown(outcome, findings) for outcome in outcomes),
        findings=agreeing(findings),
        first=None if trust.level == "do not act" else first_finding(findings),
        combined=combined,
        notes=tuple(dict.fromkeys((*notes, *snapshot_notes(signals, findings)))),
        headline=headline(signals, findings, combined, unseen, trust, starts_up=starts_up),
        is_start_up=starts_up,
        trust=trust,
        blind_spot=unseen,
    )


def _shown(outcome: RuleOutcome, findings: Sequence[RankedFinding]) -> RuleOutcome:
    """The outcome of a rule; it has passed if nothing that it found is worth showing."""
    if outcome.status != "found" or any(entry.rule is outcome.rule for entry in findings):
        return outcome
    return replace(outcome, status="passed", findings=(), reason=SAVES_NOTHING)
