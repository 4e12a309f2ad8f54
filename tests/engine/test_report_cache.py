"""The cache of reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tb_perfadvisor.api.analyses import analyze_captures
from tb_perfadvisor.api.comparisons import facts_of_all
from tb_perfadvisor.comparison.pairing import Choice
from tb_perfadvisor.comparison.run_facts import RunFacts
from tb_perfadvisor.contract import model
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.report_cache import ReportCache
from tb_perfadvisor.engine.result_cache import ResultCache
from tb_perfadvisor.ingest.captures import Listing
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.report.report import Report

LOGDIR = Path(__file__).resolve().parents[2] / "demo_logs" / "jax_recompiling"


@pytest.fixture(scope="module")
def listing() -> Listing:
    return discover(LOGDIR)


@pytest.fixture(scope="module")
def report(listing: Listing) -> Report:
    (result,) = analyze_captures(listing, listing.captures, Config())
    assert isinstance(result, Report)
    return result


def test_a_cached_report_is_equal(tmp_path: Path, listing: Listing, report: Report) -> None:
    (capture,) = listing.captures
    report_cache = ReportCache(ResultCache(tmp_path), Report, Config())
    assert report_cache.read(listing.root, capture) is None
    report_cache.write(listing.root, capture, report, report.notes)
    assert report_cache.read(listing.root, capture) == report


def test_results_of_different_types_are_cached_separately(
    tmp_path: Path, listing: Listing, report: Report
) -> None:
    (capture,) = listing.captures
    cache = ResultCache(tmp_path)
    ReportCache(cache, Report, Config()).write(listing.root, capture, report, report.notes)
    facts = ReportCache(cache, RunFacts, Config())
    assert facts.read(listing.root, capture) is None
    (result,) = facts_of_all([Choice(listing, capture)], Config(), report_cache=facts)
    assert facts.read(listing.root, capture) == result
    assert ReportCache(cache, Report, Config()).read(listing.root, capture) == report


@pytest.mark.parametrize("part", ["settings", "root", "time", "version"])
def test_anything_that_changes_a_report_invalidates_it(
    part: str, tmp_path: Path, listing: Listing, report: Report
) -> None:
    (capture,) = listing.captures
    cache = ResultCache(tmp_path)
    ReportCache(cache, Report, Config()).write(listing.root, capture, report, report.notes)
    config = Config(limits={"input-stall": {"min_share": 0.5}}) if part == "settings" else Config()
    other = replace(listing, root="elsewhere") if part == "root" else listing
    if part == "version":
        files = tuple(replace(file, version="an entity tag") for file in capture.files)
        capture = replace(capture, files=files)
    if part == "time":
        files = tuple(replace(file, mtime_ns=file.mtime_ns + 1) for file in capture.files)
        capture = replace(capture, files=files)
    assert ReportCache(cache, Report, config).read(other.root, capture) is None


def test_a_report_with_an_unreadable_file_is_not_cached(
    tmp_path: Path, listing: Listing, report: Report
) -> None:
    (capture,) = listing.captures
    note = model.NoteInfo(id="unsupported-file", severity="warning", message="left out", remedy="")
    report_cache = ReportCache(ResultCache(tmp_path), Report, Config())
    report_cache.write(listing.root, capture, report, [*report.notes, note])
    assert report_cache.read(listing.root, capture) is None


def test_a_report_of_another_form_is_replaced(
    tmp_path: Path, listing: Listing, report: Report
) -> None:
    (capture,) = listing.captures
    cache = ResultCache(tmp_path)
    report_cache = ReportCache(cache, Report, Config())
    report_cache.write(listing.root, capture, report, report.notes)
    (stored,) = (tmp_path / "entries").iterdir()
    for other in (b'{"schema_version": "9.0"}', b"[1]", b"{"):
        cache.remove(stored.name)
        cache.store(stored.name, "report.json", other)
        assert report_cache.read(listing.root, capture) is None
        report_cache.write(listing.root, capture, report, report.notes)
        assert report_cache.read(listing.root, capture) == report
