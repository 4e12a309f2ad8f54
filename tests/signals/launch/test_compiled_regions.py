from __future__ import annotations

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.launch.compiled_regions import (
    ChangingInput,
    changing_inputs,
    compiled_regions,
    graph_breaks,
)
from tb_perfadvisor.testing import TraceBuilder, run_of
from tb_perfadvisor.testing.builder import ms
from tb_perfadvisor.trace import Trace


def signals(trace: Trace) -> Signals:
    return Signals(run_of(trace))


def region(builder: TraceBuilder, name: str, start: float, end: float, length: int) -> None:
    builder.operator(f"Torch-Compiled Region: {name}", ms(start), ms(end), launches=False)
    shapes = [[64, 64], [length, 64]]
    builder.operator("CompiledFunction", ms(start + 1), ms(end - 1), shapes=shapes)


def test_nested_region_follows_a_graph_break() -> None:
    # As PyTorch 2.13 records two breaks: 1 in 0, 2 in 1; then a layer compiled by itself.
    builder = TraceBuilder()
    builder.operator("Torch-Compiled Region: 0/0", 0, ms(10), launches=False)
    builder.operator("Torch-Compiled Region: 1/0", ms(2), ms(9), launches=False)
    builder.operator("Torch-Compiled Region: 2/1", ms(4), ms(8), launches=False)
    builder.operator("Torch-Compiled Region: 3/0", ms(11), ms(12), launches=False)
    found = compiled_regions(signals(builder.build()))
    assert found.frame.tolist() == [0, 1, 2, 3]
    assert found.is_resumed.tolist() == [False, True, True, False]


def test_two_breaks_are_too_few() -> None:
    builder = TraceBuilder()
    builder.operator("Torch-Compiled Region: 0/0", 0, ms(10), launches=False)
    for number in (1, 2):
        builder.operator(f"Torch-Compiled Region: {number}/0", ms(2 * number), ms(9))
    assert len(graph_breaks(signals(builder.build())).row) == 0


def test_inputs_with_changing_shapes() -> None:
    builder = TraceBuilder()
    for call, length in enumerate((34, 35, 34, 36)):
        region(builder, f"0/{call}", 10 * call, 10 * call + 5, length)
        region(builder, "1/0", 10 * call + 5, 10 * call + 9, 8)
    # Two shapes of the changing input are equal: 34 occurs twice.
    assert changing_inputs(signals(builder.build())) == (
        ChangingInput(0, 1, ((34, 64), (35, 64), (36, 64))),
    )


def test_regions_without_numbers_may_be_of_different_functions() -> None:
    # As PyTorch 2.3 records two functions, each called with a different shape.
    builder = TraceBuilder()
    for call, length in enumerate((32, 8)):
        builder.operator("Torch-Compiled Region", ms(call), ms(call + 1), launches=False)
        builder.operator("CompiledFunction", ms(call), ms(call + 0.5), shapes=[[length, 64]])
    found = signals(builder.build())
    assert len(compiled_regions(found).row) == 2
    assert changing_inputs(found) == ()


def test_nothing_is_known_without_shapes() -> None:
    builder = TraceBuilder()
    for call in range(3):
        builder.operator(f"Torch-Compiled Region: 0/{call}", ms(call), ms(call + 1))
    assert changing_inputs(signals(builder.build())) == ()


def test_user_annotation_is_not_a_region() -> None:
    builder = TraceBuilder()
    builder.annotation("Torch-Compiled Region: 99999999999/1", 0, ms(1))
    builder.annotation("my Torch-Compiled Region: 1/1", ms(1), ms(2))
    # The first has an impossible frame number: it is a region with an unknown frame.
    assert compiled_regions(signals(builder.build())).frame.tolist() == [-1]
