from __future__ import annotations

from tb_perfadvisor.rules.compute.dominant_operators import DominantOperators
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.testing import TraceBuilder, check_rule, find, operator
from tb_perfadvisor.testing.builder import ms
from tb_perfadvisor.trace import Trace

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
