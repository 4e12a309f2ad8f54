"""Work of instructions in an optimized module, worked out by hand."""

# ruff: noqa: E501

from __future__ import annotations

import pytest

from tb_perfadvisor.tpu_compiler.optimized_hlo import parse_module, product_flop
from tb_perfadvisor.trace.hlo_text import parse_instruction

MODULE = """\
HloModule jit_f, is_scheduled=true

%fused_computation (param_0.1: bf16[128,512], param_1.1: bf16[512,256]) -> bf16[128,256] {
  %param_0.1 = bf16[128,512]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %param_1.1 = bf16[512,256]{1,0:T(8,128)(2,1)} parameter(1)
  ROOT %convolution.1 = bf16[128,256]{1,0:T(8,128)(2,1)} convolution(%param_0.1, %param_1.1), dim_labels=bf_io->bf
}

%fused_computation.1 (param_0.2: f32[64,1024,128], param_1.2: s32[]) -> f32[1,1024,128] {
  %param_0.2 = f32[64,1024,128]{2,1,0:T(8,128)} parameter(0)
  %param_1.2 = s32[]{:T(128)S(6)} parameter(1)
  %constant.1 = s32[]{:T(128)} constant(0)
  ROOT %dynamic-slice.1 = f32[1,1024,128]{2,1,0:T(8,128)} dynamic-slice(%param_0.2, %param_1.2, %constant.1, %constant.1), dynamic_slice_sizes={1,1024,128}
}

%body (arg.1: (s32[], bf16[128,512])) -> (s32[], bf16[128,512]) {
  %arg.1 = (s32[]{:T(128)}, bf16[128,512]{1,0:T(8,128)(2,1)}) parameter(0)
  %get-tuple-element.1 = bf16[128,512]{1,0:T(8,128)(2,1)} get-tuple-element(%arg.1), index=1
  %copy.1 = bf16[128,512]{0,1:T(8,128)(2,1)} copy(%get-tuple-element.1)
  ROOT %tuple.1 = (s32[]{:T(128)}, bf16[128,512]{0,1:T(8,128)(2,1)}) tuple(%arg.1, %copy.1)
}

ENTRY %main.4 (x.1: bf16[128,512], w.1: bf16[512,256]) -> bf16[128,256] {
  %x.1 = bf16[128,512]{1,0:T(8,128)(2,1)} parameter(0)
  %w.1 = bf16[512,256]{1,0:T(8,128)(2,1)} parameter(1)
  %table = f32[64,1024,128]{2,1,0:T(8,128)} parameter(2)
  %index = s32[]{:T(128)} parameter(3)
  %copy-start = (bf16[128,512]{1,0:T(8,128)(2,1)S(1)}, bf16[128,512]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%x.1)
  %copy-done = bf16[128,512]{1,0:T(8,128)(2,1)S(1)} copy-done(%copy-start)
  %slice.1 = f32[1,1024,128]{2,1,0:T(8,128)} fusion(%table, %index), kind=kLoop, calls=%fused_computation.1
  %loop = (s32[]{:T(128)}, bf16[128,512]{1,0:T(8,128)(2,1)}) while(%tuple.9), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"12"}}
  ROOT %fusion.1 = bf16[128,256]{1,0:T(8,128)(2,1)} fusion(%copy-done, %w.1), kind=kOutput, calls=%fused_computation, backend_config={"window_config":{"estimated_cycles":"3874"}}
}
"""


def test_a_fusion_has_the_flop_of_the_product_inside() -> None:
    module = parse_module(MODULE)
    (fusion,) = [i for i, _ in module.executed if i.name == "fusion.1"]
    assert module.flop(fusion) == 2 * 128 * 256 * 512
    assert fusion.estimated_cycles == 3874
    assert fusion.text.startswith(
        "%fusion.1 = bf16[128,256]{1,0:T(8,128)(2,1)} "
        "fusion(bf16[128,512]{1,0:T(8,128)(2,1)S(1)} %copy-done,"
        " bf16[512,256]{1,0:T(8,128)(2,1)} %w.1), kind=kOutput"
    )


def test_arrays_on_the_chip_cost_no_bandwidth() -> None:
    module = parse_module(MODULE)
    size = {instruction.name: module.hbm_bytes(instruction) for instruction, _ in module.executed}
    # The result and the weight; the activation is in S(1).
    assert size["fusion.1"] == 2 * (128 * 256 + 512 * 256)
    # A prefetch reads main memory and writes the chip.
    assert size["copy-start"] == 2 * 128 * 512
    assert size["copy-done"] == 0


def test_a_fusion_that_slices_reads_the_slice_only() -> None:
    module = parse_module(MODULE)
    (fused,) = [i for i, _ in module.executed if i.name == "slice.1"]
    # The slice is read and written, 4 B each, and the index takes a row of 128: 512 B.
    assert module.hbm_bytes(fused) == 2 * 4 * 1024 * 128 + 512


def test_a_loop_runs_its_body_as_often_as_is_known() -> None:
    runs = {instruction.name: runs for instruction, runs in parse_module(MODULE).executed}
    assert runs["copy.1"] == 12
    assert runs["fusion.1"] == 1


CONVOLUTIONS = [
    # Every output sums 512 terms.
    (
        "%c = bf16[128,256] convolution(bf16[128,512] %x, bf16[512,256] %w), dim_labels=bf_io->bf",
        2 * 128 * 256 * 512,
    ),
    # 3 x 3 windows on 4 x 4 images: of the 3 positions of 4 outputs along each side, the first and
    # the last output miss one. 10 x 10 positions, times 2 x 8 images x 16 inputs x 32 outputs.
    (
        "%c = bf16[8,4,4,32] convolution(bf16[8,4,4,16] %x, bf16[3,3,16,32] %w), "
        "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f",
        2 * 8 * 16 * 32 * 10 * 10,
    ),
    # A batched product of [16,512,64] and [16,64,512] as a convolution over the batch: with holes
    # of 15 between the members and a stride of 15, each output meets one member.
    (
        "%c = bf16[16,512,512] convolution(bf16[16,512,64] %x, bf16[16,64,512] %w), "
        "window={size=16 stride=15 lhs_dilate=16}, dim_labels=0bf_0io->0bf",
        2 * 16 * 512 * 512 * 64,
    ),
    # A depthwise convolution: each output sums over one input.
    (
        "%c = bf16[8,4,4,32] convolution(bf16[8,4,4,32] %x, bf16[1,1,1,32] %w), "
        "window={size=1x1}, dim_labels=b01f_01io->b01f, feature_group_count=32",
        2 * 8 * 4 * 4 * 32,
    ),
    (
        "%d = bf16[100,30] dot(bf16[100,500] %x, bf16[500,30] %w), lhs_contracting_dims={1}, "
        "rhs_contracting_dims={0}",
        2 * 100 * 30 * 500,
    ),
    ("%a = bf16[100,30] add(bf16[100,30] %x, bf16[100,30] %y)", 0),
]


@pytest.mark.parametrize(("text", "flop"), CONVOLUTIONS)
def test_flop_of_products(text: str, flop: int) -> None:
    instruction = parse_instruction(text)
    assert instruction is not None
    assert product_flop(instruction) == flop


def test_text_without_an_entry_is_no_module() -> None:
    with pytest.raises(ValueError, match="no entry"):
        parse_module("HloModule jit_f")


LOOP = """\
HloModule jit_scan, is_scheduled=true

%fused_computation.2 (param_0: bf16[512,8,128], param_1: s32[], param_2: bf16[8,128], param_3: bf16[512,8,128]) -> (bf16[512,8,128], bf16[8,128]) {
  %param_0 = bf16[512,8,128]{2,1,0:T(8,128)(2,1)} parameter(0)
  %param_1 = s32[]{:T(128)S(6)} parameter(1)
  %param_2 = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} parameter(2)
  %param_3 = bf16[512,8,128]{2,1,0:T(8,128)(2,1)} parameter(3)
  %constant.2 = s32[]{:T(128)} constant(0)
  %dynamic-slice.2 = bf16[1,8,128]{2,1,0:T(8,128)(2,1)} dynamic-slice(%param_3, %param_1, %constant.2, %constant.2), dynamic_slice_sizes={1,8,128}
  %bitcast.1 = bf16[8,128]{1,0:T(8,128)(2,1)} bitcast(%dynamic-slice.2)
  %add.1 = bf16[8,128]{1,0:T(8,128)(2,1)} add(%bitcast.1, %param_2)
  %bitcast.2 = bf16[1,8,128]{2,1,0:T(8,128)(2,1)} bitcast(%add.1)
  %dynamic-update-slice.1 = bf16[512,8,128]{2,1,0:T(8,128)(2,1)} dynamic-update-slice(%param_0, %bitcast.2, %param_1, %constant.2, %constant.2)
  ROOT %tuple.2 = (bf16[512,8,128]{2,1,0:T(8,128)(2,1)}, bf16[8,128]{1,0:T(8,128)(2,1)S(1)}) tuple(%dynamic-update-slice.1, %add.1)
}

%condition (arg.2: (s32[], bf16[512,8,128])) -> pred[] {
  %constant.21 = s32[]{:T(128)} constant(512)
  %arg.2 = (s32[]{:T(128)}, bf16[512,8,128]{2,1,0:T(8,128)(2,1)}) parameter(0)
  %get-tuple-element.45 = s32[]{:T(128)} get-tuple-element(%arg.2), index=0
  ROOT %lt.2 = pred[]{:T(512)} compare(%get-tuple-element.45, %constant.21), direction=LT
}

%body (arg.3: (s32[], bf16[512,8,128])) -> (s32[], bf16[512,8,128]) {
  %arg.3 = (s32[]{:T(128)}, bf16[512,8,128]{2,1,0:T(8,128)(2,1)}) parameter(0)
  %state = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} custom-call()
  %index = s32[]{:T(128)S(6)} get-tuple-element(%arg.3), index=0
  %rows = bf16[512,8,128]{2,1,0:T(8,128)(2,1)} get-tuple-element(%arg.3), index=1
  %fusion.3 = (bf16[512,8,128]{2,1,0:T(8,128)(2,1)}, bf16[8,128]{1,0:T(8,128)(2,1)S(1)}) fusion(%rows, %index, %state, %rows), kind=kLoop, calls=%fused_computation.2
  ROOT %tuple.3 = (s32[]{:T(128)}, bf16[512,8,128]{2,1,0:T(8,128)(2,1)}) tuple(%index, %rows)
}

ENTRY %main.5 (x.1: bf16[512,8,128]) -> bf16[512,8,128] {
  %x.1 = bf16[512,8,128]{2,1,0:T(8,128)(2,1)} parameter(0)
  %loop = (s32[]{:T(128)}, bf16[512,8,128]{2,1,0:T(8,128)(2,1)}) while(%tuple.9), condition=%condition, body=%body
  ROOT %done = bf16[512,8,128]{2,1,0:T(8,128)(2,1)} get-tuple-element(%loop), index=1
}
"""


def test_a_loop_that_counts_up_to_a_constant_has_as_many_trips() -> None:
    module = parse_module(LOOP)
    assert [runs for i, runs in module.executed if i.name == "fusion.3"] == [512]


def test_a_fusion_that_updates_one_of_its_results_in_place_moves_only_the_update() -> None:
    module = parse_module(LOOP)
    (fusion,) = [i for i, _ in module.executed if i.name == "fusion.3"]
    # It reads one row of 8 x 128 16-bit numbers and writes one. The state is in S(1) and the index in
    # S(6), both on the chip.
    assert module.hbm_bytes(fusion) == 2 * 8 * 128 * 2


# As libtpu 0.0.52 nests fusions in a scan over layers: the layer is sliced inside an inner one.
NESTED = """\
HloModule jit_scan, is_scheduled=true

%slices (param_0.4: bf16[12,2048,1024], param_1.4: s32[]) -> bf16[2048,1024] {
  %param_0.4 = bf16[12,2048,1024]{2,1,0:T(8,128)(2,1)} parameter(0)
  %param_1.4 = s32[]{:T(128)S(6)} parameter(1)
  %constant.4 = s32[]{:T(128)} constant(0)
  %dynamic-slice.4 = bf16[1,2048,1024]{2,1,0:T(8,128)(2,1)} dynamic-slice(%param_0.4, %param_1.4, %constant.4, %constant.4), dynamic_slice_sizes={1,2048,1024}
  ROOT %bitcast.4 = bf16[2048,1024]{1,0:T(8,128)(2,1)} bitcast(%dynamic-slice.4)
}

%updates (param_0.5: bf16[12,1024,256], param_1.5: bf16[1024,256], param_2.5: s32[]) -> bf16[12,1024,256] {
  %param_0.5 = bf16[12,1024,256]{2,1,0:T(8,128)(2,1)} parameter(0)
  %param_1.5 = bf16[1024,256]{1,0:T(8,128)(2,1)} parameter(1)
  %param_2.5 = s32[]{:T(128)S(6)} parameter(2)
  %constant.5 = s32[]{:T(128)} constant(0)
  %bitcast.5 = bf16[1,1024,256]{2,1,0:T(8,128)(2,1)} bitcast(%param_1.5)
  ROOT %dynamic-update-slice.5 = bf16[12,1024,256]{2,1,0:T(8,128)(2,1)} dynamic-update-slice(%param_0.5, %bitcast.5, %param_2.5, %constant.5, %constant.5)
}

%outer (param_0.6: bf16[12,1024,256], param_1.6: s32[], param_2.6: bf16[2048,256], param_3.6: bf16[12,2048,1024]) -> bf16[12,1024,256] {
  %param_0.6 = bf16[12,1024,256]{2,1,0:T(8,128)(2,1)} parameter(0)
  %param_1.6 = s32[]{:T(128)S(6)} parameter(1)
  %param_2.6 = bf16[2048,256]{1,0:T(8,128)(2,1)S(1)} parameter(2)
  %param_3.6 = bf16[12,2048,1024]{2,1,0:T(8,128)(2,1)} parameter(3)
  %fusion.61 = bf16[2048,1024]{1,0:T(8,128)(2,1)} fusion(%param_3.6, %param_1.6), kind=kLoop, calls=%slices
  %convolution.6 = bf16[1024,256]{1,0:T(8,128)(2,1)} convolution(%fusion.61, %param_2.6), dim_labels=fb_io->bf
  ROOT %fusion.62 = bf16[12,1024,256]{2,1,0:T(8,128)(2,1)} fusion(%param_0.6, %convolution.6, %param_1.6), kind=kLoop, calls=%updates
}

ENTRY %main.6 (gradients: bf16[12,1024,256], index: s32[], x: bf16[2048,256], layers: bf16[12,2048,1024]) -> bf16[12,1024,256] {
  %gradients = bf16[12,1024,256]{2,1,0:T(8,128)(2,1)} parameter(0)
  %index = s32[]{:T(128)S(6)} parameter(1)
  %x = bf16[2048,256]{1,0:T(8,128)(2,1)S(1)} parameter(2)
  %layers = bf16[12,2048,1024]{2,1,0:T(8,128)(2,1)} parameter(3)
  ROOT %fusion.6 = bf16[12,1024,256]{2,1,0:T(8,128)(2,1)} fusion(%gradients, %index, %x, %layers), kind=kOutput, calls=%outer
}
"""


def test_what_fusions_inside_a_fusion_slice_and_update_counts_in_parts() -> None:
    module = parse_module(NESTED)
    (fusion,) = [i for i, _ in module.executed if i.name == "fusion.6"]
    # One layer of 2048 x 1024 is read and one gradient of 1024 x 256 written, 16 bits each.
    assert module.hbm_bytes(fusion) == 2 * (2048 * 1024 + 1024 * 256)


def test_a_fusion_inside_a_fusion_that_reads_everything_counts_in_whole() -> None:
    whole = NESTED.replace("dynamic-slice(%param_0.4, ", "reduce(%param_0.4, ")
    module = parse_module(whole)
    (fusion,) = [i for i, _ in module.executed if i.name == "fusion.6"]
    assert module.hbm_bytes(fusion) == 2 * (12 * 2048 * 1024 + 1024 * 256)


SCATTER = """\
HloModule jit_update, is_scheduled=true

%add_rows (param_0.7: f32[500000,128], param_1.7: s32[8192], param_2.7: f32[8192,128]) -> f32[500000,128] {
  %param_0.7 = f32[500000,128]{1,0:T(8,128)} parameter(0)
  %param_1.7 = s32[8192]{0:T(1024)S(1)} parameter(1)
  %param_2.7 = f32[8192,128]{1,0:T(8,128)} parameter(2)
  ROOT %scatter.7 = f32[500000,128]{1,0:T(8,128)} scatter(%param_0.7, %param_1.7, %param_2.7), to_apply=%add
}

ENTRY %main (table: f32[500000,128], ids: s32[8192], rows: f32[8192,128]) -> f32[500000,128] {
  %table = f32[500000,128]{1,0:T(8,128)} parameter(0)
  %ids = s32[8192]{0:T(1024)S(1)} parameter(1)
  %rows = f32[8192,128]{1,0:T(8,128)} parameter(2)
  ROOT %scatter_fusion = f32[500000,128]{1,0:T(8,128)} fusion(%table, %ids, %rows), kind=kCustom, calls=%add_rows
}
"""


def test_a_scatter_in_place_moves_its_rows_not_the_table() -> None:
    module = parse_module(SCATTER)
    (fusion,) = [i for i, _ in module.executed if i.name == "scatter_fusion"]
    # 8,192 rows of 128 numbers of 4 B are read, read again in the table, and written.
    assert module.hbm_bytes(fusion) == 3 * 8192 * 128 * 4


def test_a_condition_in_a_fusion_gives_the_trips_of_a_loop() -> None:
    text = """\
HloModule jit_loop, is_scheduled=true

%is_less (param_0: s32[], param_1: s32[]) -> pred[] {
  %param_0 = s32[]{:T(128)} parameter(0)
  %param_1 = s32[]{:T(128)} parameter(1)
  ROOT %lt.1 = pred[]{:T(512)} compare(%param_0, %param_1), direction=LT
}

%condition (arg.1: (s32[])) -> pred[] {
  %arg.1 = (s32[]{:T(128)}) parameter(0)
  %get-tuple-element.1 = s32[]{:T(128)} get-tuple-element(%arg.1), index=0
  %constant.1 = s32[]{:T(128)} constant(24)
  ROOT %fusion.1 = pred[]{:T(512)} fusion(%get-tuple-element.1, %constant.1), kind=kLoop, calls=%is_less
}

%body (arg.2: (s32[])) -> (s32[]) {
  %arg.2 = (s32[]{:T(128)}) parameter(0)
  %get-tuple-element.2 = s32[]{:T(128)} get-tuple-element(%arg.2), index=0
  %next = s32[]{:T(128)} add(%get-tuple-element.2, %get-tuple-element.2)
  ROOT %tuple.2 = (s32[]{:T(128)}) tuple(%next)
}

ENTRY %main (start: s32[]) -> (s32[]) {
  %start = s32[]{:T(128)} parameter(0)
  %tuple.1 = (s32[]{:T(128)}) tuple(%start)
  ROOT %while.1 = (s32[]{:T(128)}) while(%tuple.1), condition=%condition, body=%body
}
"""
    module = parse_module(text)
    assert {i.name: runs for i, runs in module.executed}["next"] == 24


def test_the_kernel_for_attention_multiplies_scores_and_values() -> None:
    # The text is that of libtpu 0.0.52 for 16 heads of 64 and 1,024 positions, without its body.
    text = (
        "%online-softmax = bf16[4,16,1024,64]{3,2,1,0:T(8,128)(2,1)S(1)} custom-call("
        "bf16[4,16,1024,1024]{3,2,1,0:T(8,128)(2,1)} %scores, bf16[4,16,1024,64]"
        '{3,2,1,0:T(8,128)(2,1)S(1)} %copy), custom_call_target="tpu_custom_call", '
        'metadata={op_name="online-softmax"}'
    )
    instruction = parse_instruction(text)
    assert instruction is not None
    assert product_flop(instruction) == 2 * 4 * 16 * 1024 * 1024 * 64
    assert product_flop(parse_instruction(text.replace("online-softmax", "mine"))) == 0  # type: ignore[arg-type]
