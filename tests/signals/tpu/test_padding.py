"""Padding to tiles, by the rules of OpenXLA's "Tiled layout".

The last number of a tile applies to the fastest dimension, and the number before it to the next
one. Each size is rounded up to a multiple of its number. A second tile divides the first: (2,1)
and (4,1) pack rows of 16-bit and 8-bit numbers into 32-bit words, and add padding only if the
first tile has fewer rows than they pack. Layouts marked *recorded* come from a training run on a
TPU v5.
"""

from __future__ import annotations

import pytest

from tb_perfadvisor.signals.tpu.padding import Padding, batch_of, padding_of
from tb_perfadvisor.trace.hlo_text import parse_instruction, parse_shapes

# Array, stored elements, stored bytes.
STORED = [
    # Tiles of 8 rows of 128: both dimensions are rounded up.
    ("f32[8,128]{1,0:T(8,128)}", 1_024, 4_096),  # 8 x 128, 4 B each
    ("f32[1,1]{1,0:T(8,128)}", 1_024, 4_096),  # 8 x 128
    ("f32[7,127]{1,0:T(8,128)}", 1_024, 4_096),  # 8 x 128
    ("f32[9,129]{1,0:T(8,128)}", 4_096, 16_384),  # 16 x 256
    ("f32[100,30]{1,0:T(8,128)}", 13_312, 53_248),  # 104 x 128
    ("f32[128,128]{1,0:T(8,128)}", 16_384, 65_536),  # 128 x 128
    ("f32[129,128]{1,0:T(8,128)}", 17_408, 69_632),  # 136 x 128
    ("f32[128,129]{1,0:T(8,128)}", 32_768, 131_072),  # 128 x 256
    ("f32[0,128]{1,0:T(8,128)}", 0, 0),  # an empty array takes no tile
    ("f32[100,30]{1,0}", 3_000, 12_000),  # not tiled: 100 x 30
    # The other order: 100 is rounded to 128s, and 30 to 8s.
    ("f32[100,30]{0,1:T(8,128)}", 4_096, 16_384),  # 128 x 32
    ("bf16[100,30]{0,1:T(8,128)(2,1)}", 4_096, 8_192),  # 128 x 32, 2 B each
    ("s8[100,30]{0,1:T(8,128)(4,1)}", 4_096, 4_096),  # 128 x 32, 1 B each
    # 16-bit and 8-bit numbers: two and four rows are packed together within a tile.
    ("bf16[100,30]{1,0:T(8,128)(2,1)}", 13_312, 26_624),  # 104 x 128, 2 B
    ("f16[100,30]{1,0:T(8,128)(2,1)}", 13_312, 26_624),  # 104 x 128, 2 B
    ("s8[100,30]{1,0:T(8,128)(4,1)}", 13_312, 13_312),  # 104 x 128, 1 B
    ("f8e4m3fn[100,30]{1,0:T(8,128)(4,1)}", 13_312, 13_312),  # 104 x 128, 1 B
    ("pred[100,30]{1,0:T(8,128)(4,1)}", 13_312, 13_312),  # 104 x 128, 1 B
    ("bf16[100,30]{1,0:T(16,128)(2,1)}", 14_336, 28_672),  # 112 x 128, 2 B
    ("s8[100,30]{1,0:T(32,128)(4,1)}", 16_384, 16_384),  # 128 x 128, 1 B
    ("s4[64,200]{1,0:T(8,128)(8,1)E(4)}", 16_384, 8_192),  # 64 x 256, half a byte each
    ("s4[64,200]{1,0:T(8,128)(4,1)}", 16_384, 16_384),  # 64 x 256, one byte each without E(4)
    ("bf16[4096,50257]{1,0:T(8,128)(2,1)}", 206_045_184, 412_090_368),  # 4,096 x 50,304 (393 x 128)
    # 64-bit numbers.
    ("f64[100,30]{1,0:T(8,128)}", 13_312, 106_496),  # 104 x 128, 8 B
    ("c64[5,5]{1,0:T(8,128)}", 1_024, 8_192),  # 8 x 128, 8 B
    # One dimension, and scalars.
    ("f32[1000]{0:T(1024)}", 1_024, 4_096),  # 1 x 1,024
    ("f32[1025]{0:T(1024)}", 2_048, 8_192),  # 2 x 1,024
    ("f32[100]{0:T(128)}", 128, 512),  # 1 x 128
    ("f32[]{:T(128)}", 128, 512),  # a scalar takes a tile
    ("s32[]{:T(128)S(6)}", 128, 512),  # recorded: the same in another memory space
    ("s32[8192]{0:T(1024)}", 8_192, 32_768),  # recorded: 8 x 1,024
    # One dimension of 16-bit numbers: (1024) is split into 8 rows of (128), packed by (2,1).
    ("bf16[2048]{0:T(1024)(128)(2,1)}", 2_048, 4_096),  # recorded: 2 x 1,024
    ("bf16[2000]{0:T(1024)(128)(2,1)}", 2_048, 4_096),  # 2 x 1,024
    ("bf16[100]{0:T(256)(128)(2,1)}", 256, 512),  # 1 x 256
    ("bf16[100]{0:T(128)(128)(2,1)}", 256, 512),  # one row of 128: packing needs two rows
    ("pred[10]{0:T(512)(128)(4,1)}", 512, 512),  # 4 rows of 128, 1 B
    # Smaller tiles for fewer than eight rows.
    ("f32[1,2048]{1,0:T(1,128)}", 2_048, 8_192),  # recorded: 1 x 2,048
    ("bf16[1,2048]{1,0:T(2,128)(2,1)}", 4_096, 8_192),  # recorded: 2 x 2,048
    ("s8[1,4,4]{2,1,0:T(4,128)(4,1)}", 512, 512),  # recorded: 1 x 4 x 128
    ("u32[10,4]{0,1:T(4,128)}", 512, 2_048),  # recorded: 128 x 4
    ("f32[6,130]{1,0:T(4,128)}", 2_048, 8_192),  # 8 x 256
    # Only the two fastest dimensions are rounded up.
    ("f32[3,9,130]{2,1,0:T(8,128)}", 12_288, 49_152),  # 3 x 16 x 256
    ("f32[3,9,130]{0,1,2:T(8,128)}", 266_240, 1_064_960),  # 128 x 16 x 130
    ("f32[3,9,130]{1,2,0:T(8,128)}", 52_224, 208_896),  # 3 x 128 x 136
    ("bf16[1,2048,2048]{1,2,0:T(8,128)(2,1)}", 4_194_304, 8_388_608),  # recorded: fits
    ("f32[16,7168,512]{2,0,1:T(8,128)}", 58_720_256, 234_881_024),  # recorded: 16 is rounded to 8s
    ("f32[1,512,7168]{2,0,1:T(1,128)}", 3_670_016, 14_680_064),  # recorded: 1 is rounded to 1s
    ("f32[1,512,7168]{2,0,1:T(8,128)}", 29_360_128, 117_440_512),  # 8 x 512 x 7,168
    # Images: the layout decides which dimension is rounded to 128s.
    ("f32[224,224,3,64]{3,2,1,0:T(8,128)}", 51_380_224, 205_520_896),  # 224 x 224 x 8 x 128
    ("f32[224,224,3,64]{0,3,2,1:T(8,128)}", 11_010_048, 44_040_192),  # 256 x 224 x 3 x 64
    ("bf16[32,56,56,64]{0,3,2,1:T(8,128)(2,1)}", 25_690_112, 51_380_224),  # 128 x 56 x 56 x 64
    ("bf16[128,56,56,64]{0,3,2,1:T(8,128)(2,1)}", 25_690_112, 51_380_224),  # 128 of 128: fits
    ("bf16[32,56,56,64]{3,0,2,1:T(8,128)(2,1)}", 12_845_056, 25_690_112),  # 32 x 56 x 56 x 128
]


@pytest.mark.parametrize(("text", "elements", "size_bytes"), STORED)
def test_arrays_are_stored_in_whole_tiles(text: str, elements: int, size_bytes: int) -> None:
    (shape,) = parse_shapes(text)
    assert (shape.padded_elements, shape.padded_bytes) == (elements, size_bytes)


def test_the_table_has_at_least_40_arrays() -> None:
    assert len({text for text, _, _ in STORED}) >= 40


def _padding(text: str, flop: float = float("nan")) -> Padding:
    instruction = parse_instruction(text)
    assert instruction is not None
    padding = padding_of(instruction, flop)
    assert padding is not None
    return padding


def test_a_dot_multiplies_padded_sizes_of_result_and_contracted_dimension() -> None:
    dot = _padding(
        "%dot.1 = bf16[100,30]{1,0:T(8,128)(2,1)} dot(bf16[100,500]{1,0:T(8,128)(2,1)} %x, "
        "bf16[500,30]{1,0:T(8,128)(2,1)} %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    )
    # 100 x 30 x 500, and 104 x 128 x 512.
    assert (dot.is_product, dot.useful, dot.padded) == (True, 1_500_000, 6_815_744)


CONVOLUTION = (
    "%convolution.1 = bf16[30,56,56,100]{3,0,2,1:T(8,128)(2,1)} convolution("
    "bf16[30,56,56,64]{3,0,2,1:T(8,128)(2,1)} %x, bf16[3,3,64,100]{3,2,1,0:T(8,128)(2,1)} %w), "
    "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f"
)


def test_a_convolution_multiplies_padded_features() -> None:
    # 30 of 32 in the batch, and 100 and 64 of 128 features: 0.9375 x 0.78125 x 0.5 is useful.
    convolution = _padding(CONVOLUTION)
    assert convolution.is_product
    assert convolution.share == pytest.approx(1 - 0.9375 * 0.78125 * 0.5)
    instruction = parse_instruction(CONVOLUTION)
    assert instruction is not None
    assert batch_of(instruction) == (30, 32)


FUSED = (
    "%fusion.1 = bf16[96,64]{1,0:T(8,128)(2,1)} fusion(bf16[96,200]{1,0:T(8,128)(2,1)} %x, "
    "bf16[200,64]{1,0:T(8,128)(2,1)} %w), kind=kOutput, calls=%fused_computation.1"
)


def test_flop_of_a_fused_product_reveal_the_contracted_dimension() -> None:
    # 2 x 96 x 64 x 200 = 2,457,600, plus 96 x 64 for an addition. The 200 is stored as 200 rows of
    # the weight, without padding, or as 256 columns of the activation: the smaller one counts.
    fusion = _padding(FUSED, 2_457_600 + 6_144)
    assert (fusion.is_product, fusion.useful, fusion.padded) == (True, 1_228_800, 96 * 128 * 200)


def test_a_fusion_without_matching_flop_counts_bytes() -> None:
    # (96 x 64 + 96 x 200 + 200 x 64) x 2 B, and (96 x 128 + 96 x 256 + 200 x 128) x 2 B.
    for flop in (float("nan"), 12_345.0):
        fusion = _padding(FUSED, flop)
        assert (fusion.is_product, fusion.useful, fusion.padded) == (False, 76_288, 124_928)


def test_an_elementwise_operation_moves_results_and_operands() -> None:
    shape = "f32[100,30]{1,0:T(8,128)}"
    add = _padding(f"%add.1 = {shape} add({shape} %x, {shape} %y)")
    assert (add.is_product, add.useful, add.padded) == (False, 3 * 12_000, 3 * 53_248)


def test_a_reduction_moves_its_operand_and_its_result() -> None:
    reduction = _padding(
        "%reduce.1 = f32[100]{0:T(128)} reduce(f32[100,30]{1,0:T(8,128)} %x, f32[]{:T(128)} %c), "
        "dimensions={1}, to_apply=%add"
    )
    # 400 + 12,000 + 4 B, and 512 + 53,248 + 512 B.
    assert (reduction.useful, reduction.padded) == (12_404, 54_272)


@pytest.mark.parametrize(
    ("text", "useful", "padded"),
    [
        # Only the update is written, not the whole array.
        (
            "%u = f32[16,512,7168]{2,0,1:T(8,128)} dynamic-update-slice("
            "f32[16,512,7168]{2,0,1:T(8,128)} %a, f32[1,512,7168]{2,0,1:T(8,128)} %b, "
            "s32[]{:T(128)} %i)",
            14_680_064,
            117_440_512,
        ),
        # A slice of 512 B takes a tile of 4 KiB.
        (
            "%s = f32[1,128]{1,0:T(8,128)} slice(f32[64,128]{1,0:T(8,128)} %a), "
            "slice={[0:1], [0:128]}",
            512,
            4_096,
        ),
        # The first result of a copy is the copied array.
        (
            "%copy-done = f32[8,128]{1,0:T(8,128)} copy-done((f32[8,128]{1,0:T(8,128)}, "
            "f32[8,128]{1,0:T(8,128)S(5)}, u32[]{:S(2)}) %copy-start)",
            4_096,
            4_096,
        ),
    ],
)
def test_only_arrays_that_move_count(text: str, useful: int, padded: int) -> None:
    moved = _padding(text)
    assert (moved.useful, moved.padded) == (useful, padded)


def test_padding_is_unknown_without_tiles() -> None:
    plain = parse_instruction("%add.1 = f32[100,30]{1,0} add(f32[100,30]{1,0} %x)")
    assert plain is not None
    assert padding_of(plain) is None
