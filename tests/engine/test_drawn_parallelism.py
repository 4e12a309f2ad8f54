"""Whole analyses of drawn programs that divide their work among ranks, each slow and fixed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tb_perfadvisor.engine.analysis import Analysis
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.signals import Options
from tb_perfadvisor.testing import Symbol, collective, draw, operator, run_of

SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
LINK = Options(link_bandwidth_bytes_per_s=100e9)


def analyzed(
    legend: Mapping[str, Symbol], *ranks: str, world: int = 4, options: Options | None = None
) -> Analysis:
    run = run_of(
        *(
            draw(text, legend=legend, rank=rank, world_size=world, backend="nccl")
            for rank, text in enumerate(ranks)
        )
    )
    return analyze_run(run, Config(options=options or Options()))


def first_of(analysis: Analysis) -> str:
    assert analysis.first is not None
    return analysis.findings[analysis.first].rule.id


def names(analysis: Analysis) -> set[str]:
    return {entry.rule.id for entry in analysis.findings}


def changes(analysis: Analysis, rule: str) -> list[str | None]:
    (found,) = (entry for entry in analysis.findings if entry.rule.id == rule)
    return [remedy.change for remedy in found.finding.remedies]


# Two micro-batches pass four stages and come back. R receives, T sends.
STAGES = {"R": collective(SEND_RECV, "recv"), "T": collective(SEND_RECV, "send")}
LANES = (
    ("KK......KK", ".TRRRRRR'."),
    (".KK....KK.", "R'TRRRR'T."),
    ("..KK..KK..", "RR'TRR'T.."),
    ("...KKKK...", "RRR'.T'..."),
)


def stage(compute: str, messages: str, steps: int = 3) -> str:
    main = "o'" + "S" * (len(compute) - 2)
    lanes = {"step  ": "." * len(compute), "main  ": main, "gpu 7 ": compute, "gpu 13": messages}
    return "cell 1ms\n" + "\n".join(f"{lane} |{f'{row}|' * steps}" for lane, row in lanes.items())


def test_a_pipeline_of_few_micro_batches_has_a_bubble_and_no_late_rank() -> None:
    analysis = analyzed(STAGES, *(stage(*lanes) for lanes in LANES))
    assert first_of(analysis) == "pipeline-bubble"
    assert "straggler" not in names(analysis)
    assert "shorter-bubble" in changes(analysis, "pipeline-bubble")
    (found,) = (entry for entry in analysis.findings if entry.rule.id == "pipeline-bubble")
    saving = found.finding.saving
    assert saving is not None
    # Two of five slots are used in each direction; with four half as large, four of seven are:
    # 10 ms become 7 ms.
    assert saving.low_ns <= 3 * 3_000_000 <= saving.high_ns
    assert saving.expected_ns <= 3 * 3_000_000


# A layer's two products and the sum of its parts, of 64 KiB: 0.7 µs on the link.
TENSOR = {
    "N": collective(REDUCE, size_bytes=65_536, group_size=2, dtype="bfloat16"),
    "o": operator("_ReduceFromModelParallelRegion"),
}
LAYERS = """
    cell 50us
    step   |................|................|................|
    main   |o'o'o'o'SSSSSSSS|o'o'o'o'SSSSSSSS|o'o'o'o'SSSSSSSS|
    gpu 7  |HH..HH..HH..HH..|HH..HH..HH..HH..|HH..HH..HH..HH..|
    gpu 13 |..NN..NN..NN..NN|..NN..NN..NN..NN|..NN..NN..NN..NN|
"""


def test_small_messages_of_tensor_parallel_layers_are_not_packed() -> None:
    analysis = analyzed(TENSOR, LAYERS, LAYERS, world=2, options=LINK)
    assert first_of(analysis) == "exposed-communication"
    assert not {"small-messages", "straggler", "late-gradient-bucket"} & names(analysis)
    advised = changes(analysis, "exposed-communication")
    assert {"overlapped-tensor-parallelism", "fewer-tensor-parallel-ranks"} & {*advised}
    assert not any("bucket" in (change or "") for change in advised)


SHARDS = {
    "G": collective(GATHER, "all-gather", size_bytes=64_000_000, group_size=4),
    "Q": collective(SCATTER, "reduce-scatter", size_bytes=64_000_000, group_size=4),
    "o": operator("FSDP::all_gather"),
}
# Each layer is gathered when the one before it has ended; or while it computes.
LATE = """
    cell 1ms
    step   |............|............|............|
    main   |o'o'SSSSSSSS|o'o'SSSSSSSS|o'o'SSSSSSSS|
    gpu 7  |..HHH..HHH..|..HHH..HHH..|..HHH..HHH..|
    gpu 13 |GG...GG...QQ|GG...GG...QQ|GG...GG...QQ|
"""
PREFETCHED = """
    cell 1ms
    step   |..........|..........|..........|
    main   |o'o'SSSSSS|o'o'SSSSSS|o'o'SSSSSS|
    gpu 7  |..HHHHHH..|..HHHHHH..|..HHHHHH..|
    gpu 13 |GG'GG...QQ|GG'GG...QQ|GG'GG...QQ|
"""


def test_shards_that_are_gathered_late_are_to_be_prefetched() -> None:
    slow = analyzed(SHARDS, *[LATE] * 4)
    assert first_of(slow) == "exposed-communication"
    assert changes(slow, "exposed-communication")[0] == "prefetched-shards"
    (found,) = (entry for entry in slow.findings if entry.rule.id == "late-all-gather")
    assert found.finding.saving is not None
    assert found.finding.saving.expected_ns == 3 * 2_000_000
    assert not {"straggler", "small-messages", "replicated-optimizer"} & names(slow)
    assert "late-all-gather" not in names(analyzed(SHARDS, *[PREFETCHED] * 4))


@pytest.mark.parametrize(
    ("around", "is_again"), [("FSDP::pre_forward", False), ("FSDP::pre_backward", True)]
)
def test_only_shards_that_are_gathered_again_can_be_kept(around: str, *, is_again: bool) -> None:
    """ZeRO-3 gives the parameters up after the forward pass and gathers them for the backward."""
    long = """
        cell 1ms
        step   |..............|..............|..............|
        main   |pp'pSSSSSSSSSS|pp'pSSSSSSSSSS|pp'pSSSSSSSSSS|
        main   |o..o........z.|o..o........z.|o..o........z.|
        gpu 7  |..HH....HH....|..HH....HH....|..HH....HH....|
        gpu 13 |GGGG'GGGGG..QQ|GGGG'GGGGG..QQ|GGGG'GGGGG..QQ|
    """
    legend = {**SHARDS, "p": operator(around, launches=False)}
    analysis = analyzed(legend, *[long] * 4)
    assert ("keep-shards" in changes(analysis, "late-all-gather")) == is_again


RING = {
    "R": collective(SEND_RECV, "send-recv", size_bytes=16_000_000, group_size=4),
    "o": operator("RingAttention: ring_attention_forward"),
}
BLOCKS = """
    cell 1ms
    step   |............|............|............|
    main   |o'o'SSSSSSSS|o'o'SSSSSSSS|o'o'SSSSSSSS|
    gpu 7  |HH..HH..HH..|HH..HH..HH..|HH..HH..HH..|
    gpu 13 |RRR.RRRRRRR.|RRR.RRRRRRR.|RRR.RRRRRRR.|
"""


def test_exchanges_of_ring_attention_are_no_pipeline() -> None:
    analysis = analyzed(RING, *[BLOCKS] * 4)
    assert first_of(analysis) == "exposed-communication"
    assert not {"pipeline-bubble", "straggler"} & names(analysis)
    assert "context-exchange" in changes(analysis, "exposed-communication")


# Tokens go out (A), are processed and come back (B, of the expert with most tokens E).
def tokens(sent: int) -> Symbol:
    return collective(SEND_RECV, "all-to-all", group_size=4, size_bytes=5_000_000, sent_bytes=sent)


EXPERTS = {
    "A": tokens(2_000_000),
    "B": tokens(1_000_000),
    "E": tokens(5_000_000),
    "o": operator("MoELayer"),
}
BUSY = """
    cell 1ms
    step   |........|........|........|
    main   |o'SSSSSS|o'SSSSSS|o'SSSSSS|
    gpu 7  |H.HHHHH.|H.HHHHH.|H.HHHHH.|
    gpu 13 |.A.....E|.A.....E|.A.....E|
"""
IDLE = """
    cell 1ms
    step   |........|........|........|
    main   |o'SSSSSS|o'SSSSSS|o'SSSSSS|
    gpu 7  |H.H.....|H.H.....|H.H.....|
    gpu 13 |.A.BBBBB|.A.BBBBB|.A.BBBBB|
"""
EVEN = """
    cell 1ms
    step   |.....|.....|.....|
    main   |o'SSS|o'SSS|o'SSS|
    gpu 7  |H.HH.|H.HH.|H.HH.|
    gpu 13 |.A..A|.A..A|.A..A|
"""


def test_the_rank_of_the_busiest_expert_is_named_with_its_tokens() -> None:
    analysis = analyzed(EXPERTS, IDLE, IDLE, BUSY, IDLE)
    assert first_of(analysis) == "expert-imbalance"
    assert analysis.first is not None
    assert analysis.findings[analysis.first].finding.ranks == (2,)
    even = analyzed(EXPERTS, *[EVEN] * 4)
    assert not {"expert-imbalance", "straggler"} & names(even)
