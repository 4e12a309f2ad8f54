from __future__ import annotations

from tb_perfadvisor.rules.launch.graph_breaks import GraphBreaks
from tb_perfadvisor.rules.launch.launch_bound import LaunchBound
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import us
from tb_perfadvisor.trace import Trace


def steps(breaks: int, *, nested: bool = True) -> Trace:
    """Two steps of 100 us for each piece: 60 us of guards and Python, then 40 us of work."""
    builder = TraceBuilder()
    length = 100 * (breaks + 1)
    for number in range(2):
        at = number * length
        builder.step(number, us(at), us(at + length))
        for piece in range(breaks + 1):
            start = at + 100 * piece
            end = at + length if nested else start + 100
            name = f"Torch-Compiled Region: {piece}/0"
            builder.operator(name, us(start), us(end), launches=False)
            builder.launch(us(start + 60), us(start + 65))
            builder.kernel("triton_poi_fused_gelu_0", us(start + 60), us(start + 100))
    return builder.build()


def test_half_of_what_the_breaks_cost_is_expected() -> None:
    # The device idles 60 us after each of ten breaks; with a whole graph only once per step.
    whole = TraceBuilder()
    for number in range(2):
        at = 500 * number
        whole.step(number, us(at), us(at + 500))
        whole.operator("Torch-Compiled Region: 0/0", us(at), us(at + 500), launches=False)
        whole.launch(us(at + 60), us(at + 65))
        whole.kernel("triton_poi_fused_gelu_0", us(at + 60), us(at + 500))
    checked = check_rule(GraphBreaks, slow=steps(10), fixed=whole.build(), saves="600us")
    (finding,) = checked.findings
    assert "10 breaks per step" in finding.summary
    assert checked.expected_ns == 300_000


def test_launch_bound_does_not_count_it_again() -> None:
    (alone,) = find(LaunchBound, steps(10, nested=False)) or ()
    assert alone.saving is not None
    # Of the 60 us before each of 11 pieces in both steps, launch-bound counts the first only.
    assert alone.saving.high_ns == 2 * 11 * 60_000
    (launch_bound,) = find(LaunchBound, steps(10)) or ()
    assert launch_bound.saving is not None
    assert launch_bound.saving.high_ns == 2 * 60_000


def test_layers_compiled_one_by_one_are_left_alone() -> None:
    assert find(GraphBreaks, steps(10, nested=False)) == ()


def test_just_below_and_just_above_the_limits() -> None:
    assert find(GraphBreaks, steps(2)) == ()  # three is the minimum
    assert len(find(GraphBreaks, steps(3)) or ()) == 1
    # 180 of 400 us.
    assert len(find(GraphBreaks, steps(3), settings={"minimum_share": 0.44}) or ()) == 1
    assert find(GraphBreaks, steps(3), settings={"minimum_share": 0.46}) == ()


def test_without_torch_compile_it_is_not_applicable() -> None:
    builder = TraceBuilder()
    builder.operator("aten::mm", 0, us(10))
    builder.kernel("sgemm", us(10), us(20))
    assert find(GraphBreaks, builder.build()) is None
