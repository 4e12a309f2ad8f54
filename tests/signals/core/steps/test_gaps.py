from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Need, Signals, why_missing
from tb_perfadvisor.signals.steps.around_steps import (
    evaluation_between_steps,
    work_between_steps,
)
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of
from tb_perfadvisor.trace import Trace


def gaps_ms(trace: Trace) -> list[list[float]]:
    return (Signals(run_of(trace)).between_steps / 1e6).tolist()


@pytest.mark.parametrize("closing", ["B", "z", "Z"])
def test_gap_lasts_from_the_last_backward_or_optimizer_work_to_the_next_fetch(closing: str) -> None:
    trace = draw(
        f"""
        cell 1ms
        step  |..........|..........|
        main  |DDo{closing * 2}pp...|DDo{closing * 2}.....|
        gpu 7 |...KK.....|...KK.....|
        """
    )
    # The closing work ends at 5 and 15; the next fetch comes at 10, after the last none does.
    assert gaps_ms(trace) == [[5, 10], [15, 20]]


def test_without_a_fetch_the_next_forward_ends_the_gap() -> None:
    trace = draw(
        """
        cell 1ms
        step  |..........|..........|
        main  |.ooz......|..oz......|
        gpu 7 |..KK......|..KK......|
        """
    )
    # The optimizer ends at 4 and 14; the next forward comes at 12, after the last none does.
    assert gaps_ms(trace) == [[4, 12], [14, 20]]


def test_an_optimizer_that_ends_after_its_marker_closes_the_step_it_began_in() -> None:
    builder = TraceBuilder("pytorch")
    for number in range(4):
        begin = 10 * number
        builder.step(number, ms(begin), ms(begin + 10))
        builder.operator("aten::mm", ms(begin + 2), ms(begin + 3))
        builder.kernel("gemm", ms(begin + 3), ms(begin + 8))
        # As Lightning with two optimizers: the profiler's step ends inside the optimizer's.
        builder.annotation("Optimizer.step#Adam.step", ms(begin + 9), ms(begin + 11))
    # From the end of each optimizer to the first operator of the next step.
    assert gaps_ms(builder.build()) == [[11, 12], [21, 22], [31, 32]]


def test_forward_work_alone_shows_no_gaps() -> None:
    trace = draw(
        """
        cell 1ms
        step  |.....|.....|
        main  |oo...|oo...|
        gpu 7 |.KK..|.KK..|
        """
    )
    assert gaps_ms(trace) == []


def test_time_outside_the_markers_of_jax() -> None:
    builder = TraceBuilder("jax")
    for number, begin in enumerate((0, 10, 20)):
        builder.step(number, ms(begin), ms(begin + 7))
    assert gaps_ms(builder.build()) == [[7, 10], [17, 20]]


def test_no_gaps_without_steps() -> None:
    assert gaps_ms(TraceBuilder().operator("aten::mm", 0, ms(1)).build()) == []


def test_without_steps_a_backward_pass_shows_no_step_ends() -> None:
    builder = TraceBuilder().operator("autograd::engine::evaluate_function: MmBackward0", 0, ms(1))
    signals = Signals(run_of(builder.build()))
    assert len(signals.steps) == 0
    assert not signals.shows_step_ends


def test_inference_shows_no_step_ends() -> None:
    # Nothing closes a step, so the work between steps is unknown rather than none.
    signals = Signals(
        run_of(draw("cell 1ms\nstep  |....|....|\nmain  |oo..|oo..|\ngpu 7 |KKKK|KKKK|\n"))
    )
    assert not signals.shows_step_ends
    assert why_missing(signals, Need.STEP_ENDS) is not None


def test_forward_pass_before_its_marker_is_not_work_between_steps() -> None:
    # The optimizer ends at 3; metrics are computed until 5; the next forward begins at 6, before
    # the marker at 10, and its backward pass comes at 12.
    builder = TraceBuilder("pytorch")
    builder.step(0, ms(0), ms(10)).step(1, ms(10), ms(20))
    builder.operator("Optimizer.step#SGD.step", ms(1), ms(3), launches=False)
    builder.operator("aten::topk", ms(3), ms(5), launches=False)
    builder.operator("aten::addmm", ms(6), ms(9), launches=False, key="forward")
    builder.operator("AddmmBackward0", ms(12), ms(14), launches=False, forward="forward")
    facts = Signals(run_of(builder.build()))
    assert (work_between_steps(facts) / 1e6).tolist() == [[3, 5]]


def test_validation_is_not_work_of_a_step() -> None:
    # After the optimizer a model is validated in products without a backward node, from 4 to 7,
    # with other work between them; the copy of the next batch at 8 belongs to the step.
    builder = TraceBuilder("pytorch")
    builder.step(0, ms(0), ms(10)).step(1, ms(10), ms(20))
    builder.operator("aten::addmm", ms(0), ms(1), launches=False, key="first")
    builder.operator("AddmmBackward0", ms(1), ms(2), launches=False, forward="first")
    builder.operator("Optimizer.step#SGD.step", ms(2), ms(3), launches=False)
    builder.operator("aten::addmm", ms(4), ms(5), launches=False)
    builder.operator("aten::relu", ms(5), ms(6), launches=False)
    builder.operator("aten::mm", ms(6), ms(7), launches=False)
    builder.operator("aten::to", ms(8), ms(9), launches=False)
    facts = Signals(run_of(builder.build()))
    assert (work_between_steps(facts) / 1e6).tolist() == [[4, 7], [8, 9]]
    assert (evaluation_between_steps(facts) / 1e6).tolist() == [[4, 7]]


def test_named_range_between_steps_is_not_work_of_a_step() -> None:
    builder = TraceBuilder("pytorch")
    builder.step(0, ms(0), ms(10)).step(1, ms(10), ms(20))
    builder.operator("Optimizer.step#SGD.step", ms(1), ms(3), launches=False)
    builder.annotation("ema", ms(4), ms(7))
    builder.operator("aten::lerp_", ms(5), ms(6), launches=False)
    builder.operator("aten::to", ms(8), ms(9), launches=False)
    facts = Signals(run_of(builder.build()))
    assert (evaluation_between_steps(facts) / 1e6).tolist() == [[5, 6]]
