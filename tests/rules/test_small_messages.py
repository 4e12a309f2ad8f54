from __future__ import annotations

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.rules.communication.transfers import SmallMessages
from tb_perfadvisor.signals import Signals, collectives_of
from tb_perfadvisor.signals.ranks.collective_costs import fit_of, wire_bytes
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, ms, run_of, us
from tb_perfadvisor.trace import Run, Trace
from tests.support.corpus_traces import CORPUS


def rank(
    number: int,
    messages: int,
    size_bytes: int = 4_096,
    description: str = "",
    *,
    is_ddp: bool = False,
) -> Trace:
    """Two steps of 1 ms of compute, then messages of 40 us each, one after another."""
    builder = TraceBuilder(rank=number, world_size=2, backend="nccl")
    length = ms(1) + us(40) * messages
    for step in range(2):
        begin = step * length
        builder.step(step, begin, begin + length)
        builder.operator("aten::mm", begin, begin + us(10))
        if is_ddp:
            builder.annotation("DistributedDataParallel.forward", begin + us(1), begin + us(9))
        builder.kernel("ampere_sgemm_128x64_nn", begin, begin + ms(1))
        for index in range(messages):
            at = begin + ms(1) + us(40) * index
            launch = builder.launch(begin + us(11) + index, begin + us(11) + index + 1)
            launch.collective(
                "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
                at,
                at + us(40),
                size_bytes=size_bytes,
                group_size=2,
                description=description,
            )
        builder.synchronize(begin + us(100), begin + length)
    return builder.build()


def two_ranks(messages: int, size_bytes: int = 4_096) -> Run:
    return run_of(*(rank(number, messages, size_bytes) for number in (0, 1)))


def test_saves_what_the_fix_saves() -> None:
    # 50 messages of 40 us become one, which saves 49 x 40 us.
    checked = check_rule(
        SmallMessages, slow=two_ranks(50), fixed=two_ranks(1), saves="1960us", scales=False
    )
    (finding,) = checked.findings
    assert finding.summary == (
        "50 small collectives per step (of 50) take 2.00 ms of each step (66.7 %) with no"
        " compute beside them; the median one takes 40.0 µs."
    )


@pytest.mark.parametrize(
    ("group", "changes"),
    [("data_parallel", ["larger-buckets", "packed-messages"]), ("mesh_cp", None)],
)
def test_only_gradients_are_sent_in_larger_buckets(group: str, changes: list[str] | None) -> None:
    run = run_of(*(rank(number, 50, description=group, is_ddp=True) for number in (0, 1)))
    findings = find(SmallMessages, run) or ()
    shown = [[remedy.change for remedy in finding.remedies] for finding in findings]
    assert shown == ([changes] if changes else [])
    for finding in findings:
        assert "bucket_cap_mb=25)" in finding.remedies[0].snippet


def test_without_ddp_there_are_no_buckets() -> None:
    run = run_of(*(rank(number, 50, description="data_parallel") for number in (0, 1)))
    (finding,) = find(SmallMessages, run) or ()
    assert [remedy.change for remedy in finding.remedies] == ["packed-messages"]


def test_low_is_zero_with_ranks_missing() -> None:
    (finding,) = find(SmallMessages, run_of(rank(0, 50))) or ()
    assert finding.saving is not None
    assert finding.saving.low_ns == 0
    assert finding.saving.high_ns == 2 * 49 * us(40)


def test_messages_of_tensor_parallel_layers_cannot_be_combined() -> None:
    assert find(SmallMessages, run_of(rank(0, 50, description="mesh_dp")))
    assert find(SmallMessages, run_of(rank(0, 50, description="mesh_tp"))) == ()


def test_few_or_large_messages_pass() -> None:
    assert find(SmallMessages, two_ranks(19)) == ()
    assert len(find(SmallMessages, two_ranks(20)) or ()) == 1
    assert find(SmallMessages, two_ranks(50, size_bytes=262_145)) == ()
    assert len(find(SmallMessages, two_ranks(50, size_bytes=262_144)) or ()) == 1


def test_fits_latency_and_bandwidth() -> None:
    """10 us plus 0.01 ns per byte on the wire (100 GB/s); two ranks send each byte once."""
    builder = TraceBuilder(rank=0, world_size=2).step(0, 0, ms(10))
    for index, size in enumerate((1_000_000, 2_000_000, 8_000_000, 8_000_000)):
        begin = ms(2 * index)
        wait = us(70) * (index == 3)  # the fastest message of a size counts
        builder.collective(
            "nccl", begin, begin + us(10) + size // 100 + wait, size_bytes=size, group_size=2
        )
    signals = Signals(run_of(builder.build()))
    collectives = collectives_of(signals)
    assert wire_bytes(signals).tolist() == [1e6, 2e6, 8e6, 8e6]
    fit = fit_of(collectives, collectives.duration_ns, wire_bytes(signals), "all-reduce")
    assert fit is not None
    assert fit.latency_ns == pytest.approx(10_000, rel=1e-6)
    assert fit.bandwidth_bytes_per_s == pytest.approx(100e9, rel=1e-6)
    assert fit_of(collectives, collectives.duration_ns, wire_bytes(signals), "broadcast") is None


@pytest.mark.corpus
def test_finds_small_all_reduces_without_sizes() -> None:
    report = analyze(CORPUS / "hta" / "df_index_resolver")
    (finding,) = (f for f in report.findings if f.rule_id == "small-messages")
    assert finding.refines == "exposed-communication"
    # One of two ranks is missing: how much of it is waiting is unknown.
    assert (finding.saving, finding.severity) == (None, "low")
    # The file has 404 all-reduces per step, of which 257 take at most 50 us.
    assert finding.summary.startswith("257 small collectives per step")
