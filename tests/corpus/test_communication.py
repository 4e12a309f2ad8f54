"""Communication on real recordings: each number is another tool's, or counted in the file."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tb_perfadvisor import analyze, load
from tb_perfadvisor.contract.model import FindingInfo
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.signals import Signals, collectives_of
from tb_perfadvisor.signals.ranks.collective_costs import (
    link_of_group,
    quickest_ns,
    step_messages,
    wire_bytes,
)
from tb_perfadvisor.signals.ranks.collective_roles import Role, collective_roles
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
    assert finding.saving is None
    assert finding.bounds is not None
    assert 0.1 < finding.bounds.share_high < 0.19
    assert "without profiles of all ranks" in finding.summary
    assert "missing-ranks" in {note.id for note in report.notes}
    assert not {"straggler", "slow-link", "long-all-reduce"} & set(rules(report))


def test_little_communication_ranks_low(corpus: Path) -> None:
    report = report_of(corpus / "hta" / "nccl_parser_config")
    # INDEX: exposed collectives 6.0 % of the GPU's span: communication is small.
    assert report.overview.exposed_communication_share == pytest.approx(0.060, abs=0.002)
    # What the broadcasts of buffers cost is time on the host.
    about = [
        finding
        for finding in report.findings
        if finding.category == "communication" and finding.rule_id != "ddp-buffer-broadcast"
    ]
    assert {finding.severity for finding in about} == {"low"}
    savings = {finding.rule_id: finding.saving or finding.bounds for finding in about}
    # Rank 1 is missing: the bytes need the link for some of the time, and the rest may be waiting.
    exposed = savings.pop("exposed-communication")
    assert exposed is not None
    assert 0 < exposed.share_high < 0.07
    # What it consists of has no price of its own, either.
    assert all(bounds is None or bounds.share_high <= 0.06 for bounds in savings.values())


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


@cache
def text_of_remedies(report_path: Path) -> str:
    """All code and text that the report proposes."""
    return " ".join(
        f"{remedy.text} {remedy.snippet}"
        for finding in report_of(report_path).findings
        for remedy in finding.remedies
    )


def finding_of(report: Report, rule_id: str) -> FindingInfo:
    (finding,) = (finding for finding in report.findings if finding.rule_id == rule_id)
    return finding


def test_bytes_of_whole_steps_although_the_device_is_behind(corpus: Path) -> None:
    """INDEX: each step all-reduces 2,873,320 + 8,816,192 bfloat16 numbers in about 15.5 ms."""
    path = corpus / "tracelens" / "mi300" / "resnet_act_checkpoint"
    signals = Signals(run_of(read(corpus, "tracelens/mi300/resnet_act_checkpoint/*.gz")))
    messages = step_messages(signals, "all-reduce")
    assert messages is not None
    assert messages.bytes_per_step == 2 * (2_873_320 + 8_816_192)
    assert messages.collectives.duration_ns.sum() / messages.steps == pytest.approx(
        15.5e6, rel=0.02
    )
    summary = finding_of(report_of(path), "long-all-reduce").summary
    assert summary.startswith("The all-reduce of 22.3 MiB per step takes 15.7 ms")
    # It has 16 bits already, and 50 MB would be a single bucket.
    assert not any(word in text_of_remedies(path) for word in ("compress", "bucket_cap_mb"))
    assert "nvidia-smi" not in text_of_remedies(path)
    assert "amd-smi topology" in text_of_remedies(path)


def test_one_all_gather_of_tensor_parallel_inference(corpus: Path) -> None:
    """INDEX: one all-gather takes 441 of 997 ms on both ranks, the other collectives little."""
    path = corpus / "tugot17" / "llama_tp2_ann"
    finding = finding_of(report_of(path), "exposed-communication")
    assert (
        finding.title
        == "Shrink or hide the all-gather in OutputProjection: one all-gather takes 44.3 % of the "
        "profile"
    )
    assert "One all-gather in OutputProjection takes 441 ms of it." in finding.summary
    assert "tensor-parallel layers" in finding.summary
    assert "last position" in finding.remedies[0].text
    words = ("bucket", "gradient", "no_sync", "DistributedDataParallel", "static_graph")
    assert not any(word in text_of_remedies(path) for word in words)


def test_what_collectives_are_for(corpus: Path) -> None:
    """Counted by what encloses their launches in the files."""
    for pattern, expected in (
        ("hta/nccl_parser_config/*/*.gz", {Role.GRADIENTS: 15, Role.BUFFERS: 6}),
        ("hta/trace_diff_control/*.gz", {Role.EMBEDDINGS: 42, Role.GRADIENTS: 18}),
        ("astra-sim/megatron_tp8/rank0.*", {Role.TENSOR: 84}),
        ("tugot17/llama_tp2_ann/rank0.*", {Role.TENSOR: 19}),
        # Five were launched before the recording began.
        (
            "tracelens/mi300/resnet_act_checkpoint/*.gz",
            {Role.GRADIENTS: 6, Role.BUFFERS: 6, Role.UNKNOWN: 5},
        ),
    ):
        uses = collective_roles(Signals(run_of(read(corpus, pattern)))).uses()
        assert {use.role: use.count for use in uses} == expected


def test_two_of_eight_tensor_parallel_ranks_lose_their_cores(corpus: Path) -> None:
    """INDEX: 57 of the 84 collectives are shortest on rank 0 or 6; 431 ms of rank 1 is waiting.

    Forward only: no autograd event. Trivial calls of rank 0 take 10 to 23 ms.
    """
    path = corpus / "astra-sim" / "megatron_tp8"
    report = report_of(path)
    first = report.findings[0]
    assert (first.rule_id, first.scope.ranks) == ("straggler", [0, 6])
    assert first.title.startswith(
        "Speed up ranks 0 and 6: waiting for late ranks takes 36.9 % of each step"
    )
    assert "late in 57 of 84 collectives" in first.summary
    assert "took the core" in first.summary
    table = msgspec.to_builtins(first.evidence[0])
    keys = [column["key"] for column in table["columns"]]
    by_rank = {row[0]: dict(zip(keys, row, strict=True)) for row in table["rows"]}
    assert by_rank["rank 1"]["waiting_ns"] == pytest.approx(431e6, abs=1e6)
    words = ("DistributedDataParallel", "DDP", "no_sync", "bucket", "gradient")
    assert not any(word in text_of_remedies(path) for word in words)
    assert not any("oader" in remedy.text + str(remedy.snippet) for remedy in first.remedies)
    assert all(word in text_of_remedies(path) for word in ("numactl", "OMP_NUM_THREADS"))
    exposed = finding_of(report, "exposed-communication")
    assert "tensor-parallel layers" in exposed.summary
    assert "--tp-comm-overlap" in " ".join(r.snippet or "" for r in exposed.remedies)


def test_buffers_are_broadcast_before_each_forward_pass(corpus: Path) -> None:
    """INDEX: unflattening takes 15.1 + 7.4 ms of each 222 ms step inside `DDP.forward`."""
    report = report_of(corpus / "hta" / "nccl_parser_config")
    finding = finding_of(report, "ddp-buffer-broadcast")
    table = msgspec.to_builtins(finding.evidence[0])
    by_name = {row[0]: row[2] for row in table["rows"]}
    assert by_name["aten::unflatten_dense_tensors"] / 3 == pytest.approx(22.5e6, rel=0.01)
    assert finding.saving is not None
    # The copies that follow take as long again; all of it is idle time of the device.
    assert 20e6 < finding.saving.expected_ns < finding.saving.high_ns < 38e6
    assert "broadcast_buffers=False" in str(finding.remedies[0].snippet)


def test_communication_comes_first_on_two_of_128_ranks(corpus: Path) -> None:
    """Worked out from the raw events of both files.

    Of rank 1's two steps (1,238.6 ms), NCCL's SendRecv kernels run alone for 24.5 %; for 5.2 %
    more, the device idles until one begins that was launched before. Both files are samples: the
    correlation of 1,154 runtime calls goes from 6,904,339 to 7,162,701, one in 224, so that idle
    time between two launches shows nothing of what the host did.
    """
    report = report_of(corpus / "hta" / "trace_filter")
    assert report.findings[0].rule_id == "exposed-communication"
    assert report.findings[0].title.partition(":")[0] in report.headline
    assert report.trust.level == "limited"  # it is a sample
    assert "24.5 % of each step" in report.headline
    assert "(5.2 %), launched collectives have not begun" in report.findings[0].summary
    assert not {"python-overhead", "launch-bound", "blocked-stream"} & set(rules(report))
    assert "sampled-events" in {note.id for note in report.notes}


@pytest.mark.parametrize(
    "path", ["hta/trace_diff_control", "hta/nccl_parser_config", "tracelens/h100", "sam-fast"]
)
def test_complete_recordings_are_not_taken_for_samples(corpus: Path, path: str) -> None:
    for run in load(corpus / path):
        share = run.sources[0].recorded_calls_share
        assert share is None or share > 0.05
