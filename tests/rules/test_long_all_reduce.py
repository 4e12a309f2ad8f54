from __future__ import annotations

from typing import Any

from tb_perfadvisor.rules.communication.long_all_reduce import LongAllReduce
from tb_perfadvisor.signals import Options
from tb_perfadvisor.testing import check_rule, draw, find, run_of
from tb_perfadvisor.testing.symbols import collective
from tb_perfadvisor.trace import Run

SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |o'SSSSSSSS|o'SSSSSSSS|
    gpu 7  |KKKKK.....|KKKKK.....|
    gpu 13 |.....NNNNN|.....NNNNN|
"""
FIXED = """
    cell 1ms
    step   |......|......|
    main   |o'SSSS|o'SSSS|
    gpu 7  |KKKKK.|KKKKK.|
    gpu 13 |.....N|.....N|
"""
# Two ranks send 2 (n-1)/n = 1 times 100 MB over 100 GB/s: 1 ms, and 30 µs of latency.
LINK = Options(link_bandwidth_bytes_per_s=100e9)


def _ranks(text: str, **size: Any) -> Run:
    symbol = collective(
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        size_bytes=size.get("size_bytes", 100_000_000),
        dtype="float",
        group_size=2,
    )
    return run_of(
        *(
            draw(text, legend={"N": symbol}, rank=rank, world_size=2, backend="nccl")
            for rank in (0, 1)
        )
    )


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        LongAllReduce,
        slow=_ranks(SLOW),
        fixed=_ranks(FIXED),
        saves="4ms",
        tolerance=0.01,
        scales=False,  # bytes and bandwidth stay what they are
        options=LINK,
    )
    assert checked.expected_ns == 5_000_000 - 1_030_000


def test_without_all_ranks_the_excess_may_be_waiting() -> None:
    run = run_of(_ranks(SLOW).traces[0])
    (finding,) = find(LongAllReduce, run, options=LINK) or ()
    assert finding.saving is not None
    assert finding.saving.low_ns == 0
    assert finding.saving.expected_ns == finding.saving.high_ns // 2


def test_parameters_stand_in_for_sizes() -> None:
    # 25 million parameters of 4 bytes are the same 100 MB a step.
    options = Options(parameters=25_000_000, link_bandwidth_bytes_per_s=100e9)
    unsized = _ranks(SLOW, size_bytes=-1)
    assert find(LongAllReduce, unsized, options=LINK) is None
    (finding,) = find(LongAllReduce, unsized, options=options) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 2 * (5_000_000 - 1_030_000)


def test_no_claim_without_a_bandwidth() -> None:
    assert find(LongAllReduce, _ranks(SLOW)) is None


def test_just_below_and_just_above_the_ratio() -> None:
    # 5 ms against 1.03 ms: 4.85 times.
    above, below = {"minimum_ratio": 4.9}, {"minimum_ratio": 4.8}
    assert find(LongAllReduce, _ranks(SLOW), options=LINK, settings=above) == ()
    assert len(find(LongAllReduce, _ranks(SLOW), options=LINK, settings=below) or ()) == 1


def test_just_below_and_just_above_the_share() -> None:
    # 3.97 ms of 10 ms.
    above, below = {"minimum_share": 0.40}, {"minimum_share": 0.39}
    assert find(LongAllReduce, _ranks(SLOW), options=LINK, settings=above) == ()
    assert len(find(LongAllReduce, _ranks(SLOW), options=LINK, settings=below) or ()) == 1
