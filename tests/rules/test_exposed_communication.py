from __future__ import annotations

from typing import Literal

from tb_perfadvisor.rules.communication.exposed_communication import ExposedCommunication
from tb_perfadvisor.signals import Options, Signals
from tb_perfadvisor.testing import TraceBuilder, check_rule, draw, find, ms, run_of
from tb_perfadvisor.testing.symbols import collective

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


def test_saves_what_the_fix_saves() -> None:
    # One rank alone: how much of the 4 ms is waiting is unknown, so half is expected.
    checked = check_rule(ExposedCommunication, slow=SLOW, fixed=FIXED, saves="4ms")
    assert checked.expected_ns == 2_000_000


def test_with_all_ranks_the_steps_are_re_timed() -> None:
    slow, fixed = (
        run_of(*(draw(text, rank=rank, world_size=2, backend="nccl") for rank in (0, 1)))
        for text in (SLOW, FIXED)
    )
    checked = check_rule(ExposedCommunication, slow=slow, fixed=fixed, saves="4ms")
    saving = checked.findings[0].saving
    assert saving is not None
    assert (saving.basis, checked.expected_ns) == ("simulated", 4_000_000)


def test_waiting_for_a_late_rank_is_not_transfer() -> None:
    # Rank 1 computes two cells longer, so rank 0's collective waits for two of its four cells.
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
    # The reference is rank 1, which waits for nobody: its 2 ms a step are all transfer.
    assert finding.saving.expected_ns == 4_000_000
    assert finding.saving.basis == "measured"
    assert finding.summary.endswith("nothing of the collectives' time is waiting for other ranks.")


def test_what_the_bytes_need_is_transfer_even_with_ranks_missing() -> None:
    # 8 ranks: 2 x 7/8 of 100 MB over 100 GB/s are 1.75 ms of the 4 ms that are exposed.
    size = {"size_bytes": 100_000_000, "group_size": 8}
    legend = {"N": collective("ncclDevKernel_AllReduce_Sum_f32_RING_LL", **size)}
    trace = draw(SLOW, legend=legend, rank=0, world_size=8, backend="nccl")
    options = Options(link_bandwidth_bytes_per_s=100e9)
    (finding,) = find(ExposedCommunication, run_of(trace), options=options) or ()
    assert finding.saving is not None
    assert finding.saving.low_ns == 0
    assert finding.saving.expected_ns == 2 * (1_750_000 + 4_000_000) // 2
    assert finding.saving.high_ns == 2 * 4_000_000
    assert "1.75 ms at least is transfer, by its bytes over the link; how much" in finding.summary


def test_nothing_is_sure_when_there_is_little_compute_to_hide_behind() -> None:
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


def test_just_below_and_just_above_the_limit() -> None:
    assert find(ExposedCommunication, SLOW, settings={"minimum_share": 0.41}) == ()
    assert len(find(ExposedCommunication, SLOW, settings={"minimum_share": 0.39}) or ()) == 1


def test_nccl_is_no_advice_for_a_tpu() -> None:
    def remedies(kind: Literal["gpu", "tpu"]) -> str:
        builder = TraceBuilder(framework="tensorflow").device("any", kind=kind)
        builder.step(0, 0, ms(10)).kernel("compute", 0, ms(4))
        trace = builder.collective("all-reduce", ms(4), ms(10)).build()
        (finding,) = ExposedCommunication().check(Signals(run_of(trace)))
        return " ".join(one.snippet for one in finding.remedies if one.framework == "tensorflow")

    assert "NcclAllReduce" in remedies("gpu")
    assert "NcclAllReduce" not in remedies("tpu")
    assert "batch_per_replica" in remedies("tpu")
