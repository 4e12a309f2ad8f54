from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.depthwise_convolution import DepthwiseConvolution
from tb_perfadvisor.testing import check_rule
from tests.support.xla_operation import FIXED, SLOW, check_limit, fires, legend, saved_ns

MATCHING = (
    (
        "%convolution.2 = bf16[32,56,56,128]{3,0,2,1:T(8,128)(2,1)} convolution(bf16[32,5"
        "6,56,128]{3,0,2,1:T(8,128)(2,1)} %x, bf16[3,3,1,128]{3,2,1,0:T(8,128)(2,1)} %w),"
        " window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, feature_group_count="
        "128",
        "",
    ),
)
OTHER = (
    (
        "%convolution.2 = bf16[32,56,56,128]{3,0,2,1:T(8,128)(2,1)} convolution(bf16[32,5"
        "6,56,128]{3,0,2,1:T(8,128)(2,1)} %x, bf16[3,3,64,128]{3,2,1,0:T(8,128)(2,1)} %w)"
        ", window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, feature_group_count"
        "=2",
        "",
    ),
    (
        "%convolution.3 = bf16[32,128]{1,0:T(8,128)(2,1)} convolution(bf16[32,256]{1,0:T("
        "8,128)(2,1)} %x, bf16[256,128]{1,0:T(8,128)(2,1)} %w), dim_labels=bf_io->bf",
        "",
    ),
)


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        DepthwiseConvolution, slow=SLOW, fixed=FIXED, saves="4ms", legend=legend(*MATCHING[0])
    )
    # Half of the 8 ms in both steps is expected.
    assert saved_ns(checked) == (0, 4_000_000, 8_000_000)


@pytest.mark.parametrize(("text", "path"), MATCHING)
def test_fires_on_matching_operations(text: str, path: str) -> None:
    assert fires(DepthwiseConvolution, text, path)


@pytest.mark.parametrize(("text", "path"), OTHER)
def test_ignores_other_operations(text: str, path: str) -> None:
    assert not fires(DepthwiseConvolution, text, path)


def test_fires_only_above_the_limit() -> None:
    check_limit(DepthwiseConvolution, *MATCHING[0])
