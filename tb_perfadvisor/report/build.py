"""Builds the report of an analysis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from tb_perfadvisor.contract import model
from tb_perfadvisor.engine.analysis import (
    Analysis,
    CombinedSaving,
    Progress,
    RankedFinding,
    RuleOutcome,
    Trust,
)
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.report.key_numbers import (
    COMPILE_LOG_CAPTION,
    compile_log_numbers,
    key_numbers,
    make_caption,
    program_name,
    snapshot_caption,
    snapshot_numbers,
)
from tb_perfadvisor.report.overview import make_overview, make_steps_info
from tb_perfadvisor.report.places import places_of
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.report.views import available_views, make_views
from tb_perfadvisor.rules import finding as source
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.signals import Missing, Signals, ranks_of
from tb_perfadvisor.signals.efficiency.utilization import Reference, references
from tb_perfadvisor.signals.host.call_tree import source_line
from tb_perfadvisor.signals.recording.compile_log import is_only_log
from tb_perfadvisor.signals.workload.workload import Aspect, workload

# Claims touch other causes at their ends; a finding is not about those.
_LEAST_CAUSE_SHARE = 0.01
# The year 2116. Later times do not fit into 64 bits.
_LATEST_UNIX_NS = 1 << 62


def build_report(analysis: Analysis, config: Config, progress: Progress | None = None) -> Report:
    """Build the report of an analysis."""
    if progress is not None:
        progress("writing the report", 0.9)
    signals = analysis.signals
    run, source = signals.run, signals.trace.source
    overview = make_overview(signals)
    program, workers, steps = _workload(signals), _workers(signals), make_steps_info(signals)
    signals_of_workers = _SignalsOfWorkers(signals)
    report = Report(
        id=run.id,
        run=run.name,
        session=run.session,
        framework=source.framework,
        formats=sorted({source.format for source in run.sources}),
        is_synthetic=any(source.is_synthetic for source in run.sources),
        world_size=source.world_size,
        reference_worker=signals.worker,
        caption=_caption(signals, program, workers, steps),
        workload=program,
        workers=workers,
        steps=steps,
        overview=overview,
        key_numbers=_key_numbers(signals, overview, steps, workers),
        headline=analysis.headline,
        headline_without_changes=analysis.headline_without_changes,
        trust=_trust(analysis.trust),
        first=_first(analysis),
        findings=[
            _finding(analysis, place, signals_of_workers) for place in range(len(analysis.findings))
        ],
        combined_saving=_combined(analysis.combined, signals),
        outcomes=[_outcome(outcome) for outcome in analysis.outcomes],
        missing_signals=_missing_signals(analysis.outcomes),
        not_checked=_not_checked(analysis.outcomes),
        blind_spot=None
        if (unseen := analysis.blind_spot) is None
        else model.BlindSpotInfo(looked=unseen.looked, checks=unseen.checks, reason=unseen.reason),
        is_start_up=analysis.is_start_up,
        notes=[
            model.NoteInfo(
                id=note.id, severity=note.severity, message=note.message, remedy=note.remedy
            )
            for note in analysis.notes
        ],
        recorded=_recorded(signals),
        available_views=available_views(signals),
        views=make_views(signals, has_all_rows=config.with_all_rows) if config.with_views else None,
    )
    if report.views is not None and config.with_timelines:
        report.views["timelines"] = _timelines(report, analysis)
    return report


def _trust(trust: Trust) -> model.TrustInfo:
    return model.TrustInfo(
        level=trust.level,
        reasons=[
            model.TrustReason(
                id=reason.id,
                level=reason.level,
                in_short=reason.in_short,
                message=reason.message,
                remedy=reason.remedy,
            )
            for reason in trust.reasons
        ],
    )


def _key_numbers(
    signals: Signals,
    overview: model.Overview,
    steps: model.StepsInfo,
    workers: Sequence[model.Worker],
) -> list[model.KeyNumber]:
    if signals.trace.is_snapshot_only:
        return snapshot_numbers(signals)
    if signals.trace.compile_log is not None:
        return compile_log_numbers(signals.trace.compile_log)
    numbers = key_numbers(
        overview,
        steps,
        recorded_ns=workers[signals.worker].duration_ns,
        on_device=not signals.device.is_host_only,
        ranks=signals.trace.source.world_size or len(workers),
    )
    known = references(signals, overview.input_wait_share)
    return [
        msgspec.structs.replace(number, reference=_reference(known[number.id]))
        if number.id in known
        else number
        for number in numbers
    ]


def _reference(reference: Reference) -> model.ReferenceInfo:
    return model.ReferenceInfo(
        verdict=reference.verdict,
        text=reference.text,
        source=reference.source,
        url=reference.url,
    )


def _caption(
    signals: Signals,
    program: model.WorkloadInfo,
    workers: Sequence[model.Worker],
    steps: model.StepsInfo,
) -> str:
    if is_only_log(signals):
        return COMPILE_LOG_CAPTION
    source = signals.trace.source
    if signals.trace.is_snapshot_only:
        return snapshot_caption(program_name(source.framework, program), signals)
    return make_caption(
        source.framework, program, workers, signals.worker, source.world_size, steps
    )


def _workload(signals: Signals) -> model.WorkloadInfo:
    program = workload(signals)
    return model.WorkloadInfo(
        mode=program.mode,
        framework=program.framework,
        parallelism=[part.label for part in program.of(Aspect.PARALLELISM)],
        input=[part.label for part in program.of(Aspect.INPUT)],
        compiled=[part.label for part in program.of(Aspect.COMPILED)],
        features=[part.label for part in program.of(Aspect.FEATURE)],
        evidence=[
            model.WorkloadEvidence(part=fact.part.label, evidence=fact.evidence)
            for fact in program.facts
        ],
        script=signals.trace.facts.program.script or None,
    )


def _first(analysis: Analysis) -> model.FirstFinding | None:
    if analysis.first is None:
        return None
    rule_id = analysis.findings[analysis.first].rule.id
    return model.FirstFinding(rule_id=rule_id, index=analysis.first)


def _recorded(signals: Signals) -> model.RecordedInfo | None:
    start_ns = signals.trace.source.origin_unix_ns
    if start_ns is None:
        return None
    end_ns = start_ns + signals.trace.duration_ns
    if not 0 < start_ns <= end_ns < _LATEST_UNIX_NS:  # a damaged clock
        return None
    return model.RecordedInfo(start_unix_ns=start_ns, end_unix_ns=end_ns)


def _timelines(report: model.Report, analysis: Analysis) -> list[dict[str, Any]]:
    # Only an exported page has timelines.
    from tb_perfadvisor.report.timeline.collect_events import collect_events
    from tb_perfadvisor.report.timeline.window import make_timelines

    claims = [ranked.claims for ranked in analysis.findings]
    return make_timelines(report.findings, collect_events(analysis.signals, claims))


class _SignalsOfWorkers(Mapping[int, Signals]):
    """Signals of every worker by index, created when evidence asks for them."""

    def __init__(self, reference: Signals) -> None:
        self._run = reference.run
        self._made = {reference.worker: reference}

    def __len__(self) -> int:
        return len(self._run.traces)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __getitem__(self, worker: int) -> Signals:
        if worker not in self._made:
            self._made[worker] = Signals(self._run, worker)
        return self._made[worker]


def _workers(signals: Signals) -> list[model.Worker]:
    ranks, facts = ranks_of(signals), signals.device_facts
    # What the user says of the device holds for all workers.
    chosen = facts if facts is not None and signals.options.device is not None else None
    return [
        model.Worker(
            rank=source.rank,
            host=source.host,
            file=source.path,
            events=summary.events,
            duration_ns=summary.duration_ns,
            device=None
            if summary.device_kind is None
            else model.DeviceInfo(
                kind=summary.device_kind,
                name=chosen.name if chosen else summary.device_name,
                identified_by=chosen.evidence if chosen else summary.device_evidence,
                visible=summary.visible_devices,
                used=summary.used_devices,
            ),
        )
        for source, summary in zip(ranks.sources, ranks.summaries, strict=True)
    ]


def _finding(analysis: Analysis, place: int, workers: Mapping[int, Signals]) -> model.FindingInfo:
    signals, others = analysis.signals, analysis.findings
    ranked = others[place]
    rule, finding, steps = ranked.rule, ranked.finding, signals.steps
    sections = rule.sections()
    framework = signals.trace.source.framework
    ranks = finding.ranks or (
        (signals.trace.source.rank,) if signals.trace.source.rank is not None else ()
    )
    evidence = [encode_evidence(item, workers) for item in finding.evidence]
    return model.FindingInfo(
        rule_id=rule.id,
        refines=ranked.refines,
        title=ranked.title,
        heading=_heading(ranked, others) if ranked.is_group else None,
        category=rule.category,
        severity=ranked.severity,
        summary=finding.summary,
        saving=_saving(ranked, signals),
        bounds=_bounds(ranked, signals),
        causes=_causes(ranked, signals),
        larger_batch=_larger_batch(finding),
        memory_saving=None
        if finding.memory is None
        else model.MemorySavingInfo(bytes=finding.memory.bytes, share=finding.memory.share),
        scope=model.Scope(
            ranks=list(ranks),
            first_step=int(steps.number[0]) if len(steps) else None,
            last_step=int(steps.number[-1]) if len(steps) else None,
        ),
        evidence=evidence,
        places=places_of(ranked.title, evidence),
        remedies=[
            model.Remedy(
                text=remedy.text,
                snippet=remedy.snippet or None,
                language=remedy.language,
                framework=remedy.framework or framework,
                reference=remedy.reference or None,
                change=remedy.change,
                fixes=list(remedy.fixes),
                values=dict(remedy.values),
                costs=dict(remedy.costs),
            )
            for remedy in finding.remedies
        ],
        when_to_ignore=_unwrapped(sections.get("When to ignore", "")),
        how_to_verify=_unwrapped(sections.get("How to verify", "")),
        is_preview=rule.is_preview,
        leads=place in analysis.leaders,
        headline=analysis.headlines.get(place, ""),
    )


def _larger_batch(finding: Finding) -> model.LargerBatchInfo | None:
    batch = finding.larger_batch
    if batch is None:
        return None
    return model.LargerBatchInfo(
        rows=batch.rows,
        more_rows=batch.more_rows,
        low_share=batch.low_share,
        expected_share=batch.expected_share,
        high_share=batch.high_share,
    )


def _causes(ranked: RankedFinding, signals: Signals) -> list[str]:
    """The causes that the breakdown gives to the time that a finding claims, the largest first."""
    claimed_ns = signals.attribution.within_ns(ranked.claims)
    by_time = sorted(claimed_ns, key=lambda cause: -claimed_ns[cause])
    least_ns = _LEAST_CAUSE_SHARE * sum(claimed_ns.values())
    return [cause.value for cause in by_time if claimed_ns[cause] > least_ns]


def _heading(ranked: RankedFinding, others: Sequence[RankedFinding]) -> str:
    """The heading of a group: `Feed the device without making it wait: do one of these`."""
    specific = sum(other.refines == ranked.rule.id for other in others)
    choice = ": do one of these" if specific > 1 else ""
    return f"{ranked.finding.title or ranked.rule.title}{choice}"


def _unwrapped(text: str) -> str:
    """The paragraphs of a docstring, each on one line."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _saving(ranked: RankedFinding, signals: Signals) -> model.SavingInfo | None:
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


def _bounds(ranked: RankedFinding, signals: Signals) -> model.SavingBounds | None:
    bounds = ranked.finding.bounds
    if bounds is None or ranked.finding.saving is not None:
        return None
    return model.SavingBounds(
        high_ns=round(bounds.high_ns / signals.steps.count),
        share_high=bounds.high_ns / signals.attribution.window_ns,
        low_ns=round(bounds.low_ns / signals.steps.count),
    )


def _combined(combined: CombinedSaving | None, signals: Signals) -> model.CombinedSaving | None:
    if combined is None:
        return None
    count = signals.steps.count
    return model.CombinedSaving(
        low_ns=round(combined.low_ns / count),
        expected_ns=round(combined.expected_ns / count),
        high_ns=round(combined.high_ns / count),
        share_expected=combined.expected_ns / signals.attribution.window_ns,
    )


def _not_checked(outcomes: Sequence[RuleOutcome]) -> list[model.RecordingGap]:
    """What to record, with the checks that then could run; most first."""
    gaps: dict[str, list[tuple[Missing, str]]] = {}
    for outcome in outcomes:
        if outcome.lacks_recording:
            for missing in outcome.missing:
                gaps.setdefault(missing.remedy, []).append((missing, outcome.rule.id))
    found = [
        model.RecordingGap(
            remedy=remedy,
            signals=list(dict.fromkeys(missing.need.value for missing, _ in entries)),
            reasons=list(dict.fromkeys(missing.reason for missing, _ in entries)),
            rule_ids=list(dict.fromkeys(rule_id for _, rule_id in entries)),
        )
        for remedy, entries in gaps.items()
    ]
    return sorted(found, key=lambda gap: -len(gap.rule_ids))


def _missing_signals(outcomes: Sequence[RuleOutcome]) -> list[model.Missing]:
    """What the profile lacks, each signal once."""
    missing = {gap.need: gap for outcome in outcomes for gap in outcome.missing}
    return [
        model.Missing(signal=need.value, reason=gap.reason, remedy=gap.remedy)
        for need, gap in missing.items()
    ]


def _outcome(outcome: RuleOutcome) -> model.Outcome:
    return model.Outcome(
        rule_id=outcome.rule.id,
        status=outcome.status,
        missing=[missing.need.value for missing in outcome.missing],
        # What is missing says why.
        reason=None if outcome.missing else outcome.reason,
        elapsed_ms=round(outcome.elapsed_ms, 3),
    )


MAX_EVENTS = 20
MAX_ROWS = 30
MAX_POINTS = 500


def encode_evidence(evidence: source.Evidence, workers: Mapping[int, Signals]) -> model.Evidence:
    """Encode one piece of evidence.

    `workers` are in the order of the run.
    """
    if isinstance(evidence, source.Events):
        signals = workers[evidence.worker]
        return model.EventsEvidence(
            title=evidence.title,
            rows=[
                _event(signals, evidence, place)
                for place in range(min(len(evidence.rows), MAX_EVENTS))
            ],
            truncated=max(len(evidence.rows) - MAX_EVENTS, 0),
        )
    if isinstance(evidence, source.Span):
        return model.SpanEvidence(
            title=evidence.title,
            worker=evidence.worker,
            start_ns=int(evidence.start_ns),
            end_ns=int(evidence.end_ns),
            track=evidence.track,
            note=evidence.note,
        )
    if isinstance(evidence, source.Table):
        # On the CPU, there is no device that could idle.
        on_cpu = all(signals.device.is_host_only for signals in workers.values())
        return model.TableEvidence(
            title=evidence.title,
            columns=[
                model.TableColumn(
                    key=column.key,
                    label=column.label.replace("Device idle", "Idle") if on_cpu else column.label,
                    unit=column.unit,
                )
                for column in evidence.columns
            ],
            rows=[[_cell(cell) for cell in row] for row in evidence.rows[:MAX_ROWS]],
            truncated=max(len(evidence.rows) - MAX_ROWS, 0),
        )
    points = evidence.points
    if len(points) > MAX_POINTS:
        picks = np.linspace(0, len(points) - 1, MAX_POINTS).astype(int).tolist()
        points = tuple(points[i] for i in picks)
    return model.SeriesEvidence(
        title=evidence.title, x_unit=evidence.x_unit, unit=evidence.unit, points=list(points)
    )


def _event(signals: Signals, evidence: source.Events, place: int) -> model.EvidenceRow:
    row = int(evidence.rows[place])
    trace, steps = signals.trace, signals.steps
    start = int(trace.events.start_ns[row])
    step = int(np.searchsorted(steps.start_ns, start, side="right")) - 1
    inside = step >= 0 and start < steps.end_ns[step]
    return model.EvidenceRow(
        worker=evidence.worker,
        start_ns=start,
        duration_ns=int(trace.events.duration_ns[row]),
        cost_ns=int(evidence.cost_ns[place]) if evidence.cost_ns is not None else None,
        track=trace.text(int(trace.tracks.label[trace.events.track[row]])),
        name=trace.name(row),
        step=int(steps.number[step]) if inside else None,
        source=source_line(signals, row),
    )


def _cell(cell: source.Cell) -> model.Cell:
    """A cell as JSON has it: numpy scalars are unwrapped, NaN and infinity become None."""
    if isinstance(cell, np.generic):
        cell = cell.item()
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    return cell
