"""Ranks are summarized where they are read; a few ranks keep their traces."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tb_perfadvisor import analyze, load
from tb_perfadvisor.api.analyses import analyze_captures
from tb_perfadvisor.contract.model import Report
from tb_perfadvisor.engine.analyze import summarize_trace, summarizer_of
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.execution import open_execution
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.load import MAX_TRACES_IN_MEMORY, load_capture, start_reading
from tb_perfadvisor.trace import LazyTraces

DEMO_LOGS = Path(__file__).resolve().parents[2] / "demo_logs"
EIGHT = DEMO_LOGS / "synthetic_gpu_allreduce_8rank"
TWO = DEMO_LOGS / "pytorch_ddp_straggler"
ALONE = DEMO_LOGS / "pytorch_input_slow"


def timeless(report: Report) -> Report:
    outcomes = [msgspec.structs.replace(outcome, elapsed_ms=0) for outcome in report.outcomes]
    return msgspec.structs.replace(report, outcomes=outcomes)


def test_summaries_and_traces_give_the_same_report() -> None:
    (run,) = load(EIGHT)
    assert len(run.traces) == 8 > MAX_TRACES_IN_MEMORY
    assert timeless(analyze(EIGHT)) == timeless(analyze(run))
    listing = discover(EIGHT)
    with open_execution(workers=2) as execution:
        (report,) = analyze_captures(listing, listing.captures, Config(), execution=execution)
    assert isinstance(report, Report)
    assert timeless(report) == timeless(analyze(run))


def test_only_the_summaries_of_many_workers_are_held() -> None:
    listing = discover(EIGHT)
    (capture,) = listing.captures
    run = load_capture(
        listing, capture, reads=start_reading(listing, capture, summarize=summarizer_of(capture))
    )
    assert isinstance(run.traces, LazyTraces)
    assert len(run.summaries) == 8
    (whole,) = load(EIGHT)
    assert run.sources == whole.sources
    for summary, trace in zip(run.summaries, whole.traces, strict=True):
        other = summarize_trace(100_000, trace)
        assert summary.cause_total_ns.tolist() == other.cause_total_ns.tolist()
        assert summary.collectives.start_ns.tolist() == other.collectives.start_ns.tolist()
    assert run.traces[3].source.rank == 3


def test_the_traces_of_a_few_workers_are_held() -> None:
    listing = discover(TWO)
    (capture,) = listing.captures
    run = load_capture(
        listing, capture, reads=start_reading(listing, capture, summarize=summarizer_of(capture))
    )
    assert not isinstance(run.traces, LazyTraces)
    assert [trace.source.rank for trace in run.traces] == [0, 1]
    assert len(run.summaries) == 2


def test_a_single_worker_is_not_summarized() -> None:
    (capture,) = discover(ALONE).captures
    assert summarizer_of(capture) is None
    (run,) = load(ALONE)
    assert timeless(analyze(ALONE)) == timeless(
        analyze(msgspec.structs.replace(run, id=capture.id))
    )
