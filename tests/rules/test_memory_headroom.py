from __future__ import annotations

import pytest

from tb_perfadvisor.rules.launch.launching import LaunchBound
from tb_perfadvisor.rules.memory.capacity import MemoryHeadroom
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, ms, us
from tb_perfadvisor.trace import Trace

GIB = 1 << 30


def training(
    *, idle_ms: int = 3, peak_gib: float = 14, reserved_gib: float = -1, on_host: str = ""
) -> Trace:
    """Steps of 10 ms; 4 GiB were allocated before, and the device waits 1 ms for each launch.

    The first launch of a step waits for the operator `on_host`, if there is one.
    """
    builder = TraceBuilder().device("NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB)
    reserved = int(reserved_gib * GIB) if reserved_gib >= 0 else -1
    grown = int((peak_gib - 4) * GIB)
    for number in range(3):
        at = 10 * number
        builder.step(number, ms(at), ms(at + 10))
        for launch in range(idle_ms):
            begin = ms(at) + launch * ms(10) // idle_ms
            end = ms(at) + (launch + 1) * ms(10) // idle_ms
            if on_host and launch == 0:
                builder.operator(on_host, begin, begin + us(900), launches=False)
                begin += us(900)
            ready = ms(at) + launch * ms(10) // idle_ms + ms(1)
            builder.operator("aten::mm", begin, ready + us(1), launches=False)
            builder.launch(ready - us(10), ready)
            builder.kernel("sgemm", ready, end)
        for offset, change in ((1, grown), (5, -grown)):
            builder.memory(
                ms(at + offset),
                change,
                allocated_bytes=4 * GIB + max(change, 0),
                reserved_bytes=reserved,
                address=1,
                thread="main",
            )
    return builder.build()


def test_fires_with_room_and_idle_time_and_not_without() -> None:
    checked = check_rule(MemoryHeadroom, slow=training(), fixed=training(peak_gib=40))
    finding = checked.findings[0]
    assert "14.0 GiB of 80.0 GiB" in finding.summary
    assert finding.saving is not None
    assert finding.saving.basis == "modeled"
    # 3 x 3 ms idle; 4 + 10 k GiB fit 0.8 x 80 GiB for k = 4: 64 - 4 = 60 GiB.
    assert (finding.saving.low_ns, finding.saving.expected_ns) == (0, 4_500_000)
    assert finding.saving.high_ns == 6_750_000


def test_what_the_host_computes_grows_with_the_batch() -> None:
    (finding,) = find(MemoryHeadroom, training(on_host="aten::randn")) or ()
    assert finding.saving is not None
    # Of 3 x 3 ms idle, 3 x 0.9 ms pass in aten::randn, and a larger batch halves the rest.
    assert finding.saving.expected_ns == (9_000_000 - 2_700_000) // 2
    # Views and queries are a part of launching.
    (finding,) = find(MemoryHeadroom, training(on_host="aten::view")) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 4_500_000


def test_it_agrees_with_launch_bound() -> None:
    (finding,) = find(LaunchBound, training(on_host="aten::view")) or ()
    (headroom,) = find(MemoryHeadroom, training(on_host="aten::view")) or ()
    assert finding.saving is not None
    assert headroom.saving is not None
    assert headroom.saving.claims.tolist() == finding.saving.claims.tolist()


def test_free_memory_alone_is_not_enough() -> None:
    assert find(MemoryHeadroom, training(idle_ms=1)) == ()


def test_reserved_memory_grows_with_the_batch() -> None:
    assert len(find(MemoryHeadroom, training(reserved_gib=34)) or ()) == 1  # 4 + 2 x 30 = 64
    assert find(MemoryHeadroom, training(reserved_gib=34.1)) == ()


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"minimum_idle_share": 0.299}, 1),
        ({"minimum_idle_share": 0.301}, 0),
        ({"maximum_use_share": 0.301}, 1),  # 4 + 2 x 10 of 80 GiB are 30 %
        ({"maximum_use_share": 0.299}, 0),
        ({"minimum_empty_share": 0.99}, 1),
        ({"minimum_empty_share": 1.01}, 0),
    ],
)
def test_just_below_and_just_above_the_limits(settings: dict[str, float], count: int) -> None:
    assert len(find(MemoryHeadroom, training(), settings=settings) or ()) == count
