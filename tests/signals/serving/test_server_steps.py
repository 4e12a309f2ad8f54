"""What each step of a server does, drawn and by hand."""

from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.steps.server_annotations import StepKind
from tb_perfadvisor.signals.serving.server_steps import (
    ServerSteps,
    generated_per_s,
    server_steps,
    tokens_per_s,
)
from tb_perfadvisor.testing import draw, host, ms, run_of
from tb_perfadvisor.trace import EventKind

LEGEND = {
    "P": host("execute_context_1(500)_generation_4(4)"),
    "d": host("execute_context_0(0)_generation_4(4)"),
    "G": host("cudaGraphLaunch", EventKind.LAUNCH),
}
# Decode steps replay a graph of three kernels, the step with a prompt launches four kernels one by
# one. The device finishes the second step's work after the third step has begun.
SERVER = """
    cell 1ms
    main   |ddd.PPP...ddd...ddd|
    main   |.G..o'''..oG.....G.|
    gpu 7  |.K''H'''..HK''...K'|
"""


def steps_of(trace: str) -> ServerSteps:
    found = server_steps(Signals(run_of(draw(trace, legend=LEGEND))))
    assert found is not None
    return found


def test_what_the_steps_do() -> None:
    steps = steps_of(SERVER)
    assert steps.kind.tolist() == [StepKind.DECODE, StepKind.MIXED, StepKind.DECODE]
    assert steps.requests.tolist() == [4, 5, 4]
    assert steps.tokens.tolist() == [4, 504, 4]
    assert steps.period_ns.tolist() == [ms(4), ms(6), ms(6)]
    assert steps.device_ns.tolist() == [ms(3), ms(4), ms(4)]
    assert steps.graphs.tolist() == [1, 0, 1]
    assert steps.launches.tolist() == [0, 4, 1]
    assert steps.graph_events.tolist() == [3, 0, 3]
    assert steps.events.tolist() == [3, 4, 4]


def test_tokens_per_second() -> None:
    steps = steps_of(SERVER)
    # 4 tokens in 4 ms, and 4 in 6 ms.
    assert tokens_per_s(steps, steps.is_kind(StepKind.DECODE)) == pytest.approx(8 / 10e-3)
    # 4 requests decode in each of three steps that take 16 ms.
    assert generated_per_s(steps) == pytest.approx(12 / 16e-3)


def test_accepted_drafts_are_unknown() -> None:
    legend = {**LEGEND, "d": host("execute_context_0(0)_generation_4(16)")}
    steps = server_steps(Signals(run_of(draw(SERVER, legend=legend))))
    assert steps is not None
    assert generated_per_s(steps) is None


def test_the_work_of_a_step_may_run_in_the_next_one() -> None:
    steps = steps_of(
        """
        cell 1ms
        main   |ddd.ddd.ddd.ddd.|
        main   |G...G...G...G...|
        gpu 7  |.KKKKKHHHHHKKKKH|
        """
    )
    assert steps.device_ns.tolist() == [ms(5), ms(5), ms(4)]
    assert steps.first_ns.tolist() == [ms(1), ms(6), ms(11)]


def test_work_on_two_streams_counts_once() -> None:
    steps = steps_of(
        """
        cell 1ms
        main   |d...d...d...d...|
        main   |G...G...G...G...|
        gpu 7  |.KK..KK..KK..KK.|
        gpu 8  |..HH..HH..HH..HH|
        """
    )
    assert steps.device_ns.tolist() == [ms(3)] * 3


def test_one_step_has_no_period() -> None:
    steps = steps_of("cell 1ms\nmain |ddd.....|\nmain |.G......|\ngpu 7 |.K''''..|")
    assert (steps.period_ns.tolist(), steps.device_ns.tolist()) == ([-1], [ms(5)])
    assert not steps.is_periodic
    assert generated_per_s(steps) is None


def test_other_programs_have_none() -> None:
    trace = "cell 1ms\nstep |...|...|...|\nmain |o..|o..|o..|\ngpu 7 |KK.|KK.|KK.|"
    assert server_steps(Signals(run_of(draw(trace)))) is None
