"""Operators that a program with a GPU could do without."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Examined, Facts
from tb_perfadvisor.rules.compute.repeated_results import RepeatedResults
from tb_perfadvisor.rules.launch.independent_calls import IndependentCalls
from tb_perfadvisor.testing import TraceBuilder, find, us
from tb_perfadvisor.trace import Trace
from tests.support.examined import observed

KERNELS = 100


def program(kernel_us: int, kind: str, *, on_device: bool) -> Trace:
    """Three steps of 2 ms, in which every 20 µs an operator launches a kernel."""
    builder = TraceBuilder()
    for step in range(3):
        first = 2000 * step
        builder.step(step, us(first), us(first + 2000))
        for number in range(KERNELS):
            at, key = first + 20 * number, f"{step} {number}"
            builder.operator("aten::mul", us(at), us(at + 18))
            builder.launch(us(at + 5), us(at + 15), key=key)
            builder.kernel("k", us(at + 6), us(at + 6 + kernel_us), launched_by=key)
    found = observed(kind, 0.25)  # type: ignore[arg-type]
    facts = Facts(examined=Examined(4, 0.04, KERNELS, on_device=on_device, observed=(found,)))
    return replace(builder.build(), facts=facts)


@pytest.mark.parametrize("kernel_us", [14, 20])
def test_a_part_of_the_time_of_the_device(kernel_us: int) -> None:
    (finding,) = find(RepeatedResults, program(kernel_us, "same in every step", on_device=True))
    assert finding.saving.expected_ns == pytest.approx(0.25 * 3 * KERNELS * us(kernel_us), rel=0.01)


def test_calls_that_the_device_waits_for_take_their_own_time_as_well() -> None:
    (finding,) = find(RepeatedResults, program(2, "same in every step", on_device=False))
    assert finding.saving.expected_ns == pytest.approx(0.25 * 3 * KERNELS * us(18), rel=0.01)


def test_one_call_for_many_saves_where_calls_limit() -> None:
    (finding,) = find(IndependentCalls, program(2, "independent", on_device=False))
    assert finding.saving.expected_ns == pytest.approx(0.9 * 0.25 * 3 * KERNELS * us(18), rel=0.01)
    assert find(IndependentCalls, program(14, "independent", on_device=True)) == ()
