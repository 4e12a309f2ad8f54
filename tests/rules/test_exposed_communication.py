from __future__ import annotations

import pytest

from tb_perfadvisor.engine.analyze import run_rule
from tb_perfadvisor.rules.communication.overlap import ExposedCommunication
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.rules.launch.waits import BlockedStream
from tb_perfadvisor.signals import Cause, Options, Signals
from tb_perfadvisor.testing import TraceBuilder, check_rule, draw, find, ms, run_of, us
from tb_perfadvisor.testing.symbols import collective, host, operator

SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |o'SSSSSSSS|o'SSSSSSSS|
    gpu 7  |KKKKKK....|KKKKKK....|
    gpu 13 |......NNNN|......NNNN|
"""
FIXED = """
    cell 1ms
    step   |......|......|
    main   |o'SSSS|o'SSSS|
    gpu 7  |KKKKKK|KKKKKK|
    gpu 13 |..NNNN|..NNNN|
"""


def test_a_single_rank_does_not_tell_what_the_fix_saves() -> None:
    # With one rank alone, it is unknown how much of the 4 ms is waiting, and nothing is estimated.
    checked = check_rule(ExposedCommunication, slow=SLOW, fixed=FIXED)
    (finding,) = checked.findings
    assert finding.saving is not None
    assert finding.saving.has_no_price
    assert checked.expected_ns == 0
    assert finding.summary.endswith("waiting for other ranks is unknown.")


def test_no_time_counts_for_two_collectives() -> None:
    trace = """
        cell 1ms
        step   |..........|..........|
        main   |ooSSSSSSSS|ooSSSSSSSS|
        gpu 7  |KKKKKK....|KKKKKK....|
        gpu 13 |......NNNN|......NNNN|
        gpu 14 |.......MM.|.......MM.|
    """
    name = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage)"
    (finding,) = (
        find(ExposedCommunication, trace, legend={"M": collective(name, "all-gather")}) or ()
    )
    (table,) = [
        each
        for each in finding.evidence
        if isinstance(each, Table) and each.title == "Collectives in the analyzed steps"
    ]
    # The all-gather runs beside the all-reduce, which began before it.
    assert [(row[0], row[4]) for row in table.rows] == [
        ("all-reduce", 8_000_000),
        ("all-gather", 0),
    ]


def test_with_all_ranks_the_steps_are_replayed() -> None:
    slow, fixed = (
        run_of(*(draw(text, rank=rank, world_size=2, backend="nccl") for rank in (0, 1)))
        for text in (SLOW, FIXED)
    )
    checked = check_rule(ExposedCommunication, slow=slow, fixed=fixed, saves="4ms")
    saving = checked.findings[0].saving
    assert saving is not None
    assert (saving.basis, checked.expected_ns) == ("simulated", 4_000_000)


def test_waiting_for_a_late_rank_is_not_transfer() -> None:
    # Rank 1 computes two cells longer, so rank 0 waits for two of the four cells it communicates.
    late = """
        cell 1ms
        step   |..........|..........|
        main   |o'........|o'........|
        gpu 7  |KKKKKKKK..|KKKKKKKK..|
        gpu 13 |........NN|........NN|
    """
    run = run_of(
        draw(SLOW, rank=0, world_size=2, backend="nccl"),
        draw(late, rank=1, world_size=2, backend="nccl"),
    )
    (finding,) = find(ExposedCommunication, run) or ()
    assert finding.saving is not None
    # The reference is rank 1, which waits for nobody: its 2 ms per step are all transfer.
    assert finding.saving.expected_ns == 4_000_000
    assert finding.saving.basis == "measured"
    assert finding.summary.endswith("none of the time in collectives is waiting for other ranks.")


def test_bytes_on_the_link_count_as_transfer_even_with_ranks_missing() -> None:
    # 8 ranks send 2 x 7/8 of 100 MB at 100 GB/s: 1.75 ms of the 4 ms that are exposed.
    size = {"size_bytes": 100_000_000, "group_size": 8}
    legend = {"N": collective("ncclDevKernel_AllReduce_Sum_f32_RING_LL", **size)}
    trace = draw(SLOW, legend=legend, rank=0, world_size=8, backend="nccl")
    options = Options(link_bandwidth_bytes_per_s=100e9)
    (finding,) = find(ExposedCommunication, run_of(trace), options=options) or ()
    assert finding.saving is not None
    # Overlap alone hides what the bytes need: enough compute overlaps nothing yet.
    assert finding.saving.low_ns == 2 * 1_750_000
    assert finding.saving.expected_ns == 2 * 1_750_000
    assert finding.saving.high_ns == 2 * 4_000_000
    assert not finding.saving.is_unknown
    assert "at least 1.75 ms is transfer, judging by the bytes sent; without" in finding.summary


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ("NNNN", "take the same time to within 0.0 %: that points to a slow link"),
        ("..NN", "the link is slow, or other ranks are late for all of them."),
    ],
)
def test_messages_that_use_little_of_the_link_are_a_sentence(second: str, says: str) -> None:
    # 8 ranks send 2 x 7/8 of 10 MB in 4 or 2 ms: 4.38 or 8.75 GB/s.
    size = {"size_bytes": 10_000_000, "group_size": 8}
    trace = draw(
        f"""
        cell 1ms
        step   |......|......|......|
        main   |o'....|o'....|o'....|
        gpu 7  |KK....|KK....|KK....|
        gpu 13 |..NNNN|..{second}|..NNNN|
        """,
        legend={"N": collective("ncclDevKernel_AllReduce_Sum_f32_RING_LL", **size)},
        rank=0,
        world_size=8,
        backend="nccl",
    )
    options = Options(link_bandwidth_bytes_per_s=100e9)
    (finding,) = find(ExposedCommunication, run_of(trace), options=options) or ()
    best = "4.38 GB/s" if second == "NNNN" else "8.75 GB/s"
    assert f"Large messages reach {best} at most, on a link of 100 GB/s" in finding.summary
    assert says in finding.summary
    leads = finding.remedies[0].change == "link-path"
    assert leads == (second == "NNNN"), "where the link is proven, it comes before overlap"


@pytest.mark.parametrize(
    ("gigabytes", "expected_ms"),
    [
        # Two ranks send 2 x 1/2 of 0.9 GB at 100 GB/s: the 9 ms are all needed. Of the 2 ms of
        # compute in each step, one overlaps communication already, and the other one is free.
        (0.9, 1),
        # Half of the bytes need 4.5 ms, of which 1 ms is overlapped: 4.5 ms of the 8 ms go with a
        # link at its speed. Overlap would hide 1 ms.
        (0.45, 4.5),
        # The size is unknown, and so is what the link needs.
        (None, 1),
    ],
)
def test_communication_hides_for_as_long_as_the_step_computes(
    gigabytes: float | None, expected_ms: float
) -> None:
    trace = """
        cell 1ms
        step   |..........|..........|
        main   |o'SSSSSSSS|o'SSSSSSSS|
        gpu 7  |KK........|KK........|
        gpu 13 |.NNNNNNNNN|.NNNNNNNNN|
    """
    size = {} if gigabytes is None else {"size_bytes": int(gigabytes * 1e9), "group_size": 2}
    legend = {"N": collective("ncclDevKernel_AllReduce_Sum_f32_RING_LL", **size)}
    run = run_of(
        *(draw(trace, legend=legend, rank=rank, world_size=2, backend="nccl") for rank in (0, 1))
    )
    options = Options(link_bandwidth_bytes_per_s=100e9)
    (finding,) = find(ExposedCommunication, run, options=options) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == pytest.approx(2 * ms(expected_ms), abs=4)
    assert finding.saving.high_ns == 16_000_000


def test_low_is_zero_when_there_is_little_compute_to_overlap() -> None:
    trace = """
        cell 1ms
        step   |..........|..........|
        main   |o'........|o'........|
        gpu 7  |KK........|KK........|
        gpu 13 |..NNNNNNNN|..NNNNNNNN|
    """
    (finding,) = find(ExposedCommunication, trace) or ()
    assert finding.saving is not None
    assert (finding.saving.low_ns, finding.saving.high_ns) == (0, 16_000_000)


def test_fires_only_above_the_limit() -> None:
    assert find(ExposedCommunication, SLOW, settings={"minimum_share": 0.41}) == ()
    assert len(find(ExposedCommunication, SLOW, settings={"minimum_share": 0.39}) or ()) == 1


def test_advice_is_by_what_the_collectives_are_for() -> None:
    def remedies(launcher: str, *others: str) -> str:
        legend = {"o": operator(launcher), "S": host(others[0] if others else "forward")}
        trace = draw(SLOW, legend=legend, rank=0, world_size=8, backend="nccl")
        (finding,) = run_rule(ExposedCommunication(), Signals(run_of(trace))).findings
        return " ".join(remedy.text + remedy.snippet for remedy in finding.remedies)

    gradient = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    assert "static_graph" in remedies(gradient, "DistributedDataParallel.forward")
    assert "static_graph" not in remedies(gradient)
    assert "larger batch" in remedies(gradient)
    tensor_parallel = remedies("_ReduceFromModelParallelRegion")
    assert "sequence parallelism" in tensor_parallel
    assert "tensor-parallel ranks" in tensor_parallel
    assert not any(word in tensor_parallel for word in ("gradient", "no_sync", "bucket", "DDP"))
    context_parallel = remedies("AllToAll4D")
    assert "context-parallel ranks" in context_parallel
    assert not any(word in context_parallel for word in ("gradient", "bucket", "DDP"))


def test_the_one_collective_that_takes_most_of_it_is_named() -> None:
    four = """
        cell 1ms
        step   |..........|..........|
        main   |o'o'o'o'..|o'o'o'o'..|
        gpu 7  |KKK.......|KKK.......|
        gpu 13 |N'N'N'NNNN|N'N'N'NNNN|
    """
    # The last of four takes 5 of the 7 ms that no compute covers.
    (finding,) = find(ExposedCommunication, four) or ()
    assert finding.summary.endswith("One all-reduce takes 5.00 ms of it.")
    assert (
        finding.title == "Shrink or hide the all-reduce: one all-reduce takes 50.0 % of each step"
    )
    # Of two, one is always the longer.
    (finding,) = find(ExposedCommunication, four.replace("N'N'N'NNNN", "NNN'NNNNNN")) or ()
    assert "One all-reduce" not in finding.summary


def test_what_was_launched_before_the_steps_is_not_theirs() -> None:
    builder = TraceBuilder().device("NVIDIA H100 80GB HBM3").launch(0, us(10), key="before")
    builder.collective("all_reduce", ms(1), ms(8), launched_by="before", stream=13)
    for number in range(3):
        begin = ms(1 + 10 * number)
        builder.step(number, begin, begin + ms(10)).launch(begin, begin + us(10), key=str(number))
        builder.kernel("gemm", begin + ms(7), begin + ms(9), launched_by=str(number))
        builder.synchronize(begin + us(10), begin + ms(10))
    signals = Signals(run_of(builder.build()))
    assert signals.attribution.total_ns(Cause.COMMUNICATION) > 0
    assert find(ExposedCommunication, signals.trace) == ()


def test_launched_collectives_that_have_not_begun_are_communication() -> None:
    # All work of a step is launched at its start. The device idles for 3 ms before the second
    # collective begins: that waits for an event, not for the host.
    builder = TraceBuilder()
    for step in range(3):
        at = 10 * step
        builder.step(step, ms(at), ms(at + 10))
        for place, key in enumerate("kab"):
            start = ms(at) + us(20 * place)
            builder.launch(start, start + us(10), key=f"{key}{step}")
        builder.kernel("gemm", ms(at + 1), ms(at + 3), launched_by=f"k{step}")
        builder.collective("ncclKernel_SendRecv", ms(at + 3), ms(at + 5), launched_by=f"a{step}")
        builder.collective("ncclKernel_SendRecv", ms(at + 8), ms(at + 10), launched_by=f"b{step}")
    trace = builder.build()
    (finding,) = find(ExposedCommunication, trace) or ()
    assert finding.summary.startswith("4.00 ms of each step")
    assert "another 3.00 ms of each step" in finding.summary
    assert finding.saving is not None
    assert finding.saving.high_ns == 3 * 7_000_000
    assert find(BlockedStream, trace, settings={"minimum_share": 0.15}) == ()


@pytest.mark.parametrize(
    ("world", "group", "code"),
    [
        # Half of the ranks of a group, and as many replicas as the devices then are enough for.
        (4, 4, "--tensor-parallel-size 2 --data-parallel-size 2"),
        (8, 2, "--tensor-parallel-size 1 --data-parallel-size 8"),
        (None, 4, "--tensor-parallel-size RANKS --data-parallel-size REPLICAS"),
    ],
)
def test_fewer_tensor_parallel_ranks_fit_the_devices(
    world: int | None, group: int, code: str
) -> None:
    builder = TraceBuilder(world_size=world).device("NVIDIA H100 80GB HBM3")
    builder.annotation("execute_context_0(0)_generation_4(4)", 0, ms(40))
    for place in range(4):
        begin = ms(10 * place)
        builder.annotation("vllm::all_reduce", begin, begin + us(20))
        builder.launch(begin + us(5), begin + us(10), key=str(place))
        builder.kernel("add", begin + ms(1), begin + ms(5), launched_by=str(place))
        builder.collective(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
            begin + ms(5),
            begin + ms(10),
            group_size=group,
            launched_by=str(place),
        )
    (finding,) = find(ExposedCommunication, builder.build()) or ()
    assert any(code in remedy.snippet for remedy in finding.remedies)
