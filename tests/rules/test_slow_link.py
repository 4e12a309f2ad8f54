from __future__ import annotations

from typing import Any

from tb_perfadvisor.rules.communication.transfers import SlowLink
from tb_perfadvisor.signals import Options
from tb_perfadvisor.testing import check_rule, draw, find, run_of
from tb_perfadvisor.testing.symbols import collective
from tb_perfadvisor.trace import Run

SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |o'SSSSSSSS|o'SSSSSSSS|
    gpu 7  |KKKK......|KKKK......|
    gpu 13 |....NNNNNN|....NNNNNN|
"""
FIXED = """
    cell 1ms
    step   |......|......|
    main   |o'SSSS|o'SSSS|
    gpu 7  |KKKK..|KKKK..|
    gpu 13 |....NN|....NN|
"""
# An all-gather of 280 MB over two ranks puts (n-1)/n = half of it on the wire. At 0.7 of
# 100 GB/s that takes 2 ms, instead of 6 ms at 23 GB/s.
LINK = Options(link_bandwidth_bytes_per_s=100e9)


def ranks(text: str, size_bytes: int = 280_000_000, **source: Any) -> Run:
    symbol = collective(
        "ncclDevKernel_AllGather_RING_LL",
        "all-gather",
        size_bytes=size_bytes,
        dtype="float",
        group_size=2,
    )
    return run_of(
        *(
            draw(text, legend={"N": symbol}, rank=rank, world_size=2, backend="nccl", **source)
            for rank in (0, 1)
        )
    )


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        SlowLink,
        slow=ranks(SLOW),
        fixed=ranks(FIXED),
        saves="4ms",
        scales=False,  # bytes and bandwidth stay what they are
        options=LINK,
    )
    (finding,) = checked.findings
    assert finding.summary == (
        "Slow transfer of large messages costs up to 4.00 ms of each step (40.0 %): the fastest"
        " of 2 collectives reaches 23.3 GB/s on a link of 100 GB/s."
    )


def test_fires_only_below_the_share_of_the_link() -> None:
    # 23.3 of 100 GB/s.
    run = ranks(SLOW)
    assert find(SlowLink, run, options=LINK, settings={"maximum_share": 0.23}) == ()
    assert len(find(SlowLink, run, options=LINK, settings={"maximum_share": 0.24}) or ()) == 1


def test_small_messages_do_not_count() -> None:
    assert find(SlowLink, ranks(SLOW, size_bytes=900_000), options=LINK) == ()


def test_one_fast_message_clears_the_link() -> None:
    """One of two equal messages takes 2 ms, at 70 GB/s: the link did not slow the other one."""
    uneven = """
        cell 1ms
        step   |..........|......|
        main   |o'SSSSSSSS|o'SSSS|
        gpu 7  |KKKK......|KKKK..|
        gpu 13 |....NNNNNN|....NN|
    """
    assert find(SlowLink, ranks(uneven), options=LINK) == ()


def test_without_a_switch_two_devices_have_a_single_link() -> None:
    # An MI300X has one link of 64 GB/s to each of seven neighbors: 23 GB/s is more than a third.
    # Of the 450 GB/s that an H100 has behind its switch, it is a twentieth.
    assert find(SlowLink, ranks(SLOW, device="AMD Instinct MI300X")) == ()
    assert len(find(SlowLink, ranks(SLOW, device="NVIDIA H100 80GB HBM3")) or ()) == 1
