"""Communication on real recordings: each number is another tool's, or counted in the file."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.report import Report
from tb_perfadvisor.signals import Signals, collectives_of
from tb_perfadvisor.signals.ranks.collective_costs import link_of_group, quickest_ns, wire_bytes
from tb_perfadvisor.testing import run_of
from tests.support.corpus_traces import read


@cache
def report_of(path: Path) -> Report:
    return analyze(path)


def rules(report: Report) -> list[str]:
    return [finding.rule_id for finding in report.findings]


def operations(report: Report) -> list[dict[str, Any]]:
    """The table of exposed-communication, the most exposed operation first."""
    (finding,) = (
        finding for finding in report.findings if finding.rule_id == "exposed-communication"
    )
    table = msgspec.to_builtins(finding.evidence[0])
    keys = [column["key"] for column in table["columns"]]
    return [dict(zip(keys, row, strict=True)) for row in table["rows"]]


def test_a_rank_that_sleeps_and_its_balanced_twin(corpus: Path) -> None:
    """INDEX: rank 1 sleeps 50 ms in each step."""
    local = corpus / "local-torch2.13-cpu"
    report = report_of(local / "ddp_gloo_2rank_straggler")
    first = report.findings[0]
    assert (first.rule_id, first.scope.ranks) == ("straggler", [1])
    assert first.saving is not None
    assert first.saving.expected_ns == pytest.approx(50e6, rel=0.05)
    assert report.reference_worker == 1
    assert "straggler" not in rules(report_of(local / "ddp_gloo_2rank"))


def test_who_waits_for_whom_is_in_the_view_of_ranks(corpus: Path) -> None:
    folder = corpus / "local-torch2.13-cpu" / "ddp_gloo_2rank_straggler"
    views = analyze(folder, Config(with_views=True)).views
    assert views is not None
    view = views["ranks"]
    assert view["late"] == [1]
    # Rank 0 waits for rank 1's 50 ms in each step and for what else that is behind; two buckets
    # wait at once, yet not longer than the step. Rank 1 waits for nobody.
    pairs = dict(zip(view["waited_for"], view["pairs_ns"], strict=True))
    assert 50_000_000 < pairs[1][0] < view["step_ns"][0]
    assert pairs[1][1] == 0
    # Whoever waits least holds up each step.
    assert view["critical"] == [1] * 4


def test_exposed_communication_of_a_recommender(corpus: Path) -> None:
    report = report_of(corpus / "hta" / "trace_diff_control")
    # INDEX: collectives that nothing overlaps are 18.9 % of the GPU's span; SendRecv, launched as
    # all-to-alls of embeddings, tops.
    assert report.overview.exposed_communication_share == pytest.approx(0.189, abs=0.001)
    first, *_ = operations(report)
    assert (first["operation"], first["count"]) == ("all-to-all", 42)
    (finding,) = (
        finding for finding in report.findings if finding.rule_id == "exposed-communication"
    )
    # One rank of eight: how much of it is waiting is unknown, and said to be.
    assert finding.saving is not None
    assert finding.saving.low_ns == 0
    assert "without profiles of all ranks" in finding.summary
    assert "missing-ranks" in {note.id for note in report.notes}
    assert not {"straggler", "slow-link", "long-all-reduce"} & set(rules(report))


def test_little_communication_ranks_low(corpus: Path) -> None:
    report = report_of(corpus / "hta" / "nccl_parser_config")
    # INDEX: exposed collectives 6.0 % of the GPU's span: communication is small.
    assert report.overview.exposed_communication_share == pytest.approx(0.060, abs=0.002)
    about = [finding for finding in report.findings if finding.category == "communication"]
    assert {finding.severity for finding in about} == {"low"}
    assert all(finding.saving is not None and finding.saving.share_high < 0.07 for finding in about)


def test_404_all_reduces_a_step(corpus: Path) -> None:
    report = report_of(corpus / "hta" / "df_index_resolver")
    # INDEX: 2,020 all-reduces in five steps, 20.6 % of the span, none overlapped.
    (row,) = operations(report)
    assert (row["operation"], row["count"], row["size_bytes"]) == ("all-reduce", 2020, None)
    (finding,) = (finding for finding in report.findings if finding.rule_id == "small-messages")
    assert finding.refines == "exposed-communication"


@pytest.mark.parametrize(("rank", "percent"), [(0, 11.81), (1, 20.05)])
def test_overlap_of_two_ranks_of_128(corpus: Path, rank: int, percent: float) -> None:
    """HTA 0.5.0 leaves out its last step; over all that was recorded its way of counting."""
    trace = read(corpus, f"hta/trace_filter/sampled_rank-{rank}.json.gz")
    signals = Signals(run_of(trace))
    collectives, events = collectives_of(signals), trace.events
    last = signals.steps.start_ns[-1]
    launch = events.launched_by[collectives.row]
    is_used = (launch >= 0) & (events.start_ns[launch] < last)
    duration = collectives.duration_ns[is_used].sum()
    covered = duration - collectives.exposed_ns[is_used].sum()
    assert 100 * covered / duration == pytest.approx(percent, abs=0.05)


def test_sizes_come_from_calls_where_kernels_have_none(corpus: Path) -> None:
    """An A100 among eight: `nccl:all_reduce` of 45,310,188 floats (in the file)."""
    signals = Signals(run_of(read(corpus, "hta/trace_diff_control/*.gz")))
    collectives = collectives_of(signals)
    assert collectives.sizes_known
    large = collectives.size_bytes == 4 * 45_310_188
    assert large.sum() == 6
    # The quickest takes 1,575 us (in the file): 2 x 7/8 x 181 MB in it are 201 GB/s, two thirds of
    # the 300 GB/s of NVLink. Such a link is no slow one.
    assert set(quickest_ns(signals)[large].tolist()) == {1_575_000}
    rate = wire_bytes(signals)[large] / quickest_ns(signals)[large]
    assert rate[0] == pytest.approx(201.4, abs=0.1)
    assert set(link_of_group(signals).tolist()) == {300e9}


def test_two_v100s_share_one_link_of_six(corpus: Path) -> None:
    signals = Signals(run_of(read(corpus, "hta/trace_diff_test/*.gz")))
    # 6 links of 25 GB/s, of which a pair has one for sure; it gets 18.9 GB/s.
    assert set(link_of_group(signals).tolist()) == {25e9}
    assert "slow-link" not in rules(report_of(corpus / "hta" / "trace_diff_test"))
