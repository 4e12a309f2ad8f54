from __future__ import annotations

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.host.waits import AwaitedValues, awaited_values
from tb_perfadvisor.testing import TraceBuilder, run_of, us
from tb_perfadvisor.trace import CopyDirection

TO_HOST, TO_DEVICE = CopyDirection.DEVICE_TO_HOST, CopyDirection.HOST_TO_DEVICE


class Program:
    """One thread; each part begins where the part before ended. Times are microseconds."""

    def __init__(self) -> None:
        self.builder = TraceBuilder()
        self.at = 0
        self.calls = 0

    def launch(self, length: int = 10) -> Program:
        """An operator whose launch begins 4 µs after it."""
        self._operator("aten::mul", length)
        self.builder.launch(us(self.at + 4), us(self.at + 6), key=self._key())
        self.builder.kernel("mul", us(self.at + 6), us(self.at + 7), launched_by=self._key())
        return self._after(length)

    def item(self) -> Program:
        """A copy to the host in 10 µs, and its synchronization in 5; the operator ends 5 later."""
        self._operator("aten::item", 20)
        self._copy(TO_HOST, 10, pageable=1)
        self.builder.synchronize(us(self.at + 10), us(self.at + 15))
        return self._after(20)

    def copy(self, direction: CopyDirection) -> Program:
        """An asynchronous copy between the device and pinned memory."""
        self._copy(direction, 5, pageable=0)
        return self._after(5)

    def synchronize(self) -> Program:
        self.builder.synchronize(us(self.at), us(self.at + 5))
        return self._after(5)

    def python(self, length: int) -> Program:
        return self._after(length)

    def on_host(self, length: int) -> Program:
        """An operator that launches nothing."""
        self._operator("aten::sort", length)
        return self._after(length)

    def values(self) -> AwaitedValues:
        trace = self.builder.step(0, 0, us(self.at)).build()
        return awaited_values(Signals(run_of(trace)))

    def _copy(self, direction: CopyDirection, length: int, pageable: int) -> None:
        start, end = us(self.at), us(self.at + length)
        self.builder.launch(start, end, name="cudaMemcpyAsync", key=self._key())
        self.builder.copy(
            direction, us(self.at + 1), us(self.at + 2), pageable=pageable, launched_by=self._key()
        )

    def _operator(self, name: str, length: int) -> None:
        self.builder.operator(name, us(self.at), us(self.at + length), launches=False)

    def _key(self) -> str:
        return f"call {self.calls}"

    def _after(self, length: int) -> Program:
        self.at += length
        self.calls += 1
        return self


def test_host_code_lies_between_the_operators_that_wait_and_launch() -> None:
    # Neither the last 5 µs of aten::item count, nor the first 4 of aten::mul: 7 in Python and 30
    # in an operator that launches nothing.
    values = Program().item().python(7).on_host(30).launch().values()
    assert values.host_code_ns.tolist() == [us(37)] * 2


def test_a_copy_to_the_host_hands_over_a_value() -> None:
    # The copy and its synchronization hand it over together. Nothing is copied before the second
    # synchronization, and a copy to the device hands nothing over.
    values = (
        Program().item().launch().synchronize().launch().copy(TO_DEVICE).synchronize().launch()
    ).values()
    assert values.is_copied.tolist() == [True, True, False, False]
    assert values.mean_host_code_ns(values.row[:2]) == 0
    assert values.mean_host_code_ns(values.row[2:]) is None


def test_a_copy_that_does_not_wait_hands_over_at_the_next_wait() -> None:
    values = Program().copy(TO_HOST).launch().synchronize().launch().synchronize().launch().values()
    assert values.is_copied.tolist() == [True, False]


def test_long_host_code_may_use_the_value() -> None:
    # Usually 5 µs lie between two launches, so 150 µs is the larger limit.
    usual = Program().launch().python(5).launch().python(5).launch().python(5)
    assert usual.item().python(150).launch().values().may_be_used.tolist() == [False] * 2
    usual = Program().launch().python(5).launch().python(5).launch().python(5)
    assert usual.item().python(151).launch().values().may_be_used.tolist() == [True] * 2


def test_a_slow_host_takes_longer_for_everything() -> None:
    # 20 µs between two launches: ten times as long is the larger limit.
    usual = Program().launch().python(20).launch().python(20).launch().python(20)
    assert usual.item().python(200).launch().values().may_be_used.tolist() == [False] * 2
    usual = Program().launch().python(20).launch().python(20).launch().python(20)
    assert usual.item().python(201).launch().values().may_be_used.tolist() == [True] * 2


def test_the_waits_of_a_call_site_are_judged_together() -> None:
    # Values are collected, and used after the last one: 400 µs for two are 200 each.
    collecting = Program().item().item().python(400).launch()
    assert collecting.values().may_be_used.tolist() == [True] * 4
    # For four, they are 100 each.
    collecting = Program().item().item().item().item().python(400).launch()
    assert collecting.values().may_be_used.tolist() == [False] * 8


def test_without_a_copy_no_value_is_used() -> None:
    assert Program().synchronize().python(1000).launch().values().may_be_used.tolist() == [False]


def test_no_waits() -> None:
    assert len(Program().launch().launch().values().row) == 0
