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
