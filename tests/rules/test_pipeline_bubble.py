from __future__ import annotations

from tb_perfadvisor.rules.communication.pipeline_bubble import PipelineBubble
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import collective
from tb_perfadvisor.trace import Trace

SLOW = """
    cell 1ms
    step   |............................|............................|
    main   |o'o'SSSSSSSSSSSSSSSSSSSSSSSS|o'o'SSSSSSSSSSSSSSSSSSSSSSSS|
    gpu 7  |....KKKKKKKKKKKKKKKKKKKK....|....KKKKKKKKKKKKKKKKKKKK....|
    gpu 13 |RRRR....................TTTT|RRRR....................TTTT|
"""
FIXED = """
    cell 1ms
    step   |.....................|.....................|
    main   |o'o'SSSSSSSSSSSSSSSSS|o'o'SSSSSSSSSSSSSSSSS|
    gpu 7  |.KKKKKKKKKKKKKKKKKKKK|.KKKKKKKKKKKKKKKKKKKK|
    gpu 13 |RRRR.............TTTT|RRRR.............TTTT|
"""
# As recorded by HolisticTraceAnalysis. The call that launches it tells sends from receives.
NAME = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"
LEGEND = {"R": collective(NAME, "recv"), "T": collective(NAME, "send")}


def stage(text: str) -> Trace:
    return draw(text, legend=LEGEND, rank=1, world_size=4, backend="nccl")


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(PipelineBubble, slow=stage(SLOW), fixed=stage(FIXED), saves="7ms")
    assert checked.expected_ns == 4_000_000


def test_messages_beside_compute_pass() -> None:
    covered = SLOW.replace("|....KKKK", "|KKKKKKKK").replace("KKKK....|", "KKKKKKKK|")
    assert find(PipelineBubble, stage(covered)) == ()


def test_unknown_point_to_point_calls_do_not_count() -> None:
    legend = {"R": collective(NAME, "send-recv"), "T": collective(NAME, "send-recv")}
    trace = draw(SLOW, legend=legend, rank=1, world_size=4, backend="nccl")
    assert find(PipelineBubble, trace) == ()
