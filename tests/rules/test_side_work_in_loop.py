from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Facts, Line, Lines, SideWork
from tb_perfadvisor.rules.launch.host_work import SideWorkInLoop
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, ms
from tb_perfadvisor.trace import Trace

STEP = Line("train.py", 41, 0.2, "train", "torch.nn.modules.module._call_impl")


def program(*lines: Line, looks: int = 1000, step_ms: float = 10) -> Trace:
    """Three steps on the CPU, of a run in which some lines were seen."""
    builder = TraceBuilder()
    for number in range(3):
        start, end = ms(number * step_ms), ms((number + 1) * step_ms)
        builder.step(number, start, end)
        builder.operator("aten::mm", start, end, launches=False)
    return replace(builder.build(), facts=Facts(lines=Lines(looks * 0.04, looks, lines)))


def figures(share: float) -> Line:
    return Line("train.py", 52, share, "train", "matplotlib.pyplot.pause", "figures")


def test_saves_nine_tenths_of_the_share() -> None:
    checked = check_rule(
        SideWorkInLoop,
        slow=program(figures(0.5), STEP),
        fixed=program(figures(0.01), STEP, step_ms=5.5),
        saves="4500us",  # 0.9 x 50 % of 10 ms
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # The standard error of 50 % of 1,000 looks is 1.58 points.
    assert finding.saving.low_ns == pytest.approx(ms(30) * (0.35 - 2 * 0.0158), rel=0.001)
    assert finding.saving.high_ns == pytest.approx(ms(30) * 0.5158, rel=0.001)
    assert (
        "50.0 % of the time in train.py:52 train, which calls matplotlib.pyplot.pause"
        in finding.summary
    )


def test_names_all_kinds_and_adds_them_up() -> None:
    saves = Line("train.py", 60, 0.1, "", "torch.serialization.save", "checkpoints")
    (finding,) = find(SideWorkInLoop, program(figures(0.2), STEP, saves))
    assert finding.instance == (
        "drawing figures and saving checkpoints takes 30.0 % of the run (train.py:52 train)"
    )


def test_texts_of_tensors_are_made_where_they_are_written() -> None:
    texts = Line("train.py", 68, 0.7, "step", "torch._tensor.__format__", "texts")
    (finding,) = find(SideWorkInLoop, program(texts, STEP)) or ()
    assert finding.instance == (
        "making texts of tensors takes 70.0 % of the run (train.py:68 step)"
    )
    assert finding.remedies[0].snippet.startswith("log.debug(")


def test_nothing_without_enough_looks_or_without_such_work() -> None:
    assert find(SideWorkInLoop, program(figures(0.5), looks=19)) == ()
    assert find(SideWorkInLoop, program(figures(0.5), looks=20))
    # 2 of 20 may be chance: the standard error is 6.7 points.
    assert find(SideWorkInLoop, program(figures(0.1), looks=20)) == ()
    assert find(SideWorkInLoop, program(STEP)) == ()
    assert find(SideWorkInLoop, replace(program(STEP), facts=Facts())) is None


def test_just_below_and_just_above_the_limit() -> None:
    assert find(SideWorkInLoop, program(figures(0.049), STEP)) == ()
    assert find(SideWorkInLoop, program(figures(0.051), STEP))


def evaluation(share: float, kind: SideWork = "every few steps") -> Line:
    return Line("train.py", 81, share, "train", "__main__.recall", kind)


def test_what_the_loop_does_every_few_steps() -> None:
    (finding,) = find(SideWorkInLoop, program(evaluation(0.3), STEP))
    assert finding.title == "Evaluate less often, or on fewer samples"
    assert finding.instance.startswith("what the loop does every few steps takes 30.0 % of the run")
    assert finding.instance.endswith("(train.py:81 train)")
    assert finding.saving is not None
    assert finding.saving.expected_ns == pytest.approx(ms(30) * 0.27, rel=0.001)


def test_what_runs_between_epochs_may_take_a_fifth() -> None:
    assert find(SideWorkInLoop, program(evaluation(0.19, "between epochs"), STEP)) == ()
    (finding,) = find(SideWorkInLoop, program(evaluation(0.3, "between epochs"), STEP))
    assert finding.saving is not None
    assert finding.saving.expected_ns == pytest.approx(ms(30) * 0.15, rel=0.001)  # half as often


@pytest.mark.parametrize(
    "calls",
    [
        "",
        "__main__.<lambda>",
        "__main__.next_batch",
        "torch.utils.data.dataloader.__next__",
        "torch.utils.data.dataloader.__iter__",
    ],
)
@pytest.mark.parametrize("kind", ["every few steps", "between epochs"])
def test_only_what_evaluates_is_an_evaluation(kind: SideWork, calls: str) -> None:
    line = replace(evaluation(0.5, kind), calls=calls)
    assert find(SideWorkInLoop, program(line, STEP)) == ()


@pytest.mark.parametrize(
    "calls",
    [
        "train.eval_step",
        "model.neural_network.predict",
        "torch.nn.modules.module._wrapped_call_impl",
        "torch.utils._contextlib.decorate_context",
        "tensorflow.python.eager.polymorphic_function.polymorphic_function.__call__",
    ],
)
def test_names_models_and_no_gradients_tell_of_an_evaluation(calls: str) -> None:
    line = replace(evaluation(0.5), calls=calls)
    assert find(SideWorkInLoop, program(line, STEP))


@pytest.mark.parametrize(
    ("calls", "share", "count"),
    [
        ("torch._tensor.backward", 0.11, 0),
        ("tensorflow.python.eager.backprop.gradient", 0.11, 0),
        ("torch._tensor.backward", 0.09, 1),  # a look may be late by a line
        ("torch.optim.lr_scheduler.step", 0.11, 1),
    ],
)
def test_a_model_that_is_trained_more_rarely_is_no_evaluation(
    calls: str, share: float, count: int
) -> None:
    forward = replace(evaluation(0.4), calls="torch.nn.modules.module._wrapped_call_impl")
    other = replace(evaluation(share), line=82, calls=calls)
    assert len(find(SideWorkInLoop, program(forward, other, STEP)) or ()) == count


def test_a_device_may_be_waited_for_there() -> None:
    trace = program(evaluation(0.3), STEP)
    builder = TraceBuilder()
    for number in range(3):
        builder.step(number, ms(10 * number), ms(10 * number + 10))
        builder.kernel("gemm", ms(10 * number), ms(10 * number + 9))
    assert find(SideWorkInLoop, replace(builder.build(), facts=trace.facts)) == ()


def test_what_few_steps_learn_from_is_no_evaluation() -> None:
    # 28 of the 40 s are 2,800 steps of 10 ms: 19 or 28 after each time.
    often, seldom = (
        replace(evaluation(0.3, "between epochs"), spells=spells) for spells in (145, 100)
    )
    assert find(SideWorkInLoop, program(often, STEP)) == ()
    assert find(SideWorkInLoop, program(seldom, STEP))


def writing(operator: str, *, last: int = 3, function: bool = True) -> Trace:
    """Four steps of a compiled function for 10 ms, and 5 ms that end with an operator.

    The operator is another one after the step `last`.
    """
    builder = TraceBuilder("tensorflow")
    for number in range(4):
        at = 15 * number
        name = "__inference_train_step_7" if function else "MatMul"
        builder.operator(f"EagerExecute: {name}", ms(at), ms(at + 10))
        builder.operator("EagerExecute: Sigmoid", ms(at + 10), ms(at + 13))
        ends = operator if number <= last else "Identity"
        builder.operator(f"EagerExecute: {ends}", ms(at + 14), ms(at + 15))
        builder.step(number, ms(at), ms(at + 15))
    return builder.build()


def test_operators_that_write_files_are_found_without_lines() -> None:
    (finding,) = find(SideWorkInLoop, writing("WriteSummary")) or ()
    assert finding.saving is not None
    assert finding.instance == "writing summaries takes 33.3 % of the steps"
    found = finding.saving.low_ns, finding.saving.expected_ns, finding.saving.high_ns
    assert found == (4 * ms(3.5), 4 * ms(4.5), 4 * ms(5))  # of 5 ms in each step
    (finding,) = find(SideWorkInLoop, writing("SaveV2", last=1)) or ()
    assert finding.instance.startswith("saving checkpoints takes 16.7 %")


def test_one_checkpoint_or_an_eager_step_is_no_side_work() -> None:
    assert find(SideWorkInLoop, writing("SaveV2", last=0)) is None
    # Where the step is eager, nothing tells its operators from those that write.
    assert find(SideWorkInLoop, writing("WriteSummary", function=False)) is None
    assert find(SideWorkInLoop, writing("Identity")) is None  # nobody looked at lines
