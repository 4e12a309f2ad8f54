from __future__ import annotations

from typing import Any

from tb_perfadvisor.rules.communication.slow_link import SlowLink
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
# An all-gather of 280 MB over two ranks puts (n-1)/n = half of it on the wire; at 0.7 of
# 100 GB/s that takes 2 ms, in place of 6 ms at 23 GB/s.
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
        "Of 2 large collectives the quickest moves 23.3 GB/s over a link of 100 GB/s."
    )


def test_just_above_and_just_below_the_share_of_the_link() -> None:
    # 23.3 of 100 GB/s.
    run = ranks(SLOW)
    assert find(SlowLink, run, options=LINK, settings={"maximum_share": 0.23}) == ()
    assert len(find(SlowLink, run, options=LINK, settings={"maximum_share": 0.24}) or ()) == 1


def test_small_messages_say_nothing_of_the_link() -> None:
    assert find(SlowLink, ranks(SLOW, size_bytes=900_000), options=LINK) == ()


def test_a_link_that_any_message_got_is_a_good_one() -> None:
    """Of two like messages one takes 2 ms, at 70 GB/s: the other's 6 ms are no link's fault."""
    both = """
        cell 1ms
        step   |..........|......|
        main   |o'SSSSSSSS|o'SSSS|
        gpu 7  |KKKK......|KKKK..|
        gpu 13 |....NNNNNN|....NN|
    """
    assert find(SlowLink, ranks(both), options=LINK) == ()


def test_without_a_switch_two_devices_share_one_link() -> None:
    # MI300X: seven links of 64 GB/s, one to each neighbor. 23 GB/s of 64 is more than a third;
    # of the 450 GB/s of an H100 behind its switch it is a twentieth.
    assert find(SlowLink, ranks(SLOW, device="AMD Instinct MI300X")) == ()
    assert len(find(SlowLink, ranks(SLOW, device="NVIDIA H100 80GB HBM3")) or ()) == 1
