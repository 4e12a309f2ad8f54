from __future__ import annotations

from tb_perfadvisor.rules.placement.devices import DeviceHostPingPong
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import Symbol, copy, host, operator
from tb_perfadvisor.trace import CopyDirection, EventKind


def to_host(size_bytes: int = 1 << 20) -> Symbol:
    return copy(
        "Memcpy DtoH (Device -> Pageable)",
        CopyDirection.DEVICE_TO_HOST,
        pageable=1,
        size_bytes=size_bytes,
    )


def to_device(size_bytes: int = 1 << 20) -> Symbol:
    return copy(
        "Memcpy HtoD (Pageable -> Device)",
        CopyDirection.HOST_TO_DEVICE,
        pageable=1,
        size_bytes=size_bytes,
    )


LEGEND = {
    "c": operator("aten::copy_"),
    "n": host("numpy/core/fromnumeric.py(1025): argsort", EventKind.PYTHON),
    "d": to_host(),
    "h": to_device(),
}
# scores.cpu().numpy().argsort() on the host; the order is copied back.
SLOW = """
    cell 100us
    step   |..............|..............|
    main   |oc--nnnnc-oSSS|oc--nnnnc-oSSS|
    gpu 7  |KKdd....hhKKKK|KKdd....hhKKKK|
"""
# On the device it takes almost no time.
FIXED = """
    cell 100us
    step   |......|......|
    main   |ooSSSS|ooSSSS|
    gpu 7  |KKKKKK|KKKKKK|
"""


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        DeviceHostPingPong, slow=SLOW, fixed=FIXED, saves="800us", legend=LEGEND, exactly=False
    )
    (finding,) = checked.findings
    assert "1 tensor per step of 1.00 MiB" in finding.summary
    # Low: two cells of each copy.
    assert finding.saving is not None
    assert finding.saving.low_ns == 2 * 400_000


def test_several_tensors_of_one_size_leave_before_the_first_returns() -> None:
    slow = """
        cell 100us
        step   |................|................|
        main   |oc--p-nnc-p-oSSS|oc--p-nnc-p-oSSS|
        gpu 7  |KKddee..hhiiKKKK|KKddee..hhiiKKKK|
    """
    legend = LEGEND | {"p": LEGEND["c"], "e": to_host(), "i": to_device()}
    checked = check_rule(
        DeviceHostPingPong, slow=slow, fixed=FIXED, saves="1ms", legend=legend, exactly=False
    )
    (finding,) = checked.findings
    assert "2 tensors per step of 1.00 MiB" in finding.summary
    assert finding.saving is not None
    # Four copies of two cells.
    assert finding.saving.low_ns == 2 * 800_000


def test_pages_of_unified_memory_are_no_tensors() -> None:
    there = copy("Memcpy DtoH (unified memory)", CopyDirection.DEVICE_TO_HOST, size_bytes=1 << 16)
    back = copy("Memcpy HtoD (unified memory)", CopyDirection.HOST_TO_DEVICE, size_bytes=1 << 16)
    assert not find(DeviceHostPingPong, SLOW, legend={**LEGEND, "d": there, "h": back})


def test_tensors_of_other_sizes_are_not_a_round_trip() -> None:
    assert find(DeviceHostPingPong, SLOW, legend=LEGEND | {"h": to_device(1 << 19)}) == ()


def test_what_is_sent_before_the_other_has_arrived_is_no_round_trip() -> None:
    # Chunks in streams of their own: the host waits for none of them.
    trace = """
        cell 100us
        step   |..............|..............|
        main   |occ......oSSSS|occ......oSSSS|
        gpu 7  |KKdd....hhKKKK|KKdd....hhKKKK|
    """
    assert find(DeviceHostPingPong, trace, legend=LEGEND) == ()


def test_the_next_step_may_send_back_what_one_sent() -> None:
    trace = """
        cell 100us
        step   |..............|..............|..............|
        main   |c-oSSSoc--nnnn|c-oSSSoc--nnnn|c-oSSSoc--nnnn|
        gpu 7  |hhKKKKKKdd....|hhKKKKKKdd....|hhKKKKKKdd....|
    """
    (finding,) = find(DeviceHostPingPong, trace, legend=LEGEND) or ()
    assert finding.saving is not None
    # Two trips of 4 cells on the host, and the copies of each: 2 and 2 cells.
    assert finding.saving.high_ns == 2 * 800_000


def test_trips_that_overlap_device_work_cost_nothing() -> None:
    # Activations kept on the host for the backward pass.
    trace = """
        cell 100us
        step   |..............|..............|
        main   |oc--oooooc-SSS|oc--oooooc-SSS|
        gpu 7  |KKddKKKKKhhKKK|KKddKKKKKhhKKK|
    """
    assert find(DeviceHostPingPong, trace, legend=LEGEND) == ()


def test_trips_in_few_steps_are_left_alone() -> None:
    trace = """
        cell 100us
        step   |..............|......|......|
        main   |oc--nnnnc-oSSS|ooSSSS|ooSSSS|
        gpu 7  |KKdd....hhKKKK|KKKKKK|KKKKKK|
    """
    assert find(DeviceHostPingPong, trace, legend=LEGEND) == ()


def test_just_below_and_just_above_the_limits() -> None:
    def found(**settings: float) -> bool:
        return bool(find(DeviceHostPingPong, SLOW, legend=LEGEND, settings=settings))

    # 8 of 14 cells are lost; all 4 between the copies are idle; 1 MiB.
    assert found(minimum_share=0.57)
    assert not found(minimum_share=0.58)
    assert found(minimum_idle_share=0.99)
    assert not found(minimum_idle_share=1.0)
    assert found(minimum_bytes=1 << 20)
    assert not found(minimum_bytes=(1 << 20) + 1)


def test_programs_without_a_framework_have_arrays() -> None:
    (finding,) = find(DeviceHostPingPong, SLOW, legend=LEGEND, framework="none") or ()
    assert finding.title == "Keep these arrays on the device"
    assert "for arrays that go to the host" in finding.summary
    assert "tensor" not in finding.summary
