from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Facts, Machine
from tb_perfadvisor.rules.compute.kernels import DominantOperators
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, operator
from tb_perfadvisor.testing.builder import ms
from tb_perfadvisor.trace import Trace
from tests.support.tool_results import generic_step, input_pipeline, read, tensorflow_stats

LOW = {"minimum_share": 0.33}
LEGEND = {
    letter: operator(f"aten::{name}", launches=False)
    for letter, name in {
        "m": "mm",
        "l": "linear",
        "r": "relu",
        "s": "softmax",
        "c": "copy_",
    }.items()
}
# Of 20 ms: linear 12, of which mm takes 8; softmax 3; relu 2, copy_ 1.
SLOW = """
    cell 1ms
    step   |....................|....................|
    main   |llllllllllllsssrrc..|llllllllllllsssrrc..|
    main   |..mmmmmmmm..........|..mmmmmmmm..........|
"""
FIXED = """
    cell 1ms
    step   |....................|....................|
    main   |.s..r..c..l.........|.s..r..c..l.........|
"""


def test_names_the_operators_with_the_most_time_of_their_own() -> None:
    checked = check_rule(
        DominantOperators, settings={"minimum_share": 0.33}, slow=SLOW, fixed=FIXED, legend=LEGEND
    )
    (finding,) = checked.findings
    # 8 + 4 + 3 of 20 ms.
    assert finding.summary == (
        "15.0 ms of each step (75.0 %) goes into three operators: aten::mm (40.0 %), aten::linear"
        " (20.0 %) and aten::softmax (15.0 %)."
    )
    assert (finding.saving, finding.severity) == (None, "low")
    assert finding.instance == "aten::mm, aten::linear and aten::softmax"


def test_the_title_leaves_out_operators_with_little_time() -> None:
    # 14, 5 and 1 of 20 ms.
    trace = """
        cell 1ms
        step   |....................|....................|
        main   |mmmmmmmmmmmmmmlllllr|mmmmmmmmmmmmmmlllllr|
        main   |...c................|...c................|
    """
    (finding,) = find(DominantOperators, trace, legend=LEGEND)
    assert finding.instance == "aten::mm and aten::linear"


def test_just_below_and_just_above_the_limit() -> None:
    assert find(DominantOperators, SLOW, settings={"minimum_share": 0.76}, legend=LEGEND) == ()
    assert find(DominantOperators, SLOW, settings={"minimum_share": 0.74}, legend=LEGEND)


def test_a_program_with_a_device_is_left_to_dominant_kernel() -> None:
    with_device = SLOW + "    gpu 7  |KKK.................|KKK.................|\n"
    assert find(DominantOperators, with_device, legend=LEGEND) == ()


def products(dtype: str) -> Trace:
    """Three products of two layers, and other operators."""
    builder = TraceBuilder().step(0, 0, ms(20))
    for number, module in enumerate(("head (Linear)", "head (Linear)", "tail (Linear)")):
        start = 4 * number
        builder.annotation(f"nn.Module: {module}", ms(start), ms(start + 4))
        builder.operator(
            "aten::mm", ms(start), ms(start + 4), launches=False, dtypes=(dtype, dtype),
            shapes=((8, 8), (8, 8)), frame="model.py:7 forward",
        )  # fmt: skip
    for number, name in enumerate(("relu", "sum", "copy_")):
        builder.operator(f"aten::{name}", ms(12 + number), ms(13 + number), launches=False)
    return builder.build()


def test_lists_modules_lines_and_shapes() -> None:
    (finding,) = find(DominantOperators, products("float"), settings=LOW) or ()
    table = finding.evidence[0]
    assert isinstance(table, Table)
    shapes, line = "[[8,8],[8,8]]", "model.py:7 forward"
    assert table.rows[:2] == (
        ("aten::mm", shapes, "head (Linear)", line, 2, ms(8), 0.4),
        ("aten::mm", shapes, "tail (Linear)", line, 1, ms(4), 0.2),
    )


def test_products_in_16_bits_may_be_slow_on_a_processor() -> None:
    (narrow,) = find(DominantOperators, products("c10::BFloat16"), settings=LOW) or ()
    assert "32 bits" in narrow.remedies[0].text
    (wide,) = find(DominantOperators, products("float"), settings=LOW) or ()
    assert not any("32 bits" in remedy.text for remedy in wide.remedies)


def summed(*operators: tuple[str, str, str, int, float, float]) -> Trace:
    step = generic_step(0, step=10.0, compute=10.0)
    return read(
        {
            "h.input_pipeline.pb": input_pipeline(step),
            "h.tensorflow_stats.pb": tensorflow_stats(*operators),
        }
    )


def test_operators_that_only_move_tensors_in_a_recorders_table() -> None:
    on_device, on_host = (
        find(
            DominantOperators,
            summed(
                ("Device", "MatMul", "a", 10, 85.0, 85.0),
                ("Device", "Cast", "b/Cast", 20, 15.0, 15.0),
                ("Host", "_Send", "c", 4, 300.0, 300.0),
                ("Host", "Cast", "d", 1, 20.0, 20.0),
                ("Host", "MatMul", "e", 1, 80.0, 80.0),
            ),
        )
        or ()
    )
    assert on_device.summary == (
        "Operators that move or convert tensors take 15.0 % of the time of all operators on the"
        " device (Cast 15.0 %)."
    )
    # 320 of 400 us; sending costs more than converting.
    assert on_host.summary.endswith(
        "take 80.0 % of the time of all operators on the host (_Send 75.0 %, Cast 5.0 %)."
    )
    assert "keep them on one" in on_host.remedies[0].text
    assert "Convert once" in on_device.remedies[0].text
    assert (on_host.saving, on_host.severity) == (None, "low")


def test_moving_less_than_the_limit_is_normal() -> None:
    operators = [("Device", name, name, 1, 23.0, 23.0) for name in ("A", "B", "C", "D")]
    assert find(DominantOperators, summed(*operators, ("Device", "Cast", "e", 1, 8.0, 8.0))) == ()
    assert find(DominantOperators, summed(*operators, ("Device", "Cast", "e", 1, 12.0, 12.0)))


def test_three_kinds_of_operators_in_a_recorders_table() -> None:
    operators = [("Device", name, name, 1, 31.0, 31.0) for name in ("A", "B", "C")]
    (finding,) = (
        find(DominantOperators, summed(*operators, ("Device", "D", "d", 1, 7.0, 7.0))) or ()
    )
    assert finding.summary.startswith("Operators of three kinds take 93.0 % of the time")


def test_sums_without_a_table_of_operators() -> None:
    step = input_pipeline(generic_step(0, step=10.0, compute=10.0))
    assert find(DominantOperators, read({"h.input_pipeline.pb": step})) is None


@pytest.mark.parametrize(
    ("sets", "is_asked"), [((), True), (("avx2", "avx512f"), True), (("avx512_bf16",), False)]
)
def test_whoever_has_the_instructions_need_not_compare(
    sets: tuple[str, ...], is_asked: bool
) -> None:
    builder, at = TraceBuilder(), 0
    for name, length in (("mm", 9000), ("add", 200), ("relu", 200), ("copy_", 100)):
        inputs = {"shapes": [[64, 64]], "dtypes": ["c10::BFloat16"], "launches": False}
        builder.operator(f"aten::{name}", at, at + length, **inputs)
        at += length
    facts = Facts(machine=Machine(instruction_sets=sets))
    (finding,) = find(DominantOperators, replace(builder.build(), facts=facts)) or ()
    assert any("Compare with 32 bits" in remedy.text for remedy in finding.remedies) == is_asked
