from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.slice_of_padded_dim import SliceOfPaddedDim
from tb_perfadvisor.testing import check_rule
from tests.support.xla_operation import FIXED, SLOW, check_limit, fires, legend, saved_ns

MATCHING = (
    (
        "%slice.1 = f32[1024,100]{1,0:T(8,128)} slice(f32[1024,1024]{1,0:T(8,128)} %p0), "
        "slice={[0:1024], [0:100]}",
        "",
    ),
    (
        "%slice.2 = f32[1020,1024]{1,0:T(8,128)} slice(f32[1024,1024]{1,0:T(8,128)} %p0),"
        " slice={[4:1024], [0:1024]}",
        "",
    ),
    (
        "%slice.3 = f32[1024,128]{1,0:T(8,128)} slice(f32[1024,1024]{1,0:T(8,128)} %p0), "
        "slice={[0:1024], [64:192]}",
        "",
    ),
    (
        "%dynamic-slice.1 = f32[1024,1]{1,0:T(8,128)} dynamic-slice(f32[1024,1024]{1,0:T("
        "8,128)} %p0, s32[] %i, s32[] %j), dynamic_slice_sizes={1024,1}",
        "",
    ),
)
OTHER = (
    (
        "%slice.1 = f32[1024,128]{1,0:T(8,128)} slice(f32[1024,1024]{1,0:T(8,128)} %p0), "
        "slice={[0:1024], [128:256]}",
        "",
    ),
    (
        "%slice.2 = f32[512,1024]{1,0:T(8,128)} slice(f32[1024,1024]{1,0:T(8,128)} %p0), "
        "slice={[512:1024], [0:1024]}",
        "",
    ),
    (
        "%slice.3 = f32[1,512,7168]{2,1,0:T(8,128)} slice(f32[16,512,7168]{2,1,0:T(8,128)"
        "} %p0), slice={[3:4], [0:512], [0:7168]}",
        "",
    ),
    (
        "%dynamic-slice.1 = f32[1,512,7168]{2,1,0:T(8,128)} dynamic-slice(f32[16,512,7168"
        "]{2,1,0:T(8,128)} %p0, s32[] %i), dynamic_slice_sizes={1,512,7168}",
        "",
    ),
)


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        SliceOfPaddedDim, slow=SLOW, fixed=FIXED, saves="4ms", legend=legend(*MATCHING[0])
    )
    # Half of the 8 ms in both steps is expected.
    assert saved_ns(checked) == (0, 4_000_000, 8_000_000)


@pytest.mark.parametrize(("text", "path"), MATCHING)
def test_fires_on_matching_operations(text: str, path: str) -> None:
    assert fires(SliceOfPaddedDim, text, path)


@pytest.mark.parametrize(("text", "path"), OTHER)
def test_ignores_other_operations(text: str, path: str) -> None:
    assert not fires(SliceOfPaddedDim, text, path)


def test_fires_only_above_the_limit() -> None:
    check_limit(SliceOfPaddedDim, *MATCHING[0])
