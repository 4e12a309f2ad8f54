from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.costly_operations import SliceOfPaddedDim
from tb_perfadvisor.testing import check_rule, draw, find
from tests.support.xla_operation import DEVICE, FIXED, SLOW, check_limit, fires, legend, saved_ns

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
    operations = legend(*MATCHING[0])
    checked = check_rule(
        SliceOfPaddedDim,
        slow=draw(SLOW, legend=operations, device=DEVICE),
        fixed=draw(FIXED, legend=operations, device=DEVICE),
        saves="4ms",
        tolerance=0.001,
        scales=False,
    )
    # Both steps take 8 ms, of which half is expected. 1024 x 128 numbers of 4 B, read and written,
    # take 1.3 us of each at 819 GB/s.
    assert saved_ns(checked) == (0, 4_000_000, pytest.approx(8_000_000 - 2 * 1_280, abs=4))


def test_a_slice_that_takes_no_longer_than_its_bytes_passes() -> None:
    # 100 columns take 128: 2,700,000 rows of 4 B each, read and written, take 3.97 of 4 ms.
    text = (
        "%slice.1 = f32[2700000,100]{1,0:T(8,128)} slice(f32[2700000,1024]{1,0:T(8,128)} %p0), "
        "slice={[0:2700000], [0:100]}"
    )
    assert not fires(SliceOfPaddedDim, text, "")
    assert fires(SliceOfPaddedDim, text.replace("2700000", "1350000"), "")


def test_nothing_is_promised_where_the_bandwidth_is_unknown() -> None:
    trace = draw(SLOW, legend=legend(*MATCHING[0]), device="TPU v9")
    assert find(SliceOfPaddedDim, trace) == ()


@pytest.mark.parametrize(("text", "path"), MATCHING)
def test_fires_on_matching_operations(text: str, path: str) -> None:
    assert fires(SliceOfPaddedDim, text, path)


@pytest.mark.parametrize(("text", "path"), OTHER)
def test_ignores_other_operations(text: str, path: str) -> None:
    assert not fires(SliceOfPaddedDim, text, path)


def test_fires_only_above_the_limit() -> None:
    check_limit(SliceOfPaddedDim, *MATCHING[0])
