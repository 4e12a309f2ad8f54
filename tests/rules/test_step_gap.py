from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Facts, Recording
from tb_perfadvisor.rules.launch.host_work import StepGap
from tb_perfadvisor.testing import TraceBuilder, check_rule, draw, find
from tb_perfadvisor.testing.builder import ms
from tests.support.server_trace import Served, server_trace

SLOW = """
    cell 1ms
    step   |..........|..........|..........|
    main   |oBz.uuuu..|oBz.uuuu..|oBz.uuuu..|
    gpu 7  |KKK.......|KKK.......|KKK.......|
"""
FIXED = """
    cell 1ms
    step   |...|...|...|
    main   |oBz|oBz|oBz|
    gpu 7  |KKK|KKK|KKK|
"""


def test_saves_what_the_fix_saves() -> None:
    # After the optimizer 7 ms pass until the next forward pass, 4 of them in the callback.
    checked = check_rule(StepGap, slow=SLOW, fixed=FIXED, saves="7ms")
    saving = checked.findings[0].saving
    assert saving is not None
    assert (saving.low_ns, saving.expected_ns) == (12_000_000, 21_000_000)
    assert "RecMetricModule" in checked.findings[0].summary


def test_waiting_for_input_is_not_between_steps() -> None:
    trace = """
        cell 1ms
        step   |..........|..........|
        main   |oBzDDDDDDD|oBzDDDDDDD|
        gpu 7  |KKK.......|KKK.......|
    """
    assert find(StepGap, trace) == ()


def test_in_keras_time_outside_step_events_is_between_steps() -> None:
    # The markers cover 4 of 8 ms; the callback between them runs on the training thread.
    builder = TraceBuilder("tensorflow")
    for number in range(3):
        start = number * 8
        builder.step(number, ms(start), ms(start + 4))
        builder.operator("MatMul", ms(start), ms(start + 4), launches=True)
        builder.kernel("sgemm", ms(start), ms(start + 4))
        if number < 2:
            builder.annotation("on_train_batch_end", ms(start + 5), ms(start + 8))
    (finding,) = find(StepGap, builder.build()) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 8_000_000  # two gaps of 4 ms
    # Each gap can overlap 4 ms of the step, minus 2 % of 16 ms of bookkeeping; that is more than
    # the 3 ms of each gap that the callback takes.
    assert finding.saving.low_ns == 8_000_000 - 320_000


@pytest.mark.parametrize(("usual_ms", "finds"), [(10.0, True), (9.0, True), (2.5, False)])
def test_what_recording_adds_is_no_gap(usual_ms: float, finds: bool) -> None:
    # Of 10 ms, 7 pass between steps. Before, whole steps took less than what recording added.
    facts = Facts(recording=Recording("run", step_ns=round(usual_ms * 1e6)))
    assert bool(find(StepGap, replace(draw(SLOW), facts=facts))) is finds


def test_just_below_and_just_above_the_limit() -> None:
    assert find(StepGap, SLOW, settings={"minimum_share": 0.71}) == ()
    assert len(find(StepGap, SLOW, settings={"minimum_share": 0.69}) or ()) == 1


def test_on_the_cpu_high_includes_operators_between_steps() -> None:
    # After the optimizer: 2 ms of callback code, 3 ms of its operators, 2 ms of callback code.
    trace = """
        cell 1ms
        step   |..........|..........|
        main   |oBz..OOO..|oBz..OOO..|
    """
    (finding,) = find(StepGap, trace) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns == 2 * 4_000_000
    assert finding.saving.high_ns == 2 * 7_000_000


def test_what_a_server_does_between_its_steps() -> None:
    # 500 µs of results and 500 of scheduling after each step; the last of six does not count.
    served = Served(decodes=8, device_us=4_000, schedule_us=1_000)
    overlapped = Served(decodes=8, device_us=4_000, schedule_us=0)
    checked = check_rule(
        StepGap,
        slow=server_trace([served] * 6),
        fixed=server_trace([overlapped] * 6),
        saves="1ms",
    )
    (finding,) = checked.findings
    assert any("--async-scheduling" in (remedy.snippet or "") for remedy in finding.remedies)
