"""Also fires on a recording: TensorFlow 2.21, two maps of 2 microseconds on each of 1,024
elements, and 5 ms of other work per step. The rule expects to save 37.6 ms (19 to 42); without the
profiler, the step took 49.0 ms, and 6.5 ms with the batch first."""

from __future__ import annotations

import pytest

from tb_perfadvisor.rules.input.tfdata import TfdataPerElementMap
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, ms, us
from tb_perfadvisor.testing.symbols import function_run, host, iterator
from tb_perfadvisor.trace import EventKind, Trace


def recording(
    *, calls: int, call_us: float, run_us: float, shapes: str = "[8]", kernel_ms: float = 4.0
) -> Trace:
    """Two steps that wait for a batch of mapped elements, one call after the other."""
    builder = TraceBuilder("tensorflow")
    at = 0
    for step in range(2):
        start, batch_ns = at, calls * us(call_us)
        end = start + batch_ns + ms(kernel_ms)
        builder.step(step, start, end)
        wait = host("IteratorGetNextOp::DoCompute", EventKind.INPUT_WAIT)
        builder.add(wait, start, start + batch_ns, thread="main")
        batch = iterator("Root::BatchV2", iterator=1, batch_size=calls)
        builder.add(batch, start, start + batch_ns, thread="main")
        for call in range(calls):
            begin, run = start + call * us(call_us), 1 + step * calls + call
            element = iterator(
                "Root::BatchV2::Map", iterator=2, parent=1, shapes=shapes, types="float"
            )
            builder.add(element, begin, begin + us(call_us), thread="main")
            started = function_run(run, "InstantiatedCapturedFunction::Run")
            builder.add(started, begin, begin + us(call_us), thread="main")
            executed = function_run(run, "ExecutorState::Process")
            builder.add(executed, begin, begin + us(run_us), thread="pool")
        builder.operator("model/MatMul:MatMul", start + batch_ns, start + batch_ns + us(10))
        builder.kernel("gemm", start + batch_ns, end)
        at = end
    return builder.build()


def test_saves_what_the_fix_saves() -> None:
    # 100 calls of 20 us whose work is 2 us: a batch needs the 0.2 ms, not the other 1.8 ms.
    check_rule(
        TfdataPerElementMap,
        slow=recording(calls=100, call_us=20, run_us=2),
        fixed=recording(calls=1, call_us=200, run_us=190),
        saves=ms(1.8),
    )


@pytest.mark.parametrize(
    "trace",
    [
        recording(calls=63, call_us=20, run_us=2),
        recording(calls=100, call_us=40, run_us=31),
        # Elements of 16,388 bytes.
        recording(calls=100, call_us=20, run_us=2, shapes="[4097]"),
        recording(calls=100, call_us=20, run_us=2, shapes="<unknown>"),
    ],
    ids=["few calls", "long calls", "large elements", "elements of unknown size"],
)
def test_is_silent_if_calls_are_not_the_cost(trace: Trace) -> None:
    assert find(TfdataPerElementMap, trace) == ()
