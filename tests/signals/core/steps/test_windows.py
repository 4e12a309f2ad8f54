"""Steps whose work runs long after they were dispatched are as long as their work."""

from __future__ import annotations

import numpy as np
import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.steps.windows import Side
from tb_perfadvisor.testing import TraceBuilder, run_of, us
from tb_perfadvisor.trace import EventKind, KernelFamily, Precision
from tb_perfadvisor.whatif import Shorten, Simulation, simulation


def dispatched(count: int, *, work_us: int, has_step_line: bool, devices: int = 1) -> Signals:
    """Steps that the host dispatches within 50 us each, and a device that works for longer."""
    builder = TraceBuilder("jax", host="host0", path="host0")
    builder.device("TPU v5e", kind="tpu", memory_bytes=16 * 2**30)
    at = us(60)
    for step in range(count):
        start = step * us(50)
        builder.step(step, start, start + us(49), thread="python")
        builder.launch(
            start + us(10), start + us(40), name="DoEnqueueProgram", thread="python", key=str(step)
        )
        at = max(at, start + us(41))  # no work starts before its launch
        for device in range(devices):
            builder.xla_op(
                "fusion.1",
                at,
                at + us(work_us),
                tpu=device,
                text="%fusion.1 = f32[8,128]{1,0:T(8,128)} fusion(f32[8,128]{1,0:T(8,128)} %x)",
                family=KernelFamily.ELEMENTWISE,
                precision=Precision.BITS_32,
                launched_by=str(step),
                module="jit_f(1)",
            )
        if has_step_line:
            builder.derived("steps", str(step), at, at + us(work_us), step=step)
        at += us(work_us + 2)
    return Signals(run_of(builder.build()))


@pytest.mark.parametrize("has_step_line", [False, True])
def test_a_step_is_as_long_as_its_work(has_step_line: bool) -> None:
    steps = dispatched(5, work_us=300, has_step_line=has_step_line).steps
    assert steps.number.tolist() == [0, 1, 2, 3, 4]
    # 300 us of work, and 2 us after the work before. Nothing was recorded before the first one.
    assert steps.duration_ns.tolist() == [300_000] + [302_000] * 4
    assert steps.track >= 0


def test_both_windows_are_known() -> None:
    steps = dispatched(5, work_us=300, has_step_line=False).steps
    assert (steps.source, steps.decided_by) == ("train", Side.DEVICE)
    assert steps.host_start_ns.tolist() == [0, 50_000, 100_000, 150_000, 200_000]
    assert steps.host_end_ns.tolist() == [50_000, 100_000, 150_000, 200_000, 249_000]
    # Work begins at 60 us; each item takes 300 us and starts 2 us after the one before.
    assert steps.device_end_ns.tolist() == [360_000, 662_000, 964_000, 1_266_000, 1_568_000]


def test_a_device_that_keeps_up_has_the_steps_of_the_host() -> None:
    # The work of the first step starts at 60 us, that of the last one right after its launch, at
    # 241 us: the device waits for the host.
    steps = dispatched(5, work_us=40, has_step_line=True).steps
    assert steps.decided_by is Side.HOST
    assert steps.duration_ns[0] == 50_000


def lagged(count: int, *, wait_us: int = 480, work_us: int = 500) -> Signals:
    """Steps that wait for the result of the step before, so that the first one only dispatches."""
    builder = TraceBuilder("jax", host="host0", path="host0")
    builder.device("TPU v5e", kind="tpu", memory_bytes=16 * 2**30)
    at_us = 0
    for step in range(count):
        end_us = at_us + (20 + wait_us if step else 20)
        builder.step(step, us(at_us), us(end_us), thread="python")
        name = "DoEnqueueProgram"
        builder.launch(us(at_us + 5), us(at_us + 8), name=name, thread="python", key=str(step))
        begin_us = 10 + work_us * step
        builder.xla_op(
            "fusion.1",
            us(begin_us),
            us(begin_us + work_us),
            text="%fusion.1 = f32[8,128]{1,0:T(8,128)} fusion(f32[8,128]{1,0:T(8,128)} %x)",
            family=KernelFamily.ELEMENTWISE,
            precision=Precision.BITS_32,
            launched_by=str(step),
            module="jit_f(1)",
        )
        at_us = end_us
    return Signals(run_of(builder.build()))


def test_a_marker_that_only_dispatches_is_a_boundary() -> None:
    signals = lagged(6)
    # Markers of 20, 500, 500, … us: their mean is (20 + 5 * 500) / 6 = 420 us.
    assert signals.steps.duration_ns.tolist() == [us(500)] * 6
    assert signals.steps.decided_by is Side.DEVICE


def test_a_first_step_that_takes_as_long_as_others_is_a_length() -> None:
    # The host takes 20 us and waits for 20 us more; the device works for 40 us.
    signals = lagged(6, wait_us=19, work_us=40)
    assert signals.steps.decided_by is Side.HOST


def test_the_queue_explains_what_lies_between_the_runs() -> None:
    signals = dispatched(5, work_us=300, has_step_line=True)
    assert signals.host_idle.size == 0


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("has_step_line", [False, True])
def test_each_step_gets_faster_with_its_work(has_step_line: bool, devices: int) -> None:
    signals = dispatched(5, work_us=300, has_step_line=has_step_line, devices=devices)
    steps = simulation(signals)
    assert isinstance(steps, Simulation), steps.reason
    # The work of one device, which stands for the others: they run the same program.
    rows = signals.device.rows
    assert len(rows) == 5
    assert steps.saved_ns(Shorten(rows, np.full(5, us(200)))) == 5 * us(100)


def test_of_two_steps_the_host_tells_the_pace_although_the_device_never_waits() -> None:
    # The second step waits for the kernels of both. Two ends on the device say too little.
    builder = TraceBuilder()
    for number, (start, end) in enumerate(((0, 50), (50, 400))):
        builder.step(number, us(start), us(end))
        builder.launch(us(start + 5), us(start + 10), key=str(number))
    builder.host(EventKind.SYNCHRONIZE, "cudaDeviceSynchronize", us(70), us(399))
    builder.kernel("gemm", us(12), us(200), launched_by="0")
    builder.kernel("gemm", us(201), us(398), launched_by="1")
    steps = Signals(run_of(builder.build())).steps
    assert len(steps) == 2
    assert steps.decided_by == Side.HOST
