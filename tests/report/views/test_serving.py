"""The serving view, worked out by hand."""

from __future__ import annotations

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.report.views.serving import make_serving_view
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import draw, run_of, us
from tests.support.server_trace import Served, server_trace

DECODE = Served(decodes=8)
MIXED = Served(decodes=8, prefills=1, prompt_tokens=1000, device_us=20_000, replays=False)
STEPS = (DECODE, MIXED, Served(decodes=9), DECODE)
# A decode step takes 100 µs to prepare, 5 to launch, 5,000 on the device and 100 of results and
# scheduling. The mixed one launches ten operators of 5 µs in place of the graph.
DECODE_NS, MIXED_NS = us(5205), us(20_250)


def test_the_steps_by_kind() -> None:
    view = make_serving_view(Signals(run_of(server_trace(STEPS))))
    assert view is not None
    mixed, decode = view.kinds
    assert (mixed.kind, mixed.steps, mixed.requests, mixed.prefill_tokens) == ("mixed", 1, 9, 1000)
    assert (mixed.period_ns, mixed.device_ns) == (MIXED_NS, us(20_000))
    assert (mixed.replayed_steps, mixed.graph_share, mixed.launches) == (0, 0, 10)
    # 8 and 9 requests; what follows the last step is not known.
    assert (decode.steps, decode.requests, decode.period_ns) == (2, 8.5, DECODE_NS)
    assert (decode.replayed_steps, decode.graph_share, decode.launches) == (2, 1, 0)
    assert decode.tokens_per_s == pytest.approx(17 / (2 * DECODE_NS / 1e9))
    assert decode.captured_requests is None
    assert view.step_kind == ["decode", "mixed", "decode"]
    assert view.step_ns == [DECODE_NS, MIXED_NS, DECODE_NS]
    assert (view.step_requests, view.step_tokens) == ([8, 9, 9], [8, 1008, 9])
    assert view.generated_per_s == pytest.approx(25 / ((2 * DECODE_NS + MIXED_NS) / 1e9))


def test_what_the_host_does_meanwhile() -> None:
    view = make_serving_view(Signals(run_of(server_trace(STEPS))))
    assert view is not None
    phases = {phase.phase: phase.idle_ns for phase in view.phases}
    # Of each step: 100 µs, and twice 50.
    assert phases["Preparing inputs"] == us(100)
    assert phases["Scheduling"] == phases["Processing results"] == us(50)


def test_a_single_step_has_the_times_of_the_device() -> None:
    view = make_serving_view(Signals(run_of(server_trace([DECODE]))))
    assert view is not None
    assert (view.is_device_time, view.step_ns) == (True, [us(5000)])
    assert (view.kinds[0].period_ns, view.generated_per_s) == (None, None)
    assert view.floor.startswith("What a decode step takes at least is unknown. The shapes of")


def test_other_programs_have_no_view() -> None:
    assert make_serving_view(Signals(run_of(draw("cell 1ms\nmain |oo..|\ngpu 7 |.KK.|")))) is None


def test_the_key_numbers() -> None:
    numbers = {number.id: number for number in analyze(run_of(server_trace(STEPS))).key_numbers}
    decode = numbers["decode-step"]
    assert (decode.label, decode.value) == ("Decode step", DECODE_NS)
    assert decode.notes == ["8.5 requests", "device 5.00 ms"]
    assert numbers["generated-tokens-per-second"].value == pytest.approx(
        25 / ((2 * DECODE_NS + MIXED_NS) / 1e9)
    )
    # 8 + 1,008 + 9 tokens in three steps.
    assert numbers["tokens-per-second"].notes == ["341.7 per step and rank"]


def test_a_step_of_unknown_length_shows_the_time_of_the_device() -> None:
    numbers = {number.id: number for number in analyze(run_of(server_trace([DECODE]))).key_numbers}
    assert numbers["decode-step"].label == "Decode step on device"
    assert numbers["decode-step"].value == us(5000)
    assert "generated-tokens-per-second" not in numbers
