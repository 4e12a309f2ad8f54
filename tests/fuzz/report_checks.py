"""What holds for every profile: a report that is right about itself, or an error for the user."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import msgspec

from tb_perfadvisor.comparison.compare import compare_facts
from tb_perfadvisor.comparison.run_facts import make_facts
from tb_perfadvisor.engine.analysis import Analysis
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.load import load_capture
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.report.formats.brief import MAX_BYTES
from tb_perfadvisor.report.formats.render import document, render
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.report.timeline.collect_events import collect_events
from tb_perfadvisor.report.timeline.perfetto_excerpt import make_excerpt
from tb_perfadvisor.report.timeline.window import (
    decode_events,
    encode_events,
    select_window,
    typical_range,
)
from tests.fuzz.command_checks import check_history, check_tools
from tests.fuzz.invariants import (
    BrokenError,
    check_json,
    check_numbers,
    check_shares,
    check_text,
    raise_bugs,
)

_PLAIN, _VIEWS = Config(), Config(with_views=True, with_timelines=True)
_analyzed: set[bytes] = set()
"""What was read and analyzed before: a change that no reader looks at costs no analysis."""


def check_reports(root: Path, *, exports: bool) -> int:
    """Analyze each capture of a log directory and check its report.

    Args:
        root: The log directory.
        exports: Whether to make all views, and write and check all outputs, too.

    Returns:
        The number of reports.

    Raises:
        BrokenError: If something does not hold.
        Exception: Whatever the analysis raised, unless it is an error for the user.
    """
    try:
        listing = discover(root)
    except PerfAdvisorError as error:
        raise_bugs(error)
        return 0
    config = _VIEWS if exports else _PLAIN
    reports = 0
    for capture in listing.captures:
        try:
            run = load_capture(listing, capture)
            bugs = [note.message for note in run.notes if "because of a bug" in note.message]
            if bugs:
                raise BrokenError(bugs[0])
            read = hashlib.blake2b(pickle.dumps(run), digest_size=16).digest()
            if read in _analyzed and not exports:
                reports += 1
                continue
            analysis = analyze_run(run, config)
            report = build_report(analysis, config)
        except PerfAdvisorError as error:
            raise_bugs(error)
            continue
        _check_report(report)
        if exports:
            _check_exports(report, analysis)
        _analyzed.add(read)
        reports += 1
    if exports:
        check_history(root)
        check_tools(root)
    return reports


def _check_report(report: Report) -> None:
    failed = [
        f"{each.rule_id} failed: {each.reason}"
        for each in report.outcomes
        if each.status == "failed"
    ]
    if failed:
        raise BrokenError("; ".join(failed))
    check_numbers(report)
    overview, steps = report.overview, report.steps
    total_ns = sum(part.total_ns for part in overview.breakdown)
    if total_ns != overview.window_ns:
        raise BrokenError(f"the breakdown sums to {total_ns} of {overview.window_ns} ns")
    if any(part.total_ns < 0 for part in overview.breakdown) or overview.window_ns < 0:
        raise BrokenError("a part of the breakdown is negative")
    if steps.min_ns is not None and steps.min_ns < 0:
        raise BrokenError("a step is negative")
    for finding in report.findings:
        saving = finding.saving
        if saving is None:
            continue
        amounts = (saving.low_ns, saving.expected_ns, saving.high_ns)
        if list(amounts) != sorted(amounts) or saving.expected_ns < 0:
            raise BrokenError(f"{finding.rule_id} saves {amounts}")
        whole_ns = overview.window_ns if overview.step_time_ns is None else overview.step_time_ns
        if saving.high_ns > whole_ns + 1:
            raise BrokenError(f"{finding.rule_id} saves {saving.high_ns} of {whole_ns} ns")
        if not 0 <= saving.marginal_ns <= whole_ns + 1:
            raise BrokenError(f"{finding.rule_id} adds {saving.marginal_ns} of {whole_ns} ns")
    check_shares(report.overview)


def _check_exports(report: Report, analysis: Analysis) -> None:
    content = document([report])
    for form in ("json", "sarif", "brief"):
        check_json(render(content, form))
    if len(render(content, "brief").encode()) >= MAX_BYTES:
        raise BrokenError("the short form is too long")
    for form in ("text", "markdown", "html"):
        check_text(render(content, form), form)
    stored = collect_events(analysis.signals, [ranked.claims for ranked in analysis.findings])
    stored = decode_events(encode_events(stored))
    make_excerpt(report, stored, 0 if report.findings else None, 0, stored.whole_ns)
    check_json(msgspec.json.encode(select_window(stored, *typical_range(stored), 1_000)).decode())
    facts = make_facts(analysis, report)
    msgspec.json.encode(compare_facts(facts, [facts]))
