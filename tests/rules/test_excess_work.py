from __future__ import annotations

from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.rules.xla.excess_work import ExcessWork
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.testing.symbols import xla_op
from tb_perfadvisor.trace import Trace
from tests.support.program_values import FIXED, MODULE, SLOW, drawn, program

# Of a v5e: 819 GB/s and 197 TFLOP/s, of which large transfers reach 85 % and products 75 %.
BYTES_PER_US, FLOP_PER_US = 819e3 * 0.85, 197e6 * 0.75

X, W, ALL = "bf16[4096,1024]{1,0}", "bf16[1024,16384]{1,0}", "bf16[4096,16384]{1,0}"
SOME = "bf16[512,16384]{1,0}"
FUSION = f"%fusion = {ALL} fusion({X} %x, {W} %w), kind=kOutput"
SLICED = f"""
    %x = {X} parameter(0)
    %w = {W} parameter(1)
    %logits = {ALL} dot({X} %x, {W} %w), lhs_contracting_dims={{1}} // in fusion
    %mapped = {ALL} tanh({ALL} %logits) // in fusion
    %chosen = {SOME} slice({ALL} %mapped) // in fusion, result
"""
SELECTED = program(f"""
    %x = bf16[512,1024]{{1,0}} parameter(0)
    %w = {W} parameter(1)
    %logits = {SOME} dot(bf16[512,1024]{{1,0}} %x, {W} %w) // in fusion, result
""")
Y = "bf16[4096,2048]{1,0}"
SQUARE = "bf16[1024,2048]{1,0}"
DOT = f"%dot = {Y} dot({X} %x, {SQUARE} %w), lhs_contracting_dims={{1}}"
PRODUCT = f"""
    %x = {X} parameter(0)
    %w = {SQUARE} parameter(1)
    {DOT} // result
"""


def excess_us(finding: Finding) -> float:
    """What a finding expects to save, in µs, over the two steps that are drawn."""
    assert finding.saving is not None
    return finding.saving.expected_ns / 1000


def test_saves_what_nobody_uses() -> None:
    checked = check_rule(
        ExcessWork,
        slow=drawn(SLOW, FUSION, program(SLICED)),
        fixed=drawn(FIXED, FUSION, SELECTED),
        saves=300_000,
        tolerance=0.2,
        exactly=False,
        scales=False,
    )
    (finding,) = checked.findings
    # Of 4096 rows, 512 are used: an eighth of 2 x 4096 x 1024 x 16384 FLOP.
    needed_us = 2 * 4096 * 1024 * 16384 / 8 / FLOP_PER_US
    assert excess_us(finding) == pytest.approx(2 * (400 - needed_us), rel=0.02)
    assert finding.saving is not None
    assert finding.saving.low_ns / 1000 == pytest.approx(400 - needed_us, rel=0.02)
    assert finding.saving.high_ns / 1000 == pytest.approx(2 * (400 - needed_us / 2), rel=0.02)
    assert "12.5 % is needed" in finding.summary


def of_heads(columns: int, weights: str = "parameter({})") -> str:
    """Eight products of one array, in one fusion."""
    x, w, y = f"{TALL} %x", f"bf16[1024,{columns}]{{1,0}}", f"bf16[16384,{columns}]{{1,0}}"
    heads = (
        f"""
        %w{head} = {w} {weights.format(head + 1)}
        %y{head} = {y} dot({x}, {w} %w{head}), lhs_contracting_dims={{1}} // in fusion, result
        """
        for head in range(8)
    )
    return f"%x = {TALL} parameter(0)" + "".join(heads)


TALL = "bf16[16384,1024]{1,0}"
THIN, FLAT = "bf16[16384,64]{1,0}", "bf16[64,1024]{1,0}"
NOTES = (*[""] * 7, ", result")
SUMMED = f"%x0 = {TALL} parameter(0)" + "".join(
    f"""
    %y{head} = {THIN} parameter({2 * head + 1})
    %w{head} = {FLAT} parameter({2 * head + 2})
    %z{head} = {TALL} dot({THIN} %y{head}, {FLAT} %w{head}), lhs_contracting_dims={{1}} // in fusion
    %x{head + 1} = {TALL} add({TALL} %x{head}, {TALL} %z{head}) // in fusion{NOTES[head]}
    """
    for head in range(8)
)
FLOP = 8 * 2 * 16384 * 1024 * 64
SUM_BYTES = 2 * (2 * 16384 * 1024 + 8 * (16384 + 1024) * 64)


@pytest.mark.parametrize(
    ("text", "needed_us"),
    [(of_heads(64), FLOP / FLOP_PER_US), (SUMMED, SUM_BYTES / BYTES_PER_US)],
    ids=["of one array", "added up"],
)
def test_narrow_products_that_could_be_one(text: str, needed_us: float) -> None:
    fusion = f"%fusion = {TALL} fusion({TALL} %x), kind=kOutput"
    (finding,) = find(ExcessWork, drawn(SLOW, fusion, program(text))) or ()
    assert excess_us(finding) == pytest.approx(2 * (400 - needed_us), rel=0.001)
    assert "could be one product" in finding.summary


@pytest.mark.parametrize(
    "text",
    [
        of_heads(128),  # as wide as the matrix unit
        of_heads(64, "dot(bf16[1024,16384]{{1,0}} %y0)").replace(
            "%w0 = bf16[1024,64]{1,0} dot(bf16[1024,16384]{1,0} %y0)",
            "%w0 = bf16[1024,64]{1,0} parameter(1)",
        ),  # the others need the first one's result
    ],
    ids=["wide", "in turn"],
)
def test_products_that_are_better_apart(text: str) -> None:
    fusion = f"%fusion = {TALL} fusion({TALL} %x), kind=kOutput"
    assert find(ExcessWork, drawn(SLOW, fusion, program(text))) == ()


@pytest.mark.parametrize(
    "also",
    [
        f"%sum = f32[4096]{{0}} reduce({ALL} %mapped) // result",
        f"%other = {X} dot({ALL} %logits, {W} %w) // result",
        f"%copy = {ALL} copy({ALL} %logits) // result",
    ],
)
def test_what_something_else_uses_is_needed(also: str) -> None:
    assert find(ExcessWork, drawn(SLOW, FUSION, program(SLICED + also))) == ()


def test_slices_that_a_loop_takes_one_by_one_are_all_used() -> None:
    # Each of eight trips takes another 512 of the 4096 rows.
    text = SLICED.replace(" slice(", " dynamic-slice(").replace(
        "// in fusion, result", "// in other, result, runs=8"
    )
    assert find(ExcessWork, drawn(SLOW, FUSION, program(text))) == ()


@pytest.mark.parametrize(("rows", "is_found"), [(512, True), (4096, False)])
def test_the_gradient_of_a_slice_is_mostly_zeros(rows: int, is_found: bool) -> None:
    part = f"bf16[{rows},16384]{{1,0}}"
    text = f"""
        %x = {X} parameter(0)
        %rows = {part} parameter(1)
        %zero = bf16[] constant(0)
        %filled = {ALL} pad({part} %rows, bf16[] %zero) // in fusion
        %gradient = {W} dot({X} %x, {ALL} %filled) // in fusion, result
    """
    assert len(find(ExcessWork, drawn(SLOW, FUSION, program(text))) or ()) == is_found


def test_saves_what_the_other_devices_do_too() -> None:
    split = program(PRODUCT.replace("parameter(0)", "parameter(0) // parts=4"), devices=4)
    checked = check_rule(
        ExcessWork,
        slow=drawn(SLOW, DOT, program(PRODUCT, devices=4)),
        fixed=drawn(FIXED, DOT, split),
        saves=300_000,
        tolerance=0.2,
        exactly=False,
        scales=False,
    )
    (finding,) = checked.findings
    # A quarter of 2 x 4096 x 1024 x 2048 FLOP takes less than the bytes: x, w and y.
    needed_us = 2 * (4096 * 1024 + 1024 * 2048 + 4096 * 2048) / BYTES_PER_US
    assert excess_us(finding) == pytest.approx(2 * (400 - needed_us), rel=0.02)
    assert "4 devices compute the same" in finding.instance
    assert find(ExcessWork, drawn(SLOW, DOT, program(PRODUCT))) == ()


def test_what_was_gathered_from_all_devices_is_the_same_on_each() -> None:
    gathered = f"""
        %x = {X} parameter(0)
        %part = bf16[256,2048]{{1,0}} parameter(1) // parts=4
        %w = {SQUARE} all-gather(bf16[256,2048]{{1,0}} %part)
        {DOT} // result
    """
    assert len(find(ExcessWork, drawn(SLOW, DOT, program(gathered, devices=4))) or ()) == 1
    # Gathered from half of the devices, it differs between the halves.
    halves = gathered.replace("bf16[256,2048]", "bf16[512,2048]")
    assert find(ExcessWork, drawn(SLOW, DOT, program(halves, devices=4))) == ()


ROWS, CODES, PAIRS = "bf16[4096,64]{1,0}", "bf16[1024,64]{1,0}", "f32[4096,1024,64]{2,1,0}"
DISTANCES = f"%distances = f32[4096,1024]{{1,0}} fusion({ROWS} %x, {CODES} %c), kind=kLoop"


def distances(text: str = "multiply({0} %a, {0} %a)") -> str:
    """A value for each pair of rows and of elements, summed up at once."""
    return f"""
        %x = {ROWS} parameter(0)
        %c = {CODES} parameter(1)
        %wide = {PAIRS} broadcast({ROWS} %x), dimensions={{0,2}} // in distances
        %codes = {PAIRS} broadcast({CODES} %c), dimensions={{1,2}} // in distances
        %a = {PAIRS} subtract({PAIRS} %wide, {PAIRS} %codes) // in distances
        %b = {PAIRS} {text.format(PAIRS)} // in distances
        %distances = f32[4096,1024]{{1,0}} reduce({PAIRS} %b) // in distances, result
    """


def test_a_product_of_few_terms_leaves_the_matrix_unit_mostly_empty() -> None:
    # Of 2 dimensions instead of 64, the matrix unit has 2 of 128 rows filled.
    few, text = (
        written.replace(",64]{", ",2]{").replace("f32[4096,1024]", "bf16[4096,1024]")
        for written in (distances(), DISTANCES)
    )
    (finding,) = find(ExcessWork, drawn(SLOW, text, program(few))) or ()
    product_us = 2 * 4096 * 1024 * 2 * (128 / 2) / FLOP_PER_US
    # Squares are added to each element, 1,024 in each of 1,500 cycles of a microsecond.
    added_us = 2 * 4096 * 1024 / 1024 / 1500
    # The bytes of the result take less than that.
    assert excess_us(finding) == pytest.approx(2 * (400 - product_us - added_us), rel=0.001)


def test_a_value_for_each_pair_is_not_needed() -> None:
    (finding,) = find(ExcessWork, drawn(SLOW, DISTANCES, program(distances()))) or ()
    # The rows, the codes, and 32-bit distances.
    needed_us = (2 * 64 * (4096 + 1024) + 4 * 4096 * 1024) / BYTES_PER_US
    # Rows of 64 elements of 16 bits fill half of a tile.
    assert excess_us(finding) == pytest.approx(2 * (400 - needed_us), rel=0.02)
    assert "f32[4096,1024,64] exists only inside" in finding.summary
    assert finding.remedies[0].text.startswith("Use einsum")


def test_exponentials_of_each_pair_have_no_shorter_form() -> None:
    # 4096 x 1024 x 64 exponentials take 1.7 ms of a vector unit.
    text = distances("exponential({0} %a)")
    assert find(ExcessWork, drawn(SLOW, DISTANCES, program(text))) == ()


ALL_SCORES = "f32[4096,1024]{1,0}"
SEARCH = f"""
    %x = {ROWS} parameter(0)
    %c = {CODES} parameter(1)
    %scores = {ALL_SCORES} dot({ROWS} %x, {CODES} %c), lhs_contracting_dims={{1}} // in best
    %scaled = {ALL_SCORES} multiply({ALL_SCORES} %scores, {ALL_SCORES} %scores) // in best
    %place = s32[4096,1024]{{1,0}} iota(), iota_dimension=1 // in best
    %first = f32[] constant(inf)
    %none = s32[] constant(0)
"""
OF_BOTH = "%scaled, s32[4096,1024] %place, f32[] %first, s32[] %none"


@pytest.mark.parametrize(
    ("summed", "is_found"), [(OF_BOTH, False), ("%scaled, f32[] %first", True)]
)
def test_elements_that_all_count_may_exist_inside_an_operation(summed: str, is_found: bool) -> None:
    # The best of all scores needs each score, which no other operation sees; their sum does not.
    best = "s32[4096]{0}"
    text = SEARCH + f"%best = {best} reduce({ALL_SCORES} {summed}) // in best, result"
    fusion = f"%best = {best} fusion({ROWS} %x, {CODES} %c), kind=kOutput"
    assert bool(find(ExcessWork, drawn(SLOW, fusion, program(text)))) == is_found


NODES, EDGES, JOINED = "bf16[512,512]{1,0}", "bf16[16384,512]{1,0}", "bf16[16384,1024]{1,0}"
TO_HIDDEN = "bf16[1024,1024]{1,0}"
MESSAGES = f"%messages = {JOINED} fusion({NODES} %nodes, {TO_HIDDEN} %w), kind=kOutput"
MULTIPLIED = f"%messages = {JOINED} dot({JOINED} %pair, {TO_HIDDEN} %w), lhs_contracting_dims={{1}}"
GATHERED = f"""
    %nodes = {NODES} parameter(0)
    %w = {TO_HIDDEN} parameter(1)
    %places = s32[16384,1]{{1,0}} parameter(2)
    %sent = {EDGES} gather({NODES} %nodes, s32[16384,1] %places)
    %wide = bf16[512,32,512]{{2,1,0}} broadcast({NODES} %nodes), dimensions={{0,2}}
    %received = {EDGES} reshape(bf16[512,32,512] %wide)
    %pair = {JOINED} concatenate({EDGES} %sent, {EDGES} %received) // in messages
    {MULTIPLIED} // in messages
    %out = {JOINED} tanh({JOINED} %messages) // result
"""


def test_repeated_rows_are_multiplied_before_they_are_repeated() -> None:
    (finding,) = find(ExcessWork, drawn(SLOW, MESSAGES, program(GATHERED))) or ()
    # The rows of 512 nodes, 32 times each.
    assert "3.1 % is needed" in finding.summary
    # Nodes, weights and messages are moved, whatever is multiplied.
    moved_us = 2 * (512 * 512 + 1024 * 1024 + 16384 * 1024) / BYTES_PER_US
    assert excess_us(finding) == pytest.approx(2 * (400 - moved_us), rel=0.001)
    assert finding.remedies[0].text.startswith("Multiply before")


def test_as_many_nodes_as_edges_are_all_multiplied() -> None:
    text = GATHERED.replace(NODES, EDGES).replace("512,32,512", "16384,1,512")
    assert find(ExcessWork, drawn(SLOW, MESSAGES, program(text))) == ()


def test_rows_that_meet_other_matrices_are_no_repetition() -> None:
    # Keys of two heads for eight heads of queries.
    keys, scores = "bf16[8,2048,128]{2,1,0}", "bf16[8,2048,2048]{2,1,0}"
    text = f"""
        %k = bf16[2,2048,128]{{2,1,0}} parameter(0)
        %q = {keys} parameter(1)
        %wide = bf16[2,4,2048,128]{{3,2,1,0}} broadcast(bf16[2,2048,128] %k), dimensions={{0,2,3}}
        %keys = {keys} reshape(bf16[2,4,2048,128] %wide)
        %scores = {scores} dot({keys} %keys, {keys} %q), lhs_contracting_dims={{2}} // result
    """
    dot = f"%scores = {scores} dot({keys} %keys, {keys} %q), lhs_contracting_dims={{2}}"
    assert find(ExcessWork, drawn(SLOW, dot, program(text))) == ()


PLANES, PLACES, SAMPLES = (
    "f32[4096,64,64]{2,1,0}",
    "s32[4096,5,5,3]{3,2,1,0}",
    "f32[4096,5,5]{2,1,0}",
)
SAMPLED = f"%samples = {SAMPLES} fusion({PLANES} %planes, f32[4096,1] %centers), kind=kCustom"


@pytest.mark.parametrize(("centers", "is_found"), [("f32[4096,3]", True), (PLACES, False)])
def test_neighbors_are_moved_together(centers: str, is_found: bool) -> None:
    text = f"""
        %planes = {PLANES} parameter(0)
        %centers = {centers} parameter(1)
        %wide = {PLACES} broadcast({centers} %centers) // in samples
        %offsets = {PLACES} iota(), iota_dimension=2 // in samples
        %places = {PLACES} add({PLACES} %wide, {PLACES} %offsets) // in samples
        %samples = {SAMPLES} gather({PLANES} %planes, {PLACES} %places) // in samples, result
    """
    found = find(ExcessWork, drawn(SLOW, SAMPLED, program(text))) or ()
    assert len(found) == is_found
    for finding in found:
        # Each plane times the weights of 25 numbers, which fill 25 of 128 columns.
        product_us = 4096 * 2 * 128 * 64 * 64 / FLOP_PER_US
        assert excess_us(finding) == pytest.approx(2 * (400 - product_us), rel=0.02)
        assert "one by one" in finding.summary
        assert finding.remedies[0].text.startswith("Move neighbors together")


IMAGE, PATCHES = "bf16[32,56,56,64]{3,2,1,0}", "bf16[32,56,56,576]{3,2,1,0}"
KERNEL = "bf16[3,3,64,576]{3,2,1,0}"
LABELS = "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f"
COPIED = f"""
    %image = {IMAGE} parameter(0)
    %ones = {KERNEL} iota(), iota_dimension=3 // in patches
    %patches = {PATCHES} convolution({IMAGE} %image, {KERNEL} %ones), {LABELS} // in patches, result
"""
CONVOLUTION = f"%patches = {PATCHES} fusion({IMAGE} %image), kind=kOutput"


def test_a_product_with_a_matrix_of_ones_and_zeros_is_no_work() -> None:
    (finding,) = find(ExcessWork, drawn(SLOW, CONVOLUTION, program(COPIED))) or ()
    assert "0.0 % is needed" in finding.summary
    assert "moves elements" in finding.remedies[0].text.replace("only moves", "moves")
    learned = COPIED.replace("iota(), iota_dimension=3 // in patches", "parameter(1)")
    assert find(ExcessWork, drawn(SLOW, CONVOLUTION, program(learned))) == ()


@pytest.mark.parametrize(("direction", "is_found"), [("EQ", True), ("GE", False)])
@pytest.mark.parametrize("of", ["numbers", "ones"])
def test_running_sums_by_a_product_are_work(of: str, direction: str, is_found: bool) -> None:
    blocks, square = "bf16[65536,256]{1,0}", "[256,256]{1,0}"
    chosen = f"""
        %expert = s32[65536]{{0}} parameter(1)
        %wide = s32[65536,256] broadcast(s32[65536]{{0}} %expert), dimensions={{0}} // in sums
        %each = s32[65536,256] iota(), iota_dimension=1 // in sums
        %hot = pred[65536,256] compare(s32[65536,256] %wide, s32[65536,256] %each), direction=EQ
        %ones_of = {blocks} convert(pred[65536,256] %hot) // in sums
    """
    summed = "ones_of" if of == "ones" else "x"
    compared = f"compare(s32{square} %row, s32{square} %column), direction={direction}"
    text = f"""
        %x = {blocks} parameter(0)
        {chosen if of == "ones" else ""}
        %row = s32{square} iota(), iota_dimension=0 // in sums
        %column = s32{square} iota(), iota_dimension=1 // in sums
        %chosen = pred{square} {compared} // in sums
        %ones = bf16{square} convert(pred{square} %chosen) // in sums
        %sums = {blocks} dot({blocks} %{summed}, bf16{square} %ones), {ROWS_FIRST} // in sums,result
    """
    fusion = f"%sums = {blocks} fusion({blocks} %x), kind=kOutput"
    assert bool(find(ExcessWork, drawn(SLOW, fusion, program(text)))) == is_found


ROWS_FIRST = "lhs_contracting_dims={1}"
HIDDEN = "bf16[65536,1024]{1,0}"
GRADIENTS = "f32[64,1024,1024]{2,1,0}"
TWO = """
    cell 100us
    step  |..........|..........|
    main  |LSSSSSSSSS|LSSSSSSSSS|
    tpu 0 |Xcaaaabbbb|Xcaaaabbbb|
"""


@dataclass(frozen=True)
class Pair:
    """Two operations in a row, the first of which writes what the second reads."""

    first: str
    second: str
    text: str

    def trace(self, third: str = "", line: str = "") -> Trace:
        """Each takes 400 µs in each of two steps, and a third one, if any, 100 µs.

        The first two are at a line of the source.
        """
        operations = {"a": self.first, "b": self.second, "c": third or self.second}
        symbols = {
            key: xla_op(text.partition(" = ")[0].lstrip("%"), text, module=MODULE, source_line=line)
            for key, text in operations.items()
        }
        trace = draw(
            TWO if third else TWO.replace("Xc", "XX"), legend=symbols, device="TPU v5 lite"
        )
        return replace(trace, programs=(program(self.text),))


def test_operations_are_joined_if_only_they_need_the_array_between_them() -> None:
    pair = Pair(
        f"%each = {GRADIENTS} fusion(bf16[64,1024] %x, bf16[64,1024] %g), kind=kLoop",
        f"%sum = f32[1024,1024]{{1,0}} fusion({GRADIENTS} %each), kind=kLoop",
        f"""
        %x = bf16[64,1024]{{1,0}} parameter(0)
        %g = bf16[64,1024]{{1,0}} parameter(1)
        %wide = {GRADIENTS} broadcast(bf16[64,1024] %x), dimensions={{0,1}} // in each
        %high = {GRADIENTS} broadcast(bf16[64,1024] %g), dimensions={{0,2}} // in each
        %each = {GRADIENTS} multiply({GRADIENTS} %wide, {GRADIENTS} %high) // in each
        %sum = f32[1024,1024]{{1,0}} reduce({GRADIENTS} %each) // in sum, result
        """,
    )
    (finding,) = find(ExcessWork, pair.trace()) or ()
    # Two arrays of 64 x 1024 and one of 1024 x 1024 cross the border; 256 MiB move twice inside.
    needed_us = (2 * 2 * 64 * 1024 + 4 * 1024 * 1024) / BYTES_PER_US
    assert excess_us(finding) == pytest.approx(2 * (800 - needed_us), rel=0.02)
    assert "2 operations" in finding.summary
    assert "They move 516 MiB" in finding.summary


def test_a_product_may_need_most_of_what_an_array_inside_takes() -> None:
    # Gradients by example: 8 x 2 x 512 x 2048 x 2048 FLOP, and 64 MiB that are written and read.
    x, each, result = (
        *("bf16[8,512,2048]{2,1,0}", "bf16[8,2048,2048]{2,1,0}"),
        "bf16[2048,2048]{1,0}",
    )
    pair = Pair(
        f"%each = {each} fusion({x} %x, {x} %g), kind=kOutput",
        f"%sum = {result} fusion({each} %each), kind=kLoop",
        f"""
        %x = {x} parameter(0)
        %g = {x} parameter(1)
        %each = {each} dot({x} %x, {x} %g), lhs_contracting_dims={{1}} // in each
        %sum = {result} reduce({each} %each) // in sum, result
        """,
    )
    (finding,) = find(ExcessWork, pair.trace()) or ()
    product_us = 8 * 2 * 512 * 2048 * 2048 / FLOP_PER_US
    assert excess_us(finding) == pytest.approx(2 * (800 - product_us), rel=0.001)


@pytest.mark.parametrize(("line", "is_sure"), [("", False), ("model.py:37", True)])
def test_operations_of_a_line_are_judged_together(line: str, is_sure: bool) -> None:
    # The array between them is too small to join operations for, but exists for this line only.
    row, wide = "f32[64,16]{1,0}", "f32[64,16,64]{2,1,0}"
    pair = Pair(
        f"%wide = {wide} fusion({row} %x), kind=kLoop",
        f"%sum = {row} fusion({wide} %wide), kind=kLoop",
        f"""
        %x = {row} parameter(0)
        %each = {wide} broadcast({row} %x), dimensions={{0,1}} // in wide
        %wide = {wide} add({wide} %each, {wide} %each) // in wide
        %sum = {row} reduce({wide} %wide) // in sum, result
        """,
    )
    found = find(ExcessWork, pair.trace(line=line)) or ()
    assert ("exists only inside" in found[0].summary) == is_sure
    assert [finding.severity for finding in found] == ([None] if is_sure else ["medium"] * 2)


def test_what_lies_between_two_products_is_moved() -> None:
    # Volumes of all pairs, sampled along one of their dimensions by rows of each point's own: no
    # other order needs less, and each product needs its own operation.
    points, volume = "bf16[8,2048,256]{2,1,0}", "bf16[8,2048,2048]{2,1,0}"
    rows, planes = "bf16[16384,4,32]{2,1,0}", "bf16[16384,32,64]{2,1,0}"
    sampled, by_rows = "bf16[16384,4,64]{2,1,0}", "lhs_contracting_dims={2}"
    pair = Pair(
        f"%volume = {volume} fusion({points} %x, {points} %y), kind=kOutput",
        f"%sampled = {sampled} fusion({rows} %rows, {volume} %volume), kind=kOutput",
        f"""
        %x = {points} parameter(0)
        %y = {points} parameter(1)
        %rows = {rows} parameter(2)
        %volume = {volume} dot({points} %x, {points} %y), {by_rows} // in volume
        %planes = {planes} bitcast({volume} %volume) // in sampled
        %sampled = {sampled} dot({rows} %rows, {planes} %planes), {by_rows} // in sampled, result
        """,
    )
    assert find(ExcessWork, pair.trace()) == ()


def test_a_chain_of_layers_stays_a_chain() -> None:
    pair = Pair(
        f"%first = {HIDDEN} fusion({HIDDEN} %x, bf16[1024,1024] %w), kind=kOutput",
        f"%second = {HIDDEN} fusion({HIDDEN} %first, bf16[1024,1024] %v), kind=kOutput",
        f"""
        %x = {HIDDEN} parameter(0)
        %w = bf16[1024,1024]{{1,0}} parameter(1)
        %v = bf16[1024,1024]{{1,0}} parameter(2)
        %first = {HIDDEN} dot({HIDDEN} %x, bf16[1024,1024] %w), {ROWS_FIRST} // in first
        %second = {HIDDEN} dot({HIDDEN} %first, bf16[1024,1024] %v), {ROWS_FIRST} // result
        """,
    )
    assert find(ExcessWork, pair.trace()) == ()


SCORES = "f32[4096,8192]{1,0}"
NORMALIZED = f"%normalized = {SCORES} fusion({SCORES} %scores), kind=kLoop"


@pytest.mark.parametrize(("read", "is_found"), [(SCORES, False), ("f32[4096,8]{1,0}", True)])
def test_what_nobody_reads_need_not_be_written(read: str, is_found: bool) -> None:
    pair = Pair(
        f"%scores = {SCORES} fusion(bf16[4096,64] %x), kind=kLoop",
        NORMALIZED,
        f"""
        %x = bf16[4096,64]{{1,0}} parameter(0)
        %wide = {SCORES} broadcast(bf16[4096,64] %x), dimensions={{0,1}} // in scores
        %scores = {SCORES} add({SCORES} %wide, {SCORES} %wide) // in scores
        %normalized = {SCORES} subtract({SCORES} %scores, {SCORES} %scores) // in normalized
        %part = {read} slice({SCORES} %normalized) // in last, result
        %last = {read} copy({read} %part) // in last, result
        """,
    )
    # Only `a` and `b` are drawn, so that the slice is read outside of the part.
    trace = pair.trace(third=f"%last = {read} fusion({SCORES} %normalized), kind=kLoop")
    assert bool(find(ExcessWork, trace)) == is_found


NUMBERS = "f32[1784,2048]{1,0}"


@pytest.mark.parametrize(("count", "is_found"), [(9, True), (8, False)])
def test_many_operations_for_one_in_the_source_are_emulation(count: int, is_found: bool) -> None:
    operation = f"%sum = {NUMBERS} fusion({NUMBERS} %v0), kind=kLoop"
    lines = [
        f"%v{number + 1} = {NUMBERS} maximum({NUMBERS} %v{number}, {NUMBERS} %v{number})"
        for number in range(count)
    ]
    text = f"%v0 = {NUMBERS} parameter(0)\n" + " // in sum\n".join(lines) + " // in sum, result"
    emulated = program(text)
    named = replace(emulated, paths=dict.fromkeys(range(1, count + 1), "jit(step)/sub:"))
    found = find(ExcessWork, drawn(SLOW, operation, named)) or ()
    assert bool(found) == is_found
    for finding in found:
        # One of nine is needed.
        assert excess_us(finding) == pytest.approx(800 * 8 / 9, rel=0.01)
        assert "64-bit numbers" in finding.summary


ROLLED = "f32[2048,128]{1,0}"


@pytest.mark.parametrize(("size", "severity"), [("f32[2048,128]{1,0}", "medium"), (PAIRS, None)])
def test_what_nothing_explains_is_no_sure_finding(size: str, severity: str | None) -> None:
    # Reads and writes 1 MiB in 400 µs; or expands to values of pairs, which explains it.
    operation = f"%rolled = {ROLLED} fusion({ROLLED} %x), kind=kLoop"
    text = f"""
        %x = {ROLLED} parameter(0)
        %wide = {size} pad({ROLLED} %x) // in rolled
        %rolled = {ROLLED} add({size} %wide, {size} %wide) // in rolled, result
    """
    (finding,) = find(ExcessWork, drawn(SLOW, operation, program(text))) or ()
    assert finding.severity == severity


@pytest.mark.parametrize(("parts", "is_advised"), [(1, True), (4, False)])
def test_a_batch_that_is_split_already_is_no_remedy(parts: int, is_advised: bool) -> None:
    also = f"%batch = {X} parameter(2) // parts={parts}"
    trace = drawn(SLOW, DOT, program(PRODUCT + also, devices=4))
    (finding,) = find(ExcessWork, trace) or ()
    changes = {remedy.change for remedy in finding.remedies}
    assert ("batch-over-devices" in changes) == is_advised


COLUMNS, PART = "bf16[4096,8192]{1,0}", "bf16[512,8192]{1,0}"


@pytest.mark.parametrize(
    "gathers",
    [
        f"%chosen = {SOME} gather({ALL} %mapped, s32[512,1] %places) // result",
        # The compiler splits large gathers into gathers from slices, which take all together.
        f"""
        %left = {COLUMNS} slice({ALL} %mapped)
        %right = {COLUMNS} slice({ALL} %mapped)
        %first = {PART} gather({COLUMNS} %left, s32[512,1] %places)
        %second = {PART} gather({COLUMNS} %right, s32[512,1] %places)
        %chosen = {SOME} concatenate({PART} %first, {PART} %second), dimensions={{1}} // result
        """,
    ],
)
def test_gathers_of_whole_rows_can_come_first(gathers: str) -> None:
    # Of 4096 rows of scores, the loss reads 512, wherever these are.
    text = SLICED.replace(
        f"%w = {W} parameter(1)",
        f"%w = {W} parameter(1)\n%places = s32[512,1]{{1,0}} parameter(2)",
    )
    text = text[: text.index("%chosen")] + gathers
    (finding,) = find(ExcessWork, drawn(SLOW, FUSION, program(text))) or ()
    assert "12.5 % is needed" in finding.summary


EXPERTS, CHOSEN = "bf16[4096,8,2048]{2,1,0}", "pred[4096,8]{1,0}"


@pytest.mark.parametrize(("direction", "is_found"), [("EQ", True), ("GT", False)])
def test_of_what_all_experts_compute_one_in_eight_counts(direction: str, is_found: bool) -> None:
    text = f"""
        %x = {X} parameter(0)
        %w = bf16[1024,8,2048]{{2,1,0}} parameter(1)
        %best = s32[4096]{{0}} parameter(2)
        %all = {EXPERTS} dot({X} %x, bf16[1024,8,2048] %w), lhs_contracting_dims={{1}} // in fusion
        %h = {EXPERTS} tanh({EXPERTS} %all) // in fusion
        %wanted = s32[4096,8]{{1,0}} broadcast(s32[4096] %best), dimensions={{0}}
        %number = s32[4096,8]{{1,0}} iota(), iota_dimension=1
        %is_best = {CHOSEN} compare(s32[4096,8] %wanted, s32[4096,8] %number), direction={direction}
        %wide = {EXPERTS} broadcast({CHOSEN} %is_best), dimensions={{0,1}}
        %kept = {EXPERTS} multiply({EXPERTS} %h, {EXPERTS} %wide) // in fusion
        %y = {Y} reduce({EXPERTS} %kept) // in fusion, result
    """
    operation = f"%fusion = {Y} fusion({X} %x, bf16[1024,8,2048] %w), kind=kOutput"
    found = find(ExcessWork, drawn(SLOW, operation, program(text))) or ()
    assert ["12.5 % is needed" in finding.summary for finding in found] == [True] * is_found


@pytest.mark.parametrize(("number", "is_found"), [("0", True), ("0.5", False)])
def test_what_is_multiplied_by_zero_is_not_needed(number: str, is_found: bool) -> None:
    text = f"""
        %x = {X} parameter(0)
        %e = {Y} parameter(1)
        %w = {SQUARE} parameter(2)
        %gradient = {SQUARE} dot({X} %x, {Y} %e), lhs_contracting_dims={{0}}
        %scale = bf16[] constant({number})
        %scales = {SQUARE} broadcast(bf16[] %scale)
        %scaled = {SQUARE} multiply({SQUARE} %gradient, {SQUARE} %scales) // in update
        %updated = {SQUARE} subtract({SQUARE} %w, {SQUARE} %scaled) // in update, result
    """
    product = f"%gradient = {SQUARE} dot({X} %x, {Y} %e), lhs_contracting_dims={{0}}"
    found = find(ExcessWork, drawn(SLOW, product, program(text))) or ()
    assert len(found) == is_found
    assert all("0 % is needed" in finding.summary for finding in found)


def test_at_best_goes_what_only_brings_arrays_there() -> None:
    text = SLICED.replace(f"dot({X} %x,", f"dot({X} %turned,").replace(
        f"%w = {W} parameter(1)",
        f"%w = {W} parameter(1)\n%turned = {X} copy({X} %x)",
    )
    symbols = {
        "s": xla_op("fusion", FUSION, module=MODULE),
        "c": xla_op("turned", f"%turned = {X} copy({X} %x)", module=MODULE),
    }
    drawing = SLOW.replace("XXXXXXssss", "XXXXXcssss")
    trace = draw(drawing, legend=symbols, device="TPU v5 lite")
    (finding,) = find(ExcessWork, replace(trace, programs=(program(text),))) or ()
    needed_us = 2 * 4096 * 1024 * 16384 / 8 / FLOP_PER_US
    assert finding.saving is not None
    # Expected is what the product computes for nothing, and high all of the copy, 100 µs, too.
    assert excess_us(finding) == pytest.approx(2 * (400 - needed_us), rel=0.02)
    high_us = finding.saving.high_ns / 1000
    assert high_us == pytest.approx(2 * (400 - needed_us / 2 + 100), rel=0.02)


@pytest.mark.parametrize(("opcode", "is_found"), [("subtract", False), ("xor", True)])
def test_many_operations_of_one_kind_emulate_nothing(opcode: str, is_found: bool) -> None:
    wide = "u32[4096,1024]{1,0}"
    lines = [f"%v{n} = {wide} {opcode}({wide} %a, {wide} %a) // in fusion" for n in range(12)]
    text = (
        f"%a = {wide} parameter(0)\n"
        + "\n".join(lines)
        + f"""
        %sum = {wide} negate({wide} %v11) // in fusion, result
    """
    )
    values = program(text)
    paths = dict.fromkeys(range(1, 13), "jit(step)/sub")
    trace = drawn(SLOW, f"%fusion = {wide} fusion({wide} %a)", replace(values, paths=paths))
    found = find(ExcessWork, trace) or ()
    assert ["what is one in the source" in finding.summary for finding in found] == [
        True
    ] * is_found
