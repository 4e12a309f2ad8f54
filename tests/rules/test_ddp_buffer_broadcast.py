from __future__ import annotations

from tb_perfadvisor.rules.communication.redundancy import DdpBufferBroadcast
from tb_perfadvisor.rules.launch.host_work import PythonOverhead
from tb_perfadvisor.rules.launch.launching import LaunchBound
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import collective, host, operator

# As in the forward pass of HolisticTraceAnalysis' nccl_parser_config: pack (P), broadcast (w),
# unpack (u), copy back (y), and then the model.
SLOW = """
    cell 1ms
    step   |............|............|
    main   |fffffffff...|fffffffff...|
    main   |Pwuuyyyyo...|Pwuuyyyyo...|
    gpu 7  |........KKKK|........KKKK|
    gpu 13 |.N..........|.N..........|
"""
FIXED = """
    cell 1ms
    step   |....|....|
    main   |f...|f...|
    main   |o...|o...|
    gpu 7  |KKKK|KKKK|
"""
LEGEND = {
    "f": host("DistributedDataParallel.forward"),
    "P": operator("aten::flatten_dense_tensors", launches=False),
    "w": operator("c10d::broadcast_"),
    "u": operator("aten::unflatten_dense_tensors", launches=False),
    "y": operator("aten::copy_", launches=False),
    "N": collective("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*)", "broadcast"),
}


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(DdpBufferBroadcast, slow=SLOW, fixed=FIXED, saves="8ms", legend=LEGEND)
    (finding,) = checked.findings
    # 7 ms of idle and 1 ms of the broadcast; without the other ranks, that may be waiting.
    assert finding.saving is not None
    assert (finding.saving.low_ns, finding.saving.high_ns) == (2 * 7_000_000, 2 * 8_000_000)
    assert finding.summary == (
        "The device waits 8.00 ms of each step (66.7 %) while DistributedDataParallel broadcasts"
        " the model's buffers; the host needs 8.00 ms for that in each forward pass."
    )


def test_rules_about_slow_host_code_leave_this_idle_out() -> None:
    assert find(PythonOverhead, SLOW, legend=LEGEND) == ()
    assert find(LaunchBound, SLOW, legend=LEGEND) == ()


def test_copies_of_the_model_are_not_counted() -> None:
    # The model's own copy comes after another operator.
    trace = SLOW.replace("Pwuuyyyyo...", "PwuuyyOyo...")
    legend = {**LEGEND, "O": operator("aten::conv2d", launches=False)}
    (finding,) = find(DdpBufferBroadcast, trace, legend=legend) or ()
    assert "the host needs 6.00 ms" in finding.summary


def test_broadcasts_outside_of_ddp_pass() -> None:
    legend = {**LEGEND, "f": host("forward")}
    assert find(DdpBufferBroadcast, SLOW, legend=legend) == ()


def test_broadcasts_that_overlap_device_work_pass() -> None:
    """The host is far ahead: the device still computes the previous step."""
    trace = """
        cell 1ms
        step   |.........|.........|.........|
        main   |fffffffff|fffffffff|fffffffff|
        main   |Pwuuyyyyo|Pwuuyyyyo|Pwuuyyyyo|
        gpu 7  |KKKKKKKKK|KKKKKKKKK|KKKKKKKKK|
        gpu 13 |.N.......|.N.......|.N.......|
    """
    assert find(DdpBufferBroadcast, trace, legend=LEGEND) == ()


def test_just_below_and_just_above_the_limit() -> None:
    # 8 of 12 ms.
    for share, is_found in ((0.67, False), (0.66, True)):
        found = find(DdpBufferBroadcast, SLOW, settings={"minimum_share": share}, legend=LEGEND)
        assert bool(found) is is_found
