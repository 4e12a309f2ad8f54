from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from tb_perfadvisor import analyze
from tb_perfadvisor.rules.compute.kernels import LowOccupancy
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import check_rule, draw, find, ms, run_of
from tb_perfadvisor.testing.symbols import Symbol, kernel, operator
from tb_perfadvisor.trace import Device, KernelFamily, Precision
from tb_perfadvisor.trace.tables import CounterTable, make_table

H100 = Device(0, "NVIDIA H100 80GB HBM3", "gpu", multiprocessors=132)
# TraceLens' h100 recordings have this kernel.
NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>"


def legend(blocks: int) -> dict[str, Symbol]:
    return {
        "w": kernel(NORM, grid_blocks=blocks, block_threads=256),
        "f": kernel(NORM, grid_blocks=132, block_threads=256),
    }


SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |oSSSSSSSSS|oSSSSSSSSS|
    gpu 7  |wwwwHHHHHH|wwwwHHHHHH|
"""
FIXED = """
    cell 1ms
    step   |........|........|
    main   |oSSSSSSS|oSSSSSSS|
    gpu 7  |ffHHHHHH|ffHHHHHH|
"""


def test_saves_what_the_fix_saves() -> None:
    # With 33 of 132 multiprocessors, a quarter of 4 ms would do; halfway to that is 2.5 ms.
    checked = check_rule(
        LowOccupancy, slow=SLOW, fixed=FIXED, saves="2ms", legend=legend(33), device=H100,
        exactly=False,
    )  # fmt: skip
    assert checked.expected_ns == 1_500_000
    (finding,) = checked.findings
    assert finding.saving is not None
    assert finding.saving.high_ns == 2 * 3_000_000
    assert "keep only 25.0 % of the 132 multiprocessors busy" in finding.summary


def test_counters_that_were_sampled_stand_beside_the_kernels() -> None:
    # Synthetic: a sample each millisecond, half of the peak while these kernels run.
    trace = draw(SLOW, legend=legend(33), device=H100)
    metric = "sm__warps_active.avg.pct_of_peak_sustained_active"
    at_ns = ms(1) * np.arange(21)
    sampled = make_table(
        CounterTable,
        {
            "at_ns": at_ns,
            "device": np.zeros(21),
            "metric": np.full(21, len(trace.strings)),
            "value": np.where(at_ns // ms(1) % 10 < 4, 50.0, 95.0),
        },
    )
    run = run_of(replace(trace, strings=(*trace.strings, metric), counters=sampled))
    (finding,) = LowOccupancy().check(Signals(run))
    (table,) = (each for each in finding.evidence if each.title.startswith("Hardware counters"))
    assert isinstance(table, Table)
    assert table.rows == (("Achieved occupancy", 0.5, 8, metric),)


def product(m: int, n: int, k: int) -> dict[str, Symbol]:
    """Drawn as an operator and its kernel with 33 blocks, which takes 4 ms."""
    dtype = "c10::BFloat16"
    gemm = kernel(
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64",
        family=KernelFamily.MATMUL,
        precision=Precision.BITS_16,
        tensor_cores=1,
        grid_blocks=33,
        block_threads=384,
    )
    shapes = f"[[{m},{k}],[{k},{n}]]"
    return {"o": operator("aten::mm", shapes=shapes, dtypes=f"{dtype};{dtype}"), "w": gemm}


def test_a_product_gets_no_faster_than_its_shape_allows() -> None:
    trace = SLOW.replace("H", "k")
    (finding,) = find(LowOccupancy, trace, legend=product(8192, 8192, 8192), device=H100) or ()
    assert finding.saving is not None
    # 1.28 ms are achievable (see tests/rules/test_dominant_kernel.py), not a quarter of 4 ms.
    assert finding.saving.high_ns == pytest.approx(2 * (4e6 - 1.277e6), rel=1e-3)


def test_products_that_more_blocks_may_not_help_pass() -> None:
    trace = SLOW.replace("H", "k")
    for sizes in (
        (16384, 8192, 8192),  # 2.5 of 4 ms are achievable
        (64, 8192, 65536),  # 0.4 of 4 ms, but the result has 128 tiles for 132 multiprocessors
        (128, 262144, 1024),  # 0.2 of 4 ms, but bound by memory
    ):
        assert find(LowOccupancy, trace, legend=product(*sizes), device=H100) == (), sizes


def test_full_or_unknown_grids_pass() -> None:
    assert find(LowOccupancy, SLOW, legend=legend(132), device=H100) == ()
    assert find(LowOccupancy, SLOW, legend={"w": kernel(NORM)}, device=H100) == ()
    assert find(LowOccupancy, SLOW, legend=legend(33)) == ()


def test_fires_only_beyond_the_limits() -> None:
    for name, fires_at, passes_at in (
        ("minimum_share", 0.29, 0.31),  # 3 ms of 10
        ("minimum_duration_ns", 3_999_999, 4_000_001),
        ("maximum_filled_share", 0.26, 0.25),
    ):
        assert find(LowOccupancy, SLOW, legend=legend(33), device=H100, settings={name: fires_at})
        assert (
            find(LowOccupancy, SLOW, legend=legend(33), device=H100, settings={name: passes_at})
            == ()
        )


@pytest.mark.corpus
def test_finds_128_tiles_on_256_multiprocessors(corpus: Path) -> None:
    report = analyze(corpus / "tracelens-jax/test_data_jax_te_fused_attn_categorization")
    (finding,) = [f for f in report.findings if f.rule_id == "low-occupancy"]
    # 4096 x 2048 in tiles of 256 x 256: 16 times 8 blocks.
    assert "256 multiprocessors" in finding.summary
