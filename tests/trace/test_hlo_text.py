from __future__ import annotations

import pytest

from tb_perfadvisor.trace.hlo_text import parse_instruction, parse_shapes


@pytest.mark.parametrize(
    ("text", "dims", "padded", "elements"),
    [
        # 100 -> 13 x 8, 30 -> 128; (2,1) only reorders within the tile.
        ("bf16[100,30]{1,0:T(8,128)(2,1)}", (100, 30), (104, 128), 13_312),
        # Dimension 0 varies fastest: it meets the 128, and 30 the 8.
        ("bf16[100,30]{0,1:T(8,128)(2,1)}", (100, 30), (128, 32), 4_096),
        ("f32[1000]{0:T(1024)}", (1000,), (1024,), 1_024),
        ("f32[1025]{0:T(1024)S(5)}", (1025,), (2048,), 2_048),
        # Only the two fastest of three dimensions are tiled.
        ("f32[3,9,130]{2,1,0:T(8,128)}", (3, 9, 130), (3, 16, 256), 12_288),
        # An array with fewer dimensions than its tile fills a whole one: 8 rows of 128.
        ("f32[128]{0:T(8,128)}", (128,), (128,), 1_024),
        ("f32[]{:T(128)}", (), (), 128),
        ("f32[]", (), (), 1),
        ("s32[5,7]{1,0}", (5, 7), (5, 7), 35),
        ("pred[<=10]{0:T(256)}", (10,), (256,), 256),
        # A damaged layout counts as none.
        ("f32[5,7]{1,9:T(8,128)}", (5, 7), (8, 128), 1_024),
        ("f32[5,7]{0,0:T(8,128)}", (5, 7), (8, 128), 1_024),
    ],
)
def test_padding(text: str, dims: tuple[int, ...], padded: tuple[int, ...], elements: int) -> None:
    (shape,) = parse_shapes(text)
    assert (shape.dims, shape.padded_dims, shape.padded_elements) == (dims, padded, elements)


def test_misfits_name_the_dimension_and_the_multiple_that_it_needs() -> None:
    (shape,) = parse_shapes("bf16[104,520]{1,0:T(8,128)(2,1)}")
    assert shape.misfits == ((1, 520, 128),)
    assert shape.elements == 104 * 520


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [("pred", 8), ("bf16", 16), ("f32", 32), ("f8e4m3fn", 8), ("s4", 4), ("c128", 128)],
)
def test_width_of_an_element(dtype: str, bits: int) -> None:
    (shape,) = parse_shapes(f"{dtype}[2]")
    assert shape.element_bits == bits


def test_a_fusion() -> None:
    fusion = parse_instruction(
        "%fusion.7 = bf16[16,128]{1,0:T(8,128)(2,1)} fusion(bf16[16,64]{1,0:T(8,128)(2,1)} "
        "%p0, f32[]{:T(128)S(6)} %p1), kind=kOutput, calls=%fused_computation.7"
    )
    assert fusion is not None
    assert fusion.opcode == "fusion"
    assert [shape.dims for shape in fusion.results] == [(16, 128)]
    assert [shape.dims for shape in fusion.operands] == [(16, 64), ()]


def test_a_tuple_with_layouts_in_parentheses() -> None:
    copy = parse_instruction(
        "%copy-start.1 = (f32[8]{0:T(1024)S(1)}, f32[8]{0:T(1024)}, u32[]{:S(2)}) "
        "copy-start(f32[8]{0:T(1024)} %p0)"
    )
    assert copy is not None
    assert copy.opcode == "copy-start"
    assert [shape.dtype for shape in copy.results] == ["f32", "f32", "u32"]
    assert len(copy.operands) == 1


def test_a_convert_and_a_dot() -> None:
    convert = parse_instruction("%convert.2 = bf16[4,4]{1,0} convert(f32[4,4]{1,0} %x)")
    assert convert is not None
    assert (convert.results[0].dtype, convert.operands[0].dtype) == ("bf16", "f32")
    dot = parse_instruction(
        "ROOT %dot.1 = f32[8,32]{1,0} dot(f32[8,16]{1,0} %a, f32[16,32]{1,0} %b), "
        "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    )
    assert dot is not None
    assert (dot.opcode, dot.contracting) == ("dot", (1,))


@pytest.mark.parametrize("text", ["", "fusion.7", "%x = ", "%x = f32[2]{0}"])
def test_text_that_is_not_an_instruction(text: str) -> None:
    assert parse_instruction(text) is None


def test_absurdly_large_numbers_are_parsed() -> None:
    # The text is untrusted: Python refuses to parse numbers of more than 4,300 digits.
    digits = "9" * 5000
    text = f"%dot.1 = f{digits}[{digits}]{{0:T({digits})S({digits})}} dot(f32[8]{{0}} %x), "
    attributes = f"lhs_contracting_dims={{{digits},}}, feature_group_count={digits}"
    instruction = parse_instruction(text + attributes)
    assert instruction is not None
    assert instruction.opcode == "dot"
