from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.broadcast_overhead import BroadcastOverhead
from tb_perfadvisor.testing import check_rule
from tests.support.xla_operation import FIXED, FUSION, SLOW, check_limit, fires, legend, saved_ns

MATCHING = (
    (
        "%broadcast.7 = f32[1024,1024]{1,0:T(8,128)} broadcast(f32[1024]{0:T(1024)} %bias"
        "), dimensions={1}",
        "",
    ),
)
OTHER = (
    (
        "%broadcast.548 = f32[16,512,7168]{2,0,1:T(8,128)} broadcast(f32[]{:T(128)} %cons"
        "tant.791), dimensions={}",
        "",
    ),
    (FUSION, "jit(f)/broadcast_in_dim"),
)


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        BroadcastOverhead, slow=SLOW, fixed=FIXED, saves="4ms", legend=legend(*MATCHING[0])
    )
    assert saved_ns(checked) == (0, 8_000_000, 8_000_000)


@pytest.mark.parametrize(("text", "path"), MATCHING)
def test_fires_on_matching_operations(text: str, path: str) -> None:
    assert fires(BroadcastOverhead, text, path)


@pytest.mark.parametrize(("text", "path"), OTHER)
def test_ignores_other_operations(text: str, path: str) -> None:
    assert not fires(BroadcastOverhead, text, path)


def test_fires_only_above_the_limit() -> None:
    check_limit(BroadcastOverhead, *MATCHING[0])
