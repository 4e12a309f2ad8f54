from __future__ import annotations

import pytest

from tb_perfadvisor.rules.launch.switched_on import DebugMode
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, us
from tb_perfadvisor.trace import Trace

NODE = "autograd::engine::evaluate_function: "


def launches(*, blocking: bool, kernel_us: int = 30, per_step: int = 10) -> Trace:
    """Three steps: before each launch 15 µs of Python; its kernel starts 5 µs after it.

    A blocking launch returns 5 µs after its kernel. Each step ends with a wait.
    """
    builder = TraceBuilder()
    at, free = 0, 0
    for step in range(3):
        begun = at
        for number in range(per_step):
            at += 15
            start = max(at + 5, free)
            free = start + kernel_us
            end = free + 5 if blocking else at + 5
            builder.launch(us(at), us(end), key=f"{step} {number}")
            builder.kernel("k", us(start), us(free), launched_by=f"{step} {number}")
            at = end
        end = max(at, free) + 5
        builder.synchronize(us(at), us(end))
        builder.step(step, us(begun), us(end))
        at = end
    return builder.build()


def test_blocking_launches_cost_what_running_ahead_saves() -> None:
    # Blocking: 10 x (15 + 5 + 30 + 5) + 5 = 555 µs. Otherwise kernels run back to back:
    # 20 + 10 x 30 + 5 = 325 µs.
    checked = check_rule(
        DebugMode,
        slow=launches(blocking=True),
        fixed=launches(blocking=False),
        saves="230us",
        scales=False,  # the limit on the length of a kernel is no ratio
        exactly=False,  # a wait that had nothing to wait for does not show what it would take
    )
    assert checked.expected_ns == pytest.approx(230_000, rel=0.03)
    (finding,) = checked.findings
    assert finding.summary.startswith("Blocking launches cost 255 µs of each step")


def test_a_host_bound_program_is_not_in_debug_mode() -> None:
    # Kernels of 10 µs that end before the next launch, the queue never longer than one: no
    # kernel is longer than a launch may be.
    assert find(DebugMode, launches(blocking=False, kernel_us=10)) == ()
    assert find(DebugMode, launches(blocking=True, kernel_us=10)) == ()
    # The host waits after each launch, as a program with .item() everywhere does.
    builder = TraceBuilder()
    for number in range(40):
        at = 100 * number
        builder.launch(us(at), us(at + 5), key=str(number))
        builder.kernel("k", us(at + 5), us(at + 60), launched_by=str(number))
        builder.synchronize(us(at + 6), us(at + 62))
    assert find(DebugMode, builder.step(0, 0, us(4_000)).build()) == ()


def test_fewer_than_twenty_long_kernels_are_not_enough() -> None:
    # Three steps of six.
    assert find(DebugMode, launches(blocking=True, per_step=6)) == ()
    assert len(find(DebugMode, launches(blocking=True, per_step=7)) or ()) == 1


def backward(*, checks: bool, device: bool, nodes: int = 10, checked: int | None = None) -> Trace:
    """Three steps of a backward pass: a node takes 20 µs, its check another 12.

    On a device the check launches a kernel of 6 µs and waits for it; the node's takes 18.
    """
    builder = TraceBuilder()
    checked = nodes if checked is None else checked
    length = 32 if checks else 20
    for step in range(3):
        begun = step * nodes * length
        for number in range(nodes):
            at = begun + number * length
            has_check = checks and number < checked
            key = f"{step} {number}"
            builder.operator(f"{NODE}MmBackward0", us(at), us(at + length), launches=False)
            builder.operator("MmBackward0", us(at), us(at + 20), launches=False)
            if device:
                builder.launch(us(at), us(at + 2), key=key)
                builder.kernel("mm", us(at + 2), us(at + 20), launched_by=key)
            if not has_check:
                continue
            builder.operator("aten::isnan", us(at + 20), us(at + 24), launches=False)
            builder.operator("aten::_is_any_true", us(at + 24), us(at + 26), launches=False)
            builder.operator("aten::item", us(at + 26), us(at + 32), launches=False)
            if device:
                builder.launch(us(at + 20), us(at + 22), key=f"{key} check")
                builder.kernel("isnan", us(at + 22), us(at + 28), launched_by=f"{key} check")
                builder.synchronize(us(at + 26), us(at + 32))
        builder.step(step, us(begun), us(begun + nodes * length))
    return builder.build()


@pytest.mark.parametrize("device", [False, True])
def test_anomaly_detection_costs_its_checks(*, device: bool) -> None:
    checked = check_rule(
        DebugMode,
        slow=backward(checks=True, device=device),
        fixed=backward(checks=False, device=device),
        saves="120us",
        exactly=False,
        # The device's queue is empty at each step's end: what the gap after the last kernel
        # becomes is not drawn.
        tolerance=0.2 if device else 0.0,
    )
    (finding,) = checked.findings
    assert finding.summary.startswith(
        "Autograd checks every gradient for NaNs (anomaly detection): 30 operators per step cost"
    )
    assert "set_detect_anomaly(False)" in finding.remedies[0].snippet


def test_hooks_that_check_some_gradients_are_not_anomaly_detection() -> None:
    assert find(DebugMode, backward(checks=True, device=False, checked=9)) == ()


def allocations(*, fills: bool, per_step: int = 10, filled: int | None = None) -> Trace:
    """Three steps on the CPU: an operator of 40 µs whose new result takes 10 µs to fill."""
    builder = TraceBuilder()
    length = 50 if fills else 40
    filled = per_step if filled is None else filled
    for step in range(3):
        begun = step * per_step * length
        for number in range(per_step):
            at = begun + number * length
            builder.operator("aten::mm", us(at), us(at + length))
            builder.operator("aten::empty", us(at + 1), us(at + 2 + (10 if fills else 0)))
            if fills and number < filled:
                builder.operator("aten::fill_", us(at + 2), us(at + 12))
        builder.step(step, us(begun), us(begun + per_step * length))
    return builder.build()


def test_filling_memory_costs_its_operators() -> None:
    checked = check_rule(
        DebugMode, slow=allocations(fills=True), fixed=allocations(fills=False), saves="100us"
    )
    assert checked.expected_ns == 100_000
    snippet = checked.findings[0].remedies[0].snippet
    assert "fill_uninitialized_memory = False" in snippet


def test_filling_only_some_allocations_is_not_a_mode() -> None:
    assert find(DebugMode, allocations(fills=True, filled=9)) == ()


def test_just_below_and_just_above_the_limit() -> None:
    # 10 of 50.
    trace = allocations(fills=True)
    assert find(DebugMode, trace, settings={"minimum_share": 0.201}) == ()
    assert len(find(DebugMode, trace, settings={"minimum_share": 0.199}) or ()) == 1
