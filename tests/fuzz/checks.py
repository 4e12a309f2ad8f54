"""What holds for every input: a report that is right about itself, or an error for the user."""

from __future__ import annotations

import json
import math
import os
import unicodedata
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from tb_perfadvisor.engine.analyze import Analysis, analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.errors import OutOfMemoryError, PerfAdvisorError, UnexpectedError
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.load import load_capture
from tb_perfadvisor.report import Report, build_report, document
from tb_perfadvisor.report.comparison import compare_facts, make_facts
from tb_perfadvisor.report.formats.render import render
from tb_perfadvisor.report.timeline.perfetto_excerpt import make_excerpt
from tb_perfadvisor.report.timeline.stored_events import (
    collect_events,
    decode_events,
    encode_events,
)
from tests.fuzz.profiles import Profile
from tests.fuzz.values import MARKUP

_PLAIN, _VIEWS = Config(), Config(with_views=True, with_timelines=True)
_IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
_MAX_INTEGER = 2**63
_ROUNDING = 1e-6


class BrokenError(AssertionError):
    """What a case did that no input may do."""


def check(files: Profile, *, exports: bool = False) -> int:
    """Analyze a profile and check the reports.

    Args:
        files: The files of a log directory.
        exports: Whether to make all views, and write and check all outputs, too.

    Returns:
        The number of reports.

    Raises:
        BrokenError: If something does not hold.
        Exception: Whatever the analysis raised, unless it is an error for the user.
    """
    with TemporaryDirectory(prefix="perfadvisor-fuzz-", dir=_IN_MEMORY) as made:
        root = Path(made)
        for file in files:
            path = root / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.data)
        return sum(1 for _ in _checked(root, exports=exports))


def _checked(root: Path, *, exports: bool) -> Iterator[Report]:
    try:
        listing = discover(root)
    except PerfAdvisorError as error:
        _raise_bugs(error)
        return
    config = _VIEWS if exports else _PLAIN
    for capture in listing.captures:
        try:
            run = load_capture(listing, capture)
            bugs = [note.message for note in run.notes if "because of a bug" in note.message]
            if bugs:
                raise BrokenError(bugs[0])
            analysis = analyze_run(run, config)
            report = build_report(analysis, config)
        except PerfAdvisorError as error:
            _raise_bugs(error)
            continue
        _check_report(report)
        if exports:
            _check_exports(report, analysis)
        yield report


def _raise_bugs(error: PerfAdvisorError) -> None:
    if isinstance(error, UnexpectedError):
        raise BrokenError(error.details)
    if isinstance(error, OutOfMemoryError):
        raise BrokenError("out of memory")


# --- the report ---------------------------------------------------------------------------------


def _check_report(report: Report) -> None:
    failed = [
        f"{each.rule_id} failed: {each.reason}"
        for each in report.outcomes
        if each.status == "failed"
    ]
    if failed:
        raise BrokenError("; ".join(failed))
    for name, value in _numbers(msgspec.to_builtins(report), ""):
        if isinstance(value, float) and not math.isfinite(value):
            raise BrokenError(f"{name} is {value}")
        if isinstance(value, int) and abs(value) >= _MAX_INTEGER:
            raise BrokenError(f"{name} is {value}, which does not fit into 64 bits")
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
        amounts = (0, saving.low_ns, saving.expected_ns, saving.high_ns)
        if list(amounts) != sorted(amounts):
            raise BrokenError(f"{finding.rule_id} saves {amounts[1:]}")
        whole_ns = overview.window_ns if overview.step_time_ns is None else overview.step_time_ns
        if saving.high_ns > whole_ns + 1:
            raise BrokenError(f"{finding.rule_id} saves {saving.high_ns} of {whole_ns} ns")
        if not 0 <= saving.marginal_ns <= whole_ns + 1:
            raise BrokenError(f"{finding.rule_id} adds {saving.marginal_ns} of {whole_ns} ns")
    for name, share in _shares(msgspec.to_builtins(report.overview), ""):
        if not -_ROUNDING <= share <= 1 + _ROUNDING:
            raise BrokenError(f"{name} is {share}")


def _numbers(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _numbers(inner, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


def _shares(overview: Any, name: str) -> Iterator[tuple[str, float]]:
    for path, value in _numbers(overview, name):
        if path.rsplit(".", 1)[-1].endswith("share"):
            yield path, value


# --- outputs ------------------------------------------------------------------------------------


def _check_exports(report: Report, analysis: Analysis) -> None:
    content = document([report])
    for form in ("json", "sarif"):
        json.loads(render(content, form), parse_constant=_no_constant)
    for form in ("text", "markdown", "html"):
        text = render(content, form)
        if form != "text" and MARKUP in _visible(text, form):
            raise BrokenError(f"{form} carries markup of the profile")
        for character in set(text) - {"\n", "\t", "\r"}:
            if unicodedata.category(character) in ("Cc", "Cs"):
                raise BrokenError(f"{form} carries the control character {ord(character):#x}")
        if form == "html":
            _Page().feed(text)
    stored = collect_events(
        analysis.signals.trace,
        report.reference_worker,
        [ranked.claims for ranked in analysis.findings],
    )
    stored = decode_events(encode_events(stored))
    make_excerpt(report, stored, 0 if report.findings else None, 0, stored.trace_duration_ns)
    facts = make_facts(analysis, report)
    msgspec.json.encode(compare_facts(facts, [facts]))


def _visible(text: str, form: str) -> str:
    """What a browser would take for markup; Markdown shows fenced code as it is."""
    return "".join(text.split("```")[::2]) if form == "markdown" else text


def _no_constant(name: str) -> None:
    raise BrokenError(f"JSON with {name}")


class _Page(HTMLParser):
    """Fails on an element that only a profile could have brought in."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if any(key.startswith("on") for key, _ in attrs) or ("src", "x") in attrs:
            raise BrokenError(f"html has an element <{tag}> of the profile")
