from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Facts, Made, Program
from tb_perfadvisor.rules.precision.double_precision_on_cpu import DoublePrecisionOnCpu
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import us
from tb_perfadvisor.trace import Trace


def program(
    operators: Sequence[tuple[str, int]], *, dtype: str = "double", other_us: int = 1000
) -> Trace:
    """Three steps on the CPU: operators one after the other, and one on 32-bit numbers."""
    length = sum(each for _, each in operators) + other_us
    builder = TraceBuilder()
    for number in range(3):
        at = number * length
        builder.step(number, us(at), us(at + length))
        for name, operator_us in operators:
            shapes, types = [[64, 64], [64, 64]], [dtype] * 2
            until = us(at + operator_us)
            builder.operator(name, us(at), until, shapes=shapes, dtypes=types, launches=False)
            at += operator_us
        builder.annotation("Optimizer.step#Adam.step", us(at), us(at + other_us))
        until = us(at + other_us)
        types = ["float"] if dtype else [""]
        builder.operator("aten::sort", us(at), until, shapes=[[9]], dtypes=types, launches=False)
    return builder.build()


def test_saves_what_32_bits_save() -> None:
    # A product of 4 ms keeps 50 %, a convolution of 4 ms 35 %, and an addition of 2 ms 50 %.
    checked = check_rule(
        DoublePrecisionOnCpu,
        slow=program(
            [("aten::mm", 4000), ("aten::_slow_conv2d_forward", 4000), ("aten::add", 2000)]
        ),
        fixed=program(
            [("aten::mm", 2000), ("aten::_slow_conv2d_forward", 1400), ("aten::add", 1000)],
            dtype="float",
        ),
        saves="5600us",
        scales=False,  # what is shorter than 20 us does not count
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    assert finding.saving.low_ns == 3 * us(0.35 * 4000 + 0.5 * 4000 + 0.25 * 2000)
    assert finding.saving.expected_ns == 3 * us(0.5 * 4000 + 0.65 * 4000 + 0.5 * 2000)
    assert finding.saving.high_ns == 3 * us(0.6 * 4000 + 0.75 * 4000 + 0.75 * 2000)


def test_the_type_of_the_model_tells_where_no_types_were_recorded() -> None:
    def of(dtype: str) -> Trace:
        made = Made("model", "Net", "train.py", 3, "", {"dtype": dtype})
        unknown = program([("aten::mm", 4000)], dtype="")
        return replace(unknown, facts=Facts(program=Program(made=(made,))))

    assert find(DoublePrecisionOnCpu, of("float64"))
    assert find(DoublePrecisionOnCpu, of("float32")) == ()


@pytest.mark.parametrize(
    "trace",
    [
        program([("aten::mm", 4000)], dtype="float"),
        program([("aten::mm", 19)] * 400),
        program([("aten::mm", 500)], other_us=9500),  # 2.5 %
    ],
    ids=["32 bits", "tiny operators", "few operators"],
)
def test_says_nothing_where_little_would_be_saved(trace: Trace) -> None:
    assert find(DoublePrecisionOnCpu, trace) == ()


def test_just_below_and_just_above_the_limit() -> None:
    # Half of 4 of 5 ms: 40 %.
    trace = program([("aten::mm", 4000)])
    assert find(DoublePrecisionOnCpu, trace, settings={"minimum_share": 0.41}) == ()
    assert find(DoublePrecisionOnCpu, trace, settings={"minimum_share": 0.39})
