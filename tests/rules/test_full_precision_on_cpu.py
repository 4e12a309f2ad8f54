from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Examined, Facts, Machine, Made, Observed, Program
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.rules.precision.wide_numbers import FullPrecisionOnCpu
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import us
from tb_perfadvisor.trace import Trace

ZEN4 = Machine(instruction_sets=("avx2", "avx512_bf16", "avx512f"))
WITH_AMX = Machine(instruction_sets=("amx_bf16", "avx2", "avx512_bf16", "avx512f"))
LARGE = [[2048, 768], [768, 768]]
PLAIN = Machine(instruction_sets=("avx2", "avx512f"))


def program(
    products_us: Sequence[int],
    *,
    dtype: str = "float",
    name: str = "aten::mm",
    machine: Machine = ZEN4,
    weights: int = 0,
    shapes: list[list[int]] | None = None,
) -> Trace:
    """Three steps on the CPU: products one after the other, and 1 ms of an optimizer."""
    length = sum(products_us) + 1000
    builder = TraceBuilder()
    for number in range(3):
        at = number * length
        builder.step(number, us(at), us(at + length))
        for product_us in products_us:
            types = [dtype] * 2
            until = us(at + product_us)
            builder.operator(name, us(at), until, shapes=shapes, dtypes=types, launches=False)
            at += product_us
        builder.annotation("Optimizer.step#Adam.step", us(at), us(at + 1000))
        builder.operator("aten::sort", us(at), us(at + 1000), launches=False)
    made = Made("model", "Net", "train.py", 3, "", {"parameter_bytes": weights})
    facts = Facts(machine=machine, program=Program(made=(made,)))
    return replace(builder.build(), facts=facts)


def test_without_stacks_the_lines_that_were_looked_at_are_named() -> None:
    trace = program([4000, 4000])
    assert not [*table_cells(trace)]
    line = Observed("lines", "aten::mm", "net.py", 7, 0.8, "forward", calls=2)
    other = Observed("lines", "aten::sort", "sgd.py", 9, 0.2, "step", calls=1)
    facts = replace(trace.facts, examined=Examined(4, 0.04, 3, observed=(other, line)))
    assert "net.py:7 forward" in table_cells(replace(trace, facts=facts))
    assert "sgd.py:9 step" not in table_cells(replace(trace, facts=facts))


def table_cells(trace: Trace) -> set[object]:
    """What the last table of the finding holds, if it is of lines."""
    (finding,) = find(FullPrecisionOnCpu, trace) or ()
    table = finding.evidence[-1]
    return {cell for row in table.rows for cell in row} if isinstance(table, Table) else set()


def test_saves_what_bfloat16_saves() -> None:
    # Two products of 4 ms: 52 % of that is left, and each is cast for 40 us.
    checked = check_rule(
        FullPrecisionOnCpu,
        slow=program([4000, 4000]),
        fixed=program([2120, 2120], dtype="c10::BFloat16"),
        saves="3760us",
        scales=False,  # casts stay
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    assert finding.saving.expected_ns == 3 * us(2 * (0.48 * 4000 - 40))
    assert finding.saving.low_ns == 3 * us(2 * (0.3 * 4000 - 70))
    assert finding.saving.high_ns == 3 * us(2 * (0.56 * 4000 - 20))
    assert finding.severity == "medium"  # it costs accuracy
    assert ("device", "cpu") in finding.remedies[0].values


def test_weights_are_cast_in_each_step() -> None:
    # 23 MB, read and written three times at 23 GB/s: 3 ms of the 3.76 that are gained.
    assert find(FullPrecisionOnCpu, program([4000, 4000], weights=23_000_000))
    assert find(FullPrecisionOnCpu, program([4000, 4000], weights=29_000_000)) == ()


@pytest.mark.parametrize(
    "trace",
    [
        program([4000, 4000], machine=PLAIN),
        program([4000, 4000], machine=Machine()),  # unknown
        program([4000, 4000], dtype="double"),
        program([4000, 4000], dtype="c10::BFloat16"),
        program([80] * 100),  # casts cost as much as they bring
        program([4000, 4000], name="aten::cumsum"),
    ],
    ids=["no bfloat16", "unknown machine", "64 bits", "16 bits", "small products", "no product"],
)
def test_says_nothing_where_it_would_not_help(trace: Trace) -> None:
    assert find(FullPrecisionOnCpu, trace) == ()


@pytest.mark.parametrize(
    ("machine", "shapes", "saved"),
    [
        # 2048 x 768 x 768 multiplications of 2048 x 768 + 768 x 768 + 2048 x 768 numbers: 323 each.
        # AMX leaves 0.22 + 45 / 323 = 0.359 of 4 ms, and 0.04 ms of casts.
        (WITH_AMX, LARGE, 4 * (1 - 0.22 - 45 / 323.37) - 0.04),
        (ZEN4, LARGE, 4 * (1 - 0.44 - 45 / 323.37) - 0.04),
        # 4096 x 128 x 512 of 4096 x 128 + 128 x 512 + 4096 x 512 numbers: 99.9 each.
        (WITH_AMX, [[4096, 128], [128, 512]], 4 * (1 - 0.22 - 45 / 99.9) - 0.04),
    ],
)
def test_shapes_tell_what_is_left(machine: Machine, shapes: list[list[int]], saved: float) -> None:
    trace = program([4000], machine=machine, shapes=shapes)
    (finding,) = find(FullPrecisionOnCpu, trace, settings={"minimum_share": 0.01}) or ()
    assert finding.saving is not None
    assert finding.saving.expected_ns / 3e6 == pytest.approx(saved, abs=0.001)


@pytest.mark.parametrize("rows", [8, 64, 4096])
def test_narrow_layers_gain_nothing(rows: int) -> None:
    # Of 64 x 64 weights: at most 64 x 64 / 128 = 32 multiplications for each number.
    assert find(FullPrecisionOnCpu, program([4000], shapes=[[rows, 64], [64, 64]])) == ()


def test_just_below_and_just_above_the_limit() -> None:
    # 3.76 of 9 ms: 41.8 %.
    trace = program([4000, 4000])
    assert find(FullPrecisionOnCpu, trace, settings={"minimum_share": 0.42}) == ()
    assert find(FullPrecisionOnCpu, trace, settings={"minimum_share": 0.415})


def test_avx512_of_intel_is_no_faster_than_32_bits() -> None:
    for machine, processor, is_found in (
        (ZEN4, "AMD EPYC 9R14", True),
        (WITH_AMX, "Intel(R) Xeon(R) Processor", True),
        (ZEN4, "Intel(R) Xeon(R) Processor", False),
    ):
        trace = program([4000, 4000], machine=replace(machine, processor=processor))
        assert bool(find(FullPrecisionOnCpu, trace)) == is_found
