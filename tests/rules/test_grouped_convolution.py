"""The texts are those of libtpu 0.0.52 for a TPU v5e."""

from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.costly_operations import GroupedConvolution, TransposeOverhead
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import xla_op
from tb_perfadvisor.trace import KernelFamily
from tests.support.xla_operation import FIXED, SLOW, fires, legend, saved_ns

PATH = "jit(f)/conv_general_dilated"
# Eight groups of 32 channels, as XLA writes them: a third spatial dimension of size 8.
SEPARATED = (
    "%convolution-base-dilated.1 = bf16[32,56,56,8,32]{4,0,3,2,1:T(8,128)(2,1)} convolution("
    "bf16[32,56,56,8,32]{4,0,3,2,1:T(8,128)(2,1)} %x, bf16[3,3,32,8,32]{4,2,3,1,0:T(8,128)(2,1)} "
    "%w), window={size=3x3x8 stride=1x1x7 pad=1_1x1_1x0_0 lhs_dilate=1x1x8}, "
    "dim_labels=b012f_01i2o->b012f"
)
GROUPED = (
    "%convolution.2 = bf16[32,56,56,128]{3,0,2,1:T(8,128)(2,1)} convolution(bf16[32,56,56,128]"
    "{3,0,2,1:T(8,128)(2,1)} %x, bf16[3,3,64,128]{3,2,1,0:T(8,128)(2,1)} %w), "
    "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, feature_group_count=2"
)
MATCHING = ((SEPARATED, PATH), (GROUPED, ""))
OTHER = (
    # Depthwise: one channel per group.
    (
        "%convolution.3 = bf16[32,56,56,256]{3,0,2,1:T(8,128)(2,1)} convolution("
        "bf16[32,56,56,256]{3,0,2,1:T(8,128)(2,1)} %x, bf16[3,3,1,256]{3,2,1,0:T(2,128)(2,1)} %w), "
        "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, feature_group_count=256",
        "",
    ),
    # A batch of matrix products: all dimensions of the window separate them.
    (
        "%convolution.4 = bf16[16,128,64]{2,1,0:T(8,128)(2,1)} convolution(bf16[16,128,32]"
        "{2,1,0:T(8,128)(2,1)} %x, bf16[16,32,64]{2,1,0:T(8,128)(2,1)} %w), "
        "window={size=16 stride=15 lhs_dilate=16}, dim_labels=0bf_0io->0bf",
        "",
    ),
    # A regular convolution, and a matrix product.
    (
        "%convolution.5 = bf16[32,56,56,256]{3,0,2,1:T(8,128)(2,1)} convolution("
        "bf16[32,56,56,256]{3,0,2,1:T(8,128)(2,1)} %x, bf16[3,3,256,256]{3,2,1,0:T(8,128)(2,1)} "
        "%w), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f",
        "",
    ),
    (
        "%convolution.6 = bf16[32,128]{1,0:T(8,128)(2,1)} convolution(bf16[32,256]{1,0:T(8,128)"
        "(2,1)} %x, bf16[256,128]{1,0:T(8,128)(2,1)} %w), dim_labels=bf_io->bf",
        "",
    ),
)


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        GroupedConvolution, slow=SLOW, fixed=FIXED, saves="4ms", legend=legend(*MATCHING[0])
    )
    # The rates of the device are unknown, so a quarter of the 8 ms in both steps remains.
    assert saved_ns(checked) == (0, 6_000_000, 8_000_000)


@pytest.mark.parametrize(("text", "path"), MATCHING)
def test_fires_on_matching_operations(text: str, path: str) -> None:
    assert fires(GroupedConvolution, text, path)


@pytest.mark.parametrize(("text", "path"), OTHER)
def test_ignores_other_operations(text: str, path: str) -> None:
    assert not fires(GroupedConvolution, text, path)


def test_fires_only_above_the_limit() -> None:
    # Of 4 ms, 801 us remain (see below): 3.2 of 10 ms.
    assert fires(GroupedConvolution, *MATCHING[0], minimum_share=0.31)
    assert not fires(GroupedConvolution, *MATCHING[0], minimum_share=0.33)


def test_a_convolution_inside_a_fusion_keeps_the_time_of_one_group() -> None:
    fusion = xla_op(
        "fusion.1",
        "%fusion.1 = bf16[32,56,56,8,32]{4,0,3,2,1:T(8,128)(2,1)} fusion("
        "bf16[32,56,56,8,32]{4,0,3,2,1:T(8,128)(2,1)} %x, bf16[3,3,32,8,32]{4,2,3,1,0:T(8,128)"
        "(2,1)} %w), kind=kOutput, calls=%fused_computation",
        path=PATH,
        product=SEPARATED,
    )
    findings = find(GroupedConvolution, SLOW, legend={"s": fusion}, device="TPU v5e")
    assert findings
    saving = findings[0].saving
    assert saving is not None
    # One group of 256 channels: 2 x 32 x 56 x 56 x 256 x 9 x 256 = 118.38 GFLOP, at 197 TFLOP/s
    # 600,913 ns, and 801,218 ns at three quarters of that, which is usual. Twice as long as usual
    # is expected, in both steps.
    assert saving.high_ns == 8_000_000 - 2 * 600_913
    assert saving.expected_ns == 8_000_000 - 2 * 1_602_437


def test_a_convolution_that_is_faster_than_with_one_group_passes() -> None:
    # One group takes 801 us (see above); this one takes 600, and its copy 150.
    text = (
        "%copy.3 = bf16[32,56,56,8,32]{4,0,3,2,1:T(8,128)(2,1)} copy(bf16[32,56,56,8,32]"
        "{2,4,3,1,0:T(8,128)(2,1)} %bitcast.6)"
    )
    legend = {
        "s": xla_op("convolution-base-dilated.1", SEPARATED, path=PATH),
        "c": xla_op("copy.3", text, family=KernelFamily.LAYOUT, path=PATH),
    }
    slow = SLOW.replace("XXXXXXssss", "XXXXXssssc")
    for cell, is_found in (("150us", False), ("250us", True)):
        trace = slow.replace("cell 1ms", f"cell {cell}")
        findings = find(GroupedConvolution, trace, legend=legend, device="TPU v5e")
        assert bool(findings) == is_found


def test_copies_that_rearrange_the_channels_belong_to_the_convolution() -> None:
    copy = xla_op(
        "copy.3",
        "%copy.3 = bf16[32,56,56,8,32]{4,0,3,2,1:T(8,128)(2,1)} copy(bf16[32,56,56,8,32]"
        "{2,4,3,1,0:T(8,128)(2,1)} %bitcast.6)",
        family=KernelFamily.LAYOUT,
        path=PATH,
    )
    convolution = xla_op("convolution-base-dilated.1", SEPARATED, path=PATH)
    slow = SLOW.replace("XXXXXXssss", "XXXXXXscss")
    symbols = {"s": convolution, "c": copy}
    (finding,) = find(GroupedConvolution, slow, legend=symbols) or ()
    assert finding.saving is not None
    assert finding.saving.high_ns == 8_000_000
    assert find(TransposeOverhead, slow, legend=symbols) == ()
    # Without the convolution, they are layout changes as any others.
    assert find(TransposeOverhead, slow, legend={**symbols, "s": xla_op("other", "")})
