from __future__ import annotations

from tb_perfadvisor.rules.communication.overlap import PipelineBubble
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import collective
from tb_perfadvisor.trace import Trace

# The stage waits 6 ms longer for the first message than for the others; or all are sent early.
SLOW = """
    cell 1ms
    step   |..............................|..............................|
    main   |o'o'o'o'SSSSSSSSSSSSSSSSSSSSSS|o'o'o'o'SSSSSSSSSSSSSSSSSSSSSS|
    gpu 7  |........KKKKKKKK..KKKK..KKKK..|........KKKKKKKK..KKKK..KKKK..|
    gpu 13 |RRRRRRRR........RR....RR....RR|RRRRRRRR........RR....RR....RR|
"""
FIXED = """
    cell 1ms
    step   |.................|.................|
    main   |o'o'o'o'SSSSSSSSS|o'o'o'o'SSSSSSSSS|
    gpu 7  |.KKKKKKKKKKKKKKKK|.KKKKKKKKKKKKKKKK|
    gpu 13 |RR..RR..RR..RR...|RR..RR..RR..RR...|
"""
EVEN = """
    cell 1ms
    step   |............................|............................|
    main   |o'o'SSSSSSSSSSSSSSSSSSSSSSSS|o'o'SSSSSSSSSSSSSSSSSSSSSSSS|
    gpu 7  |....KKKKKKKKKKKKKKKKKKKK....|....KKKKKKKKKKKKKKKKKKKK....|
    gpu 13 |RRRR....................TTTT|RRRR....................TTTT|
"""
# As recorded by HolisticTraceAnalysis. The call that launches it tells sends from receives.
NAME = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"
LEGEND = {"R": collective(NAME, "recv"), "T": collective(NAME, "send")}


def stage(text: str) -> Trace:
    return draw(text, legend=LEGEND, rank=1, world_size=4, backend="nccl")


def test_saves_half_of_what_the_fastest_message_does_not_need() -> None:
    checked = check_rule(
        PipelineBubble,
        slow=stage(SLOW),
        fixed=stage(FIXED),
        saves="13ms",
        settings={"minimum_share": 0.06},  # 1 of the fixed 17 ms is left
    )
    (finding,) = checked.findings
    # Messages of 8, 2, 2 and 2 ms: half of the 6 ms of waiting.
    assert checked.expected_ns == 3_000_000
    assert "6.00 ms of each step (20.0 %) is more than the fastest messages need" in finding.summary


def test_messages_that_all_take_as_long_tell_no_bubble() -> None:
    (finding,) = find(PipelineBubble, stage(EVEN)) or ()
    assert (finding.saving, finding.severity) == (None, "low")
    assert "how much of that is transfer is unknown" in finding.summary


def test_messages_beside_compute_pass() -> None:
    covered = EVEN.replace("|....KKKK", "|KKKKKKKK").replace("KKKK....|", "KKKKKKKK|")
    assert find(PipelineBubble, stage(covered)) == ()


def test_unknown_point_to_point_calls_do_not_count() -> None:
    legend = {"R": collective(NAME, "send-recv"), "T": collective(NAME, "send-recv")}
    trace = draw(EVEN, legend=legend, rank=1, world_size=4, backend="nccl")
    assert find(PipelineBubble, trace) == ()


def test_stages_on_the_cpu_have_bubbles_too() -> None:
    """Gloo has no kernels: its calls wait on the host."""
    legend = {
        "R": collective("gloo:recv", "recv", on_host=True),
        "T": collective("gloo:send", "send", on_host=True),
    }
    stages = """
        cell 1ms
        step   |............|............|............|
        main   |RRRROOR'OOT'|RRRROOR'OOT'|RRRROOR'OOT'|
    """
    trace = draw(stages, legend=legend, rank=1, world_size=4, backend="gloo")
    (finding,) = find(PipelineBubble, trace) or ()
    # Messages of 4, 1 and 1 ms in each of three steps: half of 3 ms.
    assert finding.saving is not None
    assert finding.saving.expected_ns == 3 * 1_500_000
