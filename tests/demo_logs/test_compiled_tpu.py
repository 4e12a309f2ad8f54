"""The schedule of a compiled program, from a small module whose times are worked out by hand."""

# ruff: noqa: E501

from __future__ import annotations

import pytest

from demo_logs.record.compiled import CompiledOperation, CompiledSchedule
from demo_logs.record.compiled_tpu import generation_named, schedule_of, source_lines
from tb_perfadvisor.tpu_compiler import CompiledProgram
from tb_perfadvisor.tpu_compiler.kernels import kernels_of
from tb_perfadvisor.tpu_compiler.optimized_hlo import parse_module

MODULE = """\
HloModule jit_train_step, is_scheduled=true

FileNames
1 "train.py"

FunctionNames
1 "train_step"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=4 end_column=10}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%fused_computation (param_0.1: bf16[128,512], param_1.1: bf16[512,256]) -> bf16[128,256] {
  %param_0.1 = bf16[128,512]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %param_1.1 = bf16[512,256]{1,0:T(8,128)(2,1)} parameter(1)
  ROOT %convolution.1 = bf16[128,256]{1,0:T(8,128)(2,1)} convolution(%param_0.1, %param_1.1), dim_labels=bf_io->bf
}

%condition (arg.2: (s32[], bf16[128,512])) -> pred[] {
  %constant.21 = s32[]{:T(128)} constant(3)
  %arg.2 = (s32[]{:T(128)}, bf16[128,512]{1,0:T(8,128)(2,1)}) parameter(0)
  %get-tuple-element.45 = s32[]{:T(128)} get-tuple-element(%arg.2), index=0
  ROOT %lt.2 = pred[]{:T(512)} compare(%get-tuple-element.45, %constant.21), direction=LT
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
  %buffer = bf16[8,128]{1,0:T(8,128)(2,1)} custom-call(), custom_call_target="AllocateBuffer"
  %copy-start = (bf16[128,512]{1,0:T(8,128)(2,1)S(1)}, bf16[128,512]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%x.1)
  %copy-start.1 = (bf16[128,512]{1,0:T(8,128)(2,1)S(5)}, bf16[128,512]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%x.1)
  %dynamic-slice-start = ((bf16[6,128,512]{2,1,0:T(8,128)(2,1)S(5)}, s32[]{:T(128)}), bf16[1,128,512]{2,1,0:T(8,128)(2,1)}, u32[]{:S(2)}) dynamic-slice-start(%stack, %index)
  %all-gather-start = (bf16[128,512]{1,0:T(8,128)(2,1)}, bf16[512,512]{1,0:T(8,128)(2,1)}) all-gather-start(%x.1), replica_groups=[1,4]<=[4], dimensions={0}
  %copy-done = bf16[128,512]{1,0:T(8,128)(2,1)S(1)} copy-done(%copy-start)
  %loop = (s32[]{:T(128)}, bf16[128,512]{1,0:T(8,128)(2,1)}) while(%tuple.9), condition=%condition, body=%body
  ROOT %fusion.1 = bf16[128,256]{1,0:T(8,128)(2,1)} fusion(%copy-done, %w.1), kind=kOutput, calls=%fused_computation, metadata={op_name="jit(train_step)/dot_general" stack_frame_id=1}, backend_config={"window_config":{"estimated_cycles":"1750"}}
}
"""


def schedule() -> CompiledSchedule:
    generation = generation_named("v6e")
    kernels = kernels_of(parse_module(MODULE), {}, generation)
    program = CompiledProgram("v6e", "0.10", "0.0", kernels, MODULE, b"proto", {})
    return schedule_of(program, generation, chips=4)


def operations() -> dict[str, CompiledOperation]:
    return {operation.name: operation for operation in schedule().operations}


def test_the_schedule_has_what_takes_time_in_order() -> None:
    assert [operation.name for operation in schedule().operations] == [
        *("copy-start", "copy-start.1", "dynamic-slice-start", "all-gather-start", "copy-done"),
        *("loop", "fusion.1"),
    ]
    assert schedule().module == "jit_train_step"
    assert schedule().device == "TPU v6 Lite"


def test_a_product_has_its_time_its_category_and_its_place_in_the_program() -> None:
    product = operations()["fusion.1"]
    # 1,750 cycles at 918e12 / (4 x 131,072) = 1.751e9 per second.
    assert product.duration_ps == pytest.approx(999_464, rel=1e-4)
    assert product.flop == 2 * 128 * 512 * 256
    assert product.category == "convolution fusion"
    assert product.path == "jit(train_step)/dot_general"
    assert product.source == "train.py:7"
    # Weights of 512 x 256 and a result of 128 x 256 come from and go to main memory; 16 bits each.
    moved = 2 * (512 * 256 + 128 * 256)
    assert product.memory_ps == pytest.approx(moved / 1638e9 * 1e12, rel=1e-3)
    assert product.traffic_bytes == moved + 2 * 128 * 512
    assert product.text.endswith("kind=kOutput, calls=%fused_computation")
    assert "bf16[512,256]{1,0:T(8,128)(2,1)} %w.1" in product.text


def test_transfers_use_the_memory_the_link_to_the_host_or_those_to_other_chips() -> None:
    found = operations()
    size = 2 * 128 * 512
    prefetch, offload, gather = (
        found[name] for name in ("copy-start", "copy-start.1", "all-gather-start")
    )
    assert prefetch.channel == "memory"
    assert prefetch.transfer_ps == pytest.approx(size / 1638e9 * 1e12, rel=1e-3)
    assert offload.channel == "host"
    assert offload.transfer_ps == pytest.approx(size / 27.7e9 * 1e12, rel=1e-3)
    assert gather.channel == "links"
    # Of six arrays in host memory, one moves.
    part = found["dynamic-slice-start"]
    assert (part.channel, part.transfer_ps) == ("host", offload.transfer_ps)
    assert found["copy-done"].waits_for == "copy-start"


def test_a_loop_has_its_body_and_its_trips() -> None:
    loop = operations()["loop"]
    assert loop.trips == 3
    assert [(inside.name, inside.category) for inside in loop.body] == [
        ("copy.1", "data formatting")
    ]


def test_lines_of_frames_come_from_the_tables_of_the_module() -> None:
    assert source_lines(MODULE) == {1: "train.py:7"}
