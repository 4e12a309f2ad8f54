from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.costly_operations import MaxPoolGradient
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import xla_op
from tests.support.xla_operation import FIXED, SLOW, check_limit, fires, legend, saved_ns

MATCHING = (
    (
        "%select-and-scatter.1 = f32[32,56,56,128]{3,0,2,1:T(8,128)} select-and-scatter(f"
        "32[32,56,56,128]{3,0,2,1:T(8,128)} %x, f32[32,28,28,128]{3,0,2,1:T(8,128)} %dy, "
        "f32[]{:T(128)} %zero), window={size=1x2x2x1 stride=1x2x2x1}, select=%ge, scatter"
        "=%add",
        "",
    ),
    (
        "%select_and_scatter_fusion.2 = f32[1024,1024]{1,0:T(8,128)} fusion(f32[1024,1024"
        "]{1,0:T(8,128)} %p0), kind=kLoop, calls=%fused_computation.3",
        "",
    ),
)
OTHER = (
    (
        "%reduce-window.1 = f32[1024,1024]{1,0:T(8,128)} reduce-window(f32[1024,1024]{1,0"
        ":T(8,128)} %x, f32[]{:T(128)} %zero), window={size=2x2 stride=2x2}, to_apply=%ad"
        "d",
        "",
    ),
    (
        "%scatter.1 = f32[1024,1024]{1,0:T(8,128)} scatter(f32[1024,1024]{1,0:T(8,128)} %"
        "x, s32[8]{0:T(128)} %i, f32[8,1024]{1,0:T(8,128)} %u), to_apply=%add",
        "",
    ),
)


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        MaxPoolGradient, slow=SLOW, fixed=FIXED, saves="4ms", legend=legend(*MATCHING[0])
    )
    # Half of the 8 ms in both steps is expected.
    assert saved_ns(checked) == (0, 4_000_000, 8_000_000)


@pytest.mark.parametrize(("text", "path"), MATCHING)
def test_fires_on_matching_operations(text: str, path: str) -> None:
    assert fires(MaxPoolGradient, text, path)


@pytest.mark.parametrize(("text", "path"), OTHER)
def test_ignores_other_operations(text: str, path: str) -> None:
    assert not fires(MaxPoolGradient, text, path)


def test_fires_only_above_the_limit() -> None:
    check_limit(MaxPoolGradient, *MATCHING[0])


def test_at_best_what_reads_the_gradient_is_fused_with_what_computes_it() -> None:
    name, text = "select-and-scatter.1", MATCHING[0][0]
    array = "f32[32,56,56,128]{3,0,2,1:T(8,128)}"
    reader = f"%fusion.9 = {array} fusion({array} %{name}), kind=kLoop, calls=%fused_computation.9"
    symbols = legend(text, "") | {"X": xla_op("fusion.9", reader)}
    (finding,) = find(MaxPoolGradient, SLOW, legend=symbols) or ()
    assert finding.saving is not None
    # 4 ms in each of two steps, and half of the reader's 6 ms: it reads as much as it writes.
    assert finding.saving.high_ns == 2 * (4_000_000 + 3_000_000)
    assert finding.saving.expected_ns == 4_000_000
    assert finding.summary.startswith("4.00 ms of each step (40.0 %)")


def test_a_reader_takes_at_least_as_long_as_its_product() -> None:
    name, text = "select-and-scatter.1", MATCHING[0][0]
    array = "f32[32,56,56,128]{3,0,2,1:T(8,128)}"
    product = (
        f"%convolution.1 = {array} convolution({array} %x,"
        " f32[3,3,128,128]{3,2,1,0:T(8,128)} %w), window={size=3x3 pad=1_1x1_1},"
        " dim_labels=b01f_01io->b01f"
    )
    reader = (
        f"%fusion.9 = {array} fusion({array} %{name}), kind=kOutput, calls=%fused_computation.9"
    )
    # 2 x 32 x 56 x 56 x 128 x 9 x 128 = 29.6 GFLOP take 150 us at 197 TFLOP/s, of 600 us.
    for cell, gone_ns in (("100us", 300_000), ("30us", 180_000 - 150_264)):
        slow = SLOW.replace("cell 1ms", f"cell {cell}")
        symbols = legend(text, "") | {"X": xla_op("fusion.9", reader, product=product)}
        (finding,) = find(MaxPoolGradient, slow, legend=symbols, device="TPU v5e") or ()
        assert finding.saving is not None
        own_ns = 400_000 if cell == "100us" else 120_000
        assert finding.saving.high_ns == pytest.approx(2 * (own_ns + gone_ns), rel=0.01)
