"""The cycles of kernels, by the better of the compiler's figures."""

# ruff: noqa: E501

from __future__ import annotations

import pytest

from tb_perfadvisor.tpu_compiler import GENERATIONS, Kernel
from tb_perfadvisor.tpu_compiler.kernels import group_size, kernels_of
from tb_perfadvisor.tpu_compiler.optimized_hlo import parse_module

V5E = GENERATIONS["v5e"]


def fusion(estimated: int, bundles: int) -> Kernel:
    """An addition of f32[1024,1024], by these figures."""
    module = parse_module(f"""\
HloModule m

ENTRY %main (x: f32[1024,1024]) -> f32[1024,1024] {{
  %x = f32[1024,1024]{{1,0:T(8,128)}} parameter(0)
  ROOT %add.1 = f32[1024,1024]{{1,0:T(8,128)}} add(%x, %x), backend_config={{"estimated_cycles":"{estimated}"}}
}}
""")
    (kernel,) = kernels_of(module, {"add.1": bundles} if bundles else {}, V5E)
    return kernel


def test_the_lesser_figure_counts() -> None:
    assert fusion(90_000, 80_000).cycles == 80_000
    assert fusion(70_000, 80_000).cycles == 70_000
    assert fusion(70_000, 0).cycles == 70_000


def test_a_kernel_takes_at_least_its_bytes() -> None:
    # 3 x 4 MiB at 819 GB/s take 15.36 us; the clock is 197e12 / 131,072 = 1.503 GHz.
    assert fusion(1_000, 1_000).cycles == pytest.approx(12 * 2**20 / 819e9 * 197e12 / 131_072)


@pytest.mark.parametrize(
    ("attributes", "size"),
    [
        (", replica_groups={{0,1},{2,3}}", 2),
        (", replica_groups={{0,1,2,3}}, use_global_device_ids=true", 4),
        (", replica_groups=[2,4]<=[8]", 4),
        (", replica_groups=mesh['axis_0'=4] {'axis_0'}", 4),
        (", replica_groups=mesh['x'=2,'y'=4] {'x','y'}", 8),
    ],
)
def test_group_sizes(attributes: str, size: int) -> None:
    assert group_size(attributes) == size


def test_a_collective_inside_a_fusion_takes_its_time_on_the_links() -> None:
    module = parse_module("""\
HloModule m

%fused (x: f32[4096,1024]) -> f32[1024,1024] {
  %x = f32[4096,1024]{1,0:T(8,128)} parameter(0)
  ROOT %sum = f32[1024,1024]{1,0:T(8,128)} reduce-scatter(%x), replica_groups={{0,1,2,3}}, dimensions={0}
}

ENTRY %main (x: f32[4096,1024]) -> f32[1024,1024] {
  %x = f32[4096,1024]{1,0:T(8,128)} parameter(0)
  ROOT %all-reduce-scatter = f32[1024,1024]{1,0:T(8,128)} fusion(%x), kind=kCustom, calls=%fused
}
""")
    (kernel,) = kernels_of(module, {}, V5E)
    # Three quarters of 16 MiB, half in each direction of a ring whose links carry 50 GB/s each.
    assert kernel.cycles == pytest.approx(
        16 * 2**20 * 3 / 4 / 2 / V5E.link_bytes_per_cycle, rel=1e-6
    )
    assert kernel.cycles > 16 * 2**20 / V5E.hbm_bytes_per_cycle


def gathering(space: str) -> Kernel:
    """Rows of 128 numbers, gathered by 212,992 indices."""
    module = parse_module(f"""\
HloModule m

%fused (t: f32[500000,128], i: s32[212992]) -> f32[212992,128] {{
  %t = f32[500000,128]{{1,0:T(8,128){space}}} parameter(0)
  %i = s32[212992]{{0:T(1024)}} parameter(1)
  ROOT %gather = f32[212992,128]{{1,0:T(8,128)S(1)}} gather(%t, %i), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,128}}
}}

ENTRY %main (t: f32[500000,128], i: s32[212992]) -> f32[212992,128] {{
  %t.1 = f32[500000,128]{{1,0:T(8,128){space}}} parameter(0)
  %i.1 = s32[212992]{{0:T(1024)}} parameter(1)
  ROOT %gather_fusion = f32[212992,128]{{1,0:T(8,128)S(1)}} fusion(%t.1, %i.1), kind=kCustom, calls=%fused
}}
""")
    (kernel,) = kernels_of(module, {"gather_fusion": 18_866}, V5E)
    return kernel


def test_rows_that_are_gathered_cost_more_than_the_bundles_of_one_trip() -> None:
    # Libtpu 0.0.52 counts 18,866 bundles, 0.09 for a row. With 65,536 rows of 256 numbers, whose
    # trips are in the text, it is 10.5 for a row, and at least 2.2 for tables on the chip.
    assert gathering("").cycles == 212_992 * 5
    assert gathering("S(1)").cycles == 212_992 * 2


def test_rows_that_are_scattered_count_and_the_rest_of_the_table_does_not() -> None:
    module = parse_module("""\
HloModule m

ENTRY %main (t: f32[500000,256], i: s32[4096], u: f32[4096,256]) -> f32[500000,256] {
  %t = f32[500000,256]{1,0:T(8,128)} parameter(0)
  %i = s32[4096]{0:T(1024)} parameter(1)
  %u = f32[4096,256]{1,0:T(8,128)} parameter(2)
  ROOT %scatter = f32[500000,256]{1,0:T(8,128)} scatter(%t, %i, %u), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=%add
}
""")
    (kernel,) = kernels_of(module, {}, V5E)
    # Three times 4 MiB take 23,092 cycles, and 4,096 rows 32,768.
    assert kernel.cycles == 4096 * 8
    assert kernel.hbm_bytes == 3 * 4096 * 256 * 4


def test_a_collective_beside_fusions_takes_its_time_from_its_start_on() -> None:
    gather = (
        "%all-gather = bf16[4096,2048]{1,0:T(8,128)(2,1)} all-gather(%x), dimensions={0},"
        " replica_groups={{0,1,2,3,4,5,6,7}}"
    )
    module = parse_module(f"""\
HloModule m

%started (x: bf16[512,2048]) -> bf16[4096,2048] {{
  %x = bf16[512,2048]{{1,0:T(8,128)(2,1)}} parameter(0)
  ROOT {gather}
}}

%async_collective_fusion.1 (x: bf16[512,2048]) -> bf16[4096,2048] {{
  %x = bf16[512,2048]{{1,0:T(8,128)(2,1)}} parameter(0)
  ROOT {gather}
}}

ENTRY %main (x: bf16[512,2048]) -> bf16[4096,2048] {{
  %x = bf16[512,2048]{{1,0:T(8,128)(2,1)S(1)}} parameter(0)
  %async-collective-start = bf16[4096,2048]{{1,0:T(8,128)(2,1)S(1)}} fusion(%x), kind=kCustom, calls=%started
  ROOT %fusion.1 = bf16[4096,2048]{{1,0:T(8,128)(2,1)S(1)}} fusion(%async-collective-start), kind=kOutput, calls=%async_collective_fusion.1
}}
""")
    start, beside = kernels_of(module, {"fusion.1": 1_000}, V5E)
    # Seven eighths of 16 MiB, half in each direction.
    assert start.cycles == pytest.approx(16 * 2**20 * 7 / 8 / 2 / V5E.link_bytes_per_cycle)
    assert (start.is_asynchronous, beside.is_asynchronous) == (True, False)
    assert beside.cycles == 1_000


def test_a_sum_of_which_each_device_keeps_a_part_is_sent_once() -> None:
    module = parse_module("""\
HloModule m

%all-reduce-scatter (x: f32[4096,1024]) -> f32[1024,1024] {
  %x = f32[4096,1024]{1,0:T(8,128)} parameter(0)
  %sum = f32[4096,1024]{1,0:T(8,128)} all-reduce(%x), replica_groups={{0,1,2,3}}, to_apply=%add
  %id = u32[] partition-id()
  ROOT %part = f32[1024,1024]{1,0:T(8,128)} dynamic-slice(%sum, %id, %id), dynamic_slice_sizes={1024,1024}
}

ENTRY %main (x: f32[4096,1024]) -> f32[1024,1024] {
  %x = f32[4096,1024]{1,0:T(8,128)} parameter(0)
  ROOT %fusion = f32[1024,1024]{1,0:T(8,128)} fusion(%x), kind=kCustom, calls=%all-reduce-scatter
}
""")
    (kernel,) = kernels_of(module, {}, V5E)
    assert kernel.cycles == pytest.approx(
        16 * 2**20 * 3 / 4 / 2 / V5E.link_bytes_per_cycle, rel=1e-6
    )
