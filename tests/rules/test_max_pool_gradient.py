from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.max_pool_gradient import MaxPoolGradient
from tb_perfadvisor.testing import check_rule
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
