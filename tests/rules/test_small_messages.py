from __future__ import annotations

import os
from pathlib import Path

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.rules.communication.small_messages import SmallMessages
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.ranks.messages import fit_of, wire_bytes
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, ms, run_of, us
from tb_perfadvisor.trace import Run, Trace

CORPUS = Path(os.environ.get("PERFADVISOR_CORPUS", ""))


def rank(number: int, messages: int, size_bytes: int = 4_096) -> Trace:
    """Two steps: 1 ms of compute, then so many messages of 40 us one after the other."""
    builder = TraceBuilder(rank=number, world_size=2, backend="nccl")
    length = ms(1) + us(40) * messages
    for step in range(2):
        begin = step * length
        builder.step(step, begin, begin + length)
        builder.operator("aten::mm", begin, begin + us(10))
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
            )
        builder.synchronize(begin + us(100), begin + length)
    return builder.build()


def both(messages: int, size_bytes: int = 4_096) -> Run:
    return run_of(*(rank(number, messages, size_bytes) for number in (0, 1)))


def test_saves_what_the_fix_saves() -> None:
    # 50 messages of 40 us become one: 49 x 40 us.
    checked = check_rule(SmallMessages, slow=both(50), fixed=both(1), saves="1960us", scales=False)
    (finding,) = checked.findings
    assert finding.summary == (
        "50 small collectives per step (of 50) take 2.00 ms of each step (66.7 %) that nothing"
        " covers, the median one 40.0 µs."
    )


def test_with_ranks_missing_it_may_be_waiting() -> None:
    (finding,) = find(SmallMessages, run_of(rank(0, 50))) or ()
    assert finding.saving is not None
    assert finding.saving.low_ns == 0
    assert finding.saving.high_ns == 2 * 49 * us(40)


def test_few_or_large_ones_are_none() -> None:
    assert find(SmallMessages, both(19)) == ()
    assert len(find(SmallMessages, both(20)) or ()) == 1
    assert find(SmallMessages, both(50, size_bytes=262_145)) == ()
    assert len(find(SmallMessages, both(50, size_bytes=262_144)) or ()) == 1


def test_latency_and_bandwidth_are_told_apart() -> None:
    """10 us and 0.01 ns per byte on the wire (100 GB/s), over two ranks: as many bytes as sent."""
    builder = TraceBuilder(rank=0, world_size=2).step(0, 0, ms(10))
    for index, size in enumerate((1_000_000, 2_000_000, 8_000_000, 8_000_000)):
        begin = ms(2 * index)
        late = us(70) * (index == 3)  # one waited: the quickest of a size counts
        builder.collective(
            "nccl", begin, begin + us(10) + size // 100 + late, size_bytes=size, group_size=2
        )
    signals = Signals(run_of(builder.build()))
    collectives = signals.collectives
    assert wire_bytes(signals).tolist() == [1e6, 2e6, 8e6, 8e6]
    fit = fit_of(collectives, collectives.duration_ns, wire_bytes(signals), "all-reduce")
    assert fit is not None
    assert fit.latency_ns == pytest.approx(10_000, rel=1e-6)
    assert fit.bandwidth_bytes_per_s == pytest.approx(100e9, rel=1e-6)
    assert fit_of(collectives, collectives.duration_ns, wire_bytes(signals), "broadcast") is None


@pytest.mark.corpus
@pytest.mark.skipif("PERFADVISOR_CORPUS" not in os.environ, reason="PERFADVISOR_CORPUS is not set")
def test_404_all_reduces_a_step_without_sizes() -> None:
    report = analyze(CORPUS / "hta" / "df_index_resolver")
    (finding,) = (one for one in report.findings if one.rule_id == "small-messages")
    assert finding.refines == "exposed-communication"
    assert finding.saving is not None
    # 404 all-reduces a step in the file; those of 50 us at most make the sum below.
    assert finding.summary.startswith("257 small collectives per step")
