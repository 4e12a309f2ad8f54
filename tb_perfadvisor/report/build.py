"""From a run to its report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.profile_notes import profile_notes
from tb_perfadvisor.engine.ranking import Combined, Ranked, rank
from tb_perfadvisor.engine.run_rules import RuleOutcome, run_rules
from tb_perfadvisor.engine.savings.contention import widen
from tb_perfadvisor.engine.savings.simulated import saved_together, simulate, simulation_notes
from tb_perfadvisor.report import model
from tb_perfadvisor.report.encode_evidence import encode
from tb_perfadvisor.report.overview import make_overview, make_steps_info
from tb_perfadvisor.signals import Signals, reference_worker
from tb_perfadvisor.signals.core.attribution import COMPUTE, LABELS, Cause
from tb_perfadvisor.trace import Run
from tb_perfadvisor.trace.intervals import EMPTY, Intervals
from tb_perfadvisor.units import format_duration, format_share
from tb_perfadvisor.whatif import most_saved_ns

Progress = Callable[[str, float], None]
MENTIONED_SHARE = 0.2
"""A fifth of the step that is no compute is said even when no rule has advice."""
_NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")


class Analysis(Struct, frozen=True):
    """A report with what it was made of."""

    report: model.Report
    signals: Signals
    """Of the reference worker."""
    ranked: tuple[Ranked, ...]
    """The report's findings, in its order."""


def build_report(run: Run, config: Config, progress: Progress | None = None) -> model.Report:
    """Analyze one capture, for its report alone: see `analyze_run`."""
    return analyze_run(run, config, progress).report


def analyze_run(run: Run, config: Config, progress: Progress | None = None) -> Analysis:
    """Analyze one capture.

    Args:
        run: The capture, with at least one trace.
        config: Which rules, with which limits.
        progress: Called with a stage and a share of it (0-1).

    Raises:
        UsageError: When the configuration names what does not exist.
    """
    tell = progress or (lambda stage, share: None)
    rules = config.rules()
    tell("comparing workers", 0.0)
    signals = reference_worker(run, config.options)
    everyone = _Everyone(signals)
    tell("attributing time", 0.2)
    overview = make_overview(signals)
    tell("checking rules", 0.5)
    outcomes = run_rules(rules, signals)
    found = [(one.rule, finding) for one in outcomes for finding in one.findings]
    tell("re-timing the steps", 0.8)
    notes = (*run.notes, *profile_notes(signals), *simulation_notes(found, signals))
    found = widen(simulate(found, signals), signals)
    ranked, combined = rank(
        found,
        signals.attribution.window_ns,
        saved_together(signals),
        signals.steps,
        partial(most_saved_ns, signals),
    )
    tell("writing the report", 0.9)
    source = signals.trace.source
    report = model.Report(
        id=run.id,
        run=run.name,
        session=run.session,
        framework=source.framework,
        formats=sorted({own.format for own in run.sources}),
        is_synthetic=any(own.is_synthetic for own in run.sources),
        world_size=source.world_size,
        reference_worker=signals.worker,
        workers=_workers(signals),
        steps=make_steps_info(signals),
        overview=overview,
        headline=_headline(signals, ranked, combined),
        findings=[_finding(one, signals, everyone) for one in ranked],
        combined_saving=_combined(combined, signals),
        outcomes=[_outcome(one) for one in outcomes],
        notes=[
            model.NoteInfo(
                id=note.id, severity=note.severity, message=note.message, remedy=note.remedy
            )
            for note in dict.fromkeys(notes)
        ],
        views=_views(signals) if config.with_views else None,
    )
    if report.views is not None and config.with_timelines:
        report.views["timelines"] = _timelines(report, signals, ranked)
    return Analysis(report, signals, ranked)


def _views(signals: Signals) -> dict[str, Any]:
    from tb_perfadvisor.report.views import make_views  # only the tab asks for them

    return make_views(signals)


def _timelines(
    report: model.Report, signals: Signals, ranked: Sequence[Ranked]
) -> list[dict[str, Any]]:
    from tb_perfadvisor.engine.window import make_window  # only an exported page asks for them
    from tb_perfadvisor.report.views.timelines import make_timelines

    window = make_window(signals.trace, signals.worker, claims_of(ranked))
    return make_timelines(report.findings, window)


def claims_of(ranked: Sequence[Ranked]) -> list[Intervals]:
    """The time that each finding claims."""
    savings = (one.finding.saving for one in ranked)
    return [EMPTY if saving is None else saving.claims for saving in savings]


class _Everyone(Mapping[int, Signals]):
    """Signals of every worker, made when evidence asks for them."""

    def __init__(self, known: Signals) -> None:
        self._run = known.run
        self._made = {known.worker: known}

    def __len__(self) -> int:
        return len(self._run.traces)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __getitem__(self, worker: int) -> Signals:
        if worker not in self._made:
            self._made[worker] = Signals(self._run, worker)
        return self._made[worker]


def _workers(signals: Signals) -> list[model.Worker]:
    return [
        model.Worker(
            rank=source.rank,
            host=source.host,
            file=source.path,
            events=summary.events,
            duration_ns=summary.duration_ns,
            device=None
            if summary.device is None
            else model.DeviceInfo(
                kind=summary.device.kind,
                name=summary.device.name,
                visible=summary.visible_devices,
                used=summary.used_devices,
            ),
        )
        for source, summary in zip(signals.ranks.sources, signals.ranks.summaries, strict=True)
    ]


def _finding(ranked: Ranked, signals: Signals, workers: Mapping[int, Signals]) -> model.FindingInfo:
    rule, finding, steps = ranked.rule, ranked.finding, signals.steps
    sections = rule.sections()
    framework = signals.trace.source.framework
    ranks = finding.ranks or (
        (signals.trace.source.rank,) if signals.trace.source.rank is not None else ()
    )
    return model.FindingInfo(
        rule_id=rule.id,
        refines=ranked.refines,
        title=rule.title,
        category=rule.category,
        severity=ranked.severity,
        summary=finding.summary,
        saving=_saving(ranked, signals),
        scope=model.Scope(
            ranks=list(ranks),
            first_step=int(steps.number[0]) if len(steps) else None,
            last_step=int(steps.number[-1]) if len(steps) else None,
        ),
        evidence=[encode(one, workers) for one in finding.evidence],
        remedies=[
            model.Remedy(
                text=remedy.text,
                snippet=remedy.snippet or None,
                language=remedy.language,
                framework=remedy.framework or framework,
                reference=remedy.reference or None,
            )
            for remedy in finding.remedies
            # What another framework would write helps nobody; unknown frameworks see all.
            if framework == "unknown" or remedy.framework in ("", framework)
        ],
        when_to_ignore=_unwrapped(sections.get("When to ignore", "")),
        how_to_verify=_unwrapped(sections.get("How to verify", "")),
        is_preview=rule.is_preview,
    )


def _unwrapped(text: str) -> str:
    """A docstring's paragraphs without the line breaks of its source."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _saving(ranked: Ranked, signals: Signals) -> model.SavingInfo | None:
    saving = ranked.finding.saving
    if saving is None:
        return None
    count, window_ns = signals.steps.count, signals.attribution.window_ns
    return model.SavingInfo(
        low_ns=round(saving.low_ns / count),
        expected_ns=round(saving.expected_ns / count),
        high_ns=round(saving.high_ns / count),
        share_low=saving.low_ns / window_ns,
        share_expected=saving.expected_ns / window_ns,
        share_high=saving.high_ns / window_ns,
        marginal_ns=round(ranked.marginal_ns / count),
        basis=saving.basis,
    )


def _combined(combined: Combined | None, signals: Signals) -> model.CombinedSaving | None:
    if combined is None:
        return None
    count = signals.steps.count
    return model.CombinedSaving(
        low_ns=round(combined.low_ns / count),
        expected_ns=round(combined.expected_ns / count),
        high_ns=round(combined.high_ns / count),
        share_expected=combined.expected_ns / signals.attribution.window_ns,
    )


def _outcome(outcome: RuleOutcome) -> model.Outcome:
    return model.Outcome(
        rule_id=outcome.rule.id,
        status=outcome.status,
        missing=[
            model.Missing(signal=one.need.value, reason=one.reason, remedy=one.remedy)
            for one in outcome.missing
        ],
        reason=outcome.reason,
        elapsed_ms=round(outcome.elapsed_ms, 3),
    )


def _headline(signals: Signals, ranked: tuple[Ranked, ...], combined: Combined | None) -> str:
    """One sentence: what all the advice together would save, or what the time goes into."""
    steps, attribution = signals.steps, signals.attribution
    if attribution.window_ns == 0:
        return "The profile holds no work to analyze."
    whole = (
        f"each {format_duration(attribution.window_ns / steps.count)} step"
        if len(steps)
        else f"the {format_duration(attribution.window_ns)} profiled"
    )
    helpful = [one for one in ranked if one.finding.saving is not None and one.refines is None]
    if combined is not None and combined.expected_ns > 0:
        count = len(helpful)
        changes = f"{_NUMBERS[count] if count < len(_NUMBERS) else count} change" + (
            "" if count == 1 else "s"
        )
        return (
            f"{changes} could save {format_duration(combined.expected_ns / steps.count)} of {whole}"
        )
    if signals.device.is_missing:
        return "The device's events are missing from this profile, so its time is unknown"
    worst = max(
        (cause for cause in Cause if cause not in (*COMPUTE, Cause.HOST_COMPUTE)),
        key=attribution.total_ns,
    )
    if (attribution.share(worst) or 0.0) >= MENTIONED_SHARE:
        share = format_share(attribution.share(worst))
        return f"{LABELS[worst]}: {share} of {whole}, for which no rule has advice yet"
    if signals.device.index is None:
        return f"Nothing stands out in {whole}, on the CPU"
    busy = format_share(attribution.share(*COMPUTE))
    return f"Nothing stands out: the device computes {busy} of {whole}"
