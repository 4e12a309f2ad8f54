"""Where the work of steps ends that Keras marks, callbacks included."""

from __future__ import annotations

from tb_perfadvisor.signals.core.steps.markers import ends_of_functions
from tb_perfadvisor.testing import TraceBuilder, ms
from tb_perfadvisor.trace import EventKind, Trace

TRAIN = "EagerExecute: __inference_one_step_on_data_541"
EVALUATE = "EagerExecute: __inference_test_function_77"


def ends_ms(trace: Trace) -> list[float]:
    return [end / ms(1) for end in ends_of_functions(trace, trace.rows(EventKind.STEP)).tolist()]


def marked(count: int) -> TraceBuilder:
    """Markers of 100 ms each."""
    builder = TraceBuilder("tensorflow")
    for number in range(count):
        builder.step(number, ms(100 * number), ms(100 * number + 100), name="Profiled batch")
    return builder


def test_a_step_ends_with_the_last_call_of_the_function_that_takes_most_time() -> None:
    builder = marked(2)
    for at in (0, 30, 100):
        builder.annotation(TRAIN, ms(at), ms(at + 25))
    builder.annotation(EVALUATE, ms(60), ms(90))  # 30 ms, and the others 75
    assert ends_ms(builder.build()) == [55, 125]


def test_a_marker_without_the_function_keeps_its_end() -> None:
    builder = marked(3)
    builder.annotation(TRAIN, ms(0), ms(25))
    builder.annotation(EVALUATE, ms(110), ms(120))
    builder.annotation(TRAIN, ms(200), ms(225))
    assert ends_ms(builder.build()) == [25, 200, 225]


def test_without_calls_all_markers_keep_their_ends() -> None:
    assert ends_ms(marked(2).build()) == [100, 200]


def test_a_call_of_another_thread_says_nothing() -> None:
    builder = marked(1)
    builder.annotation(TRAIN, ms(0), ms(25))
    builder.annotation(TRAIN, ms(40), ms(90), thread="worker")
    assert ends_ms(builder.build()) == [25]
