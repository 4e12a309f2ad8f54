from __future__ import annotations

import numpy as np

from tb_perfadvisor.rules.launch.waits import BlockedStream, DeviceSynchronization
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.host.waits import slow_starts, wait_prices
from tb_perfadvisor.testing import TraceBuilder, find, ms, run_of, us
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.intervals import total_ns


def waiting(start_us: float, rounds: int = 20, *, operator: str = "") -> Trace:
    """Each 400 us, the host launches for 10 us, waits, and works for 40 us. The kernel takes 100 us
    and starts some time after its launch has returned; the host waits until it ends. No two kernels
    are the same, so that there are no steps."""
    builder = TraceBuilder()
    for number in range(rounds):
        begin = 400 * number
        end = begin + 10 + start_us + 100
        if operator:
            builder.operator(operator, us(begin), us(end), launches=False)
        builder.launch(us(begin), us(begin + 10), key=f"{number}")
        builder.kernel(
            f"sort {number}", us(begin + 10 + start_us), us(end), launched_by=f"{number}"
        )
        builder.synchronize(us(begin + 11), us(end))
    return builder.build()


def slow_us(trace: Trace) -> float:
    return total_ns(slow_starts(Signals(run_of(trace)))) / 1e3


def test_a_machine_that_passes_launches_on_late() -> None:
    # The first kernel begins the window, and nothing follows the last wait. Work counts as queued
    # 20 us after its launch, which leaves 180 of 200 us; the host waits all along.
    assert slow_us(waiting(200)) == 18 * 180


def test_just_below_and_just_above_the_limits() -> None:
    assert slow_us(waiting(49)) == 0
    assert slow_us(waiting(51)) == 18 * 31
    assert slow_us(waiting(200, rounds=8)) == 0  # seven starts
    assert slow_us(waiting(200, rounds=9)) == 7 * 180


def test_a_single_late_start_blocks_its_stream() -> None:
    builder = TraceBuilder()
    for number in range(10):
        begin = ms(number)
        builder.launch(begin, begin + us(5), key=f"{number}")
        late = us(500) if number == 9 else us(5)
        builder.kernel("sort", begin + us(5) + late, begin + us(600), launched_by=f"{number}")
        builder.synchronize(begin + us(6), begin + us(600))
    assert slow_us(builder.build()) == 0


def test_the_delay_is_a_price_of_waiting() -> None:
    (finding,) = find(DeviceSynchronization, waiting(200)) or ()
    assert finding.saving is not None
    # In each round, the host is ahead by what it waited, and the late start and its own work
    # afterwards take less than that.
    assert finding.saving.expected_ns > 15 * us(180)
    assert find(BlockedStream, waiting(200)) == ()


def test_an_operator_that_works_with_what_it_waits_for_stays() -> None:
    signals = Signals(run_of(waiting(200, operator="aten::_coalesce")))
    prices = wait_prices(signals, np.ones(len(signals.synchronizations), dtype=np.bool_))
    assert prices.if_needed_ns.sum() == 0
    assert prices.if_free_ns.sum() > 15 * us(180)
    (finding,) = find(DeviceSynchronization, waiting(200, operator="aten::_coalesce")) or ()
    assert finding.saving is not None
    assert finding.saving.low_ns == 0
    # It may be needed or not, and no replay says what else limits the steps: a quarter.
    assert finding.saving.expected_ns == int(prices.if_free_ns.sum()) // 4


def test_a_copying_operator_waits_for_its_copy_alone() -> None:
    signals = Signals(run_of(waiting(200, operator="aten::copy_")))
    prices = wait_prices(signals, np.ones(len(signals.synchronizations), dtype=np.bool_))
    assert prices.if_needed_ns.sum() == prices.if_free_ns.sum()


def test_host_code_between_waits_without_a_launch_is_no_wait() -> None:
    builder = TraceBuilder()
    builder.launch(0, us(5), key="a").kernel("gemm", us(5), us(105), launched_by="a")
    # Two waits of 10 us, and 2 s between them in which the host does something else.
    builder.synchronize(us(95), us(105)).synchronize(ms(2_000), ms(2_000) + us(10))
    at = ms(2_100)
    builder.launch(at, at + us(5), key="b").kernel("gemm", at + us(5), at + ms(1), launched_by="b")
    signals = Signals(run_of(builder.build()))
    prices = wait_prices(signals, np.ones(len(signals.synchronizations), dtype=np.bool_))
    assert prices.lead_ns.sum() == us(20)
    assert prices.expected_ns.sum() == us(20)
