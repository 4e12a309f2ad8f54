from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.costly_operations import ReshapeOverhead
from tb_perfadvisor.testing import check_rule
from tests.support.xla_operation import FIXED, FUSION, SLOW, check_limit, fires, legend, saved_ns

MATCHING = (
    (
        "%reshape.1073 = bf16[1,2048]{1,0:T(2,128)(2,1)} reshape(bf16[2048]{0:T(1024)(128"
        ")(2,1)} %get-tuple-element.1179)",
        "",
    ),
)
OTHER = (
    (
        "%bitcast.1 = f32[1024,1024]{1,0:T(8,128)} bitcast(f32[1048576]{0:T(1024)} %p0)",
        "",
    ),
    (FUSION, "jit(f)/reshape"),
)


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        ReshapeOverhead, slow=SLOW, fixed=FIXED, saves="4ms", legend=legend(*MATCHING[0])
    )
    # Half of the 8 ms in both steps is expected.
    assert saved_ns(checked) == (0, 4_000_000, 8_000_000)


@pytest.mark.parametrize(("text", "path"), MATCHING)
def test_fires_on_matching_operations(text: str, path: str) -> None:
    assert fires(ReshapeOverhead, text, path)


@pytest.mark.parametrize(("text", "path"), OTHER)
def test_ignores_other_operations(text: str, path: str) -> None:
    assert not fires(ReshapeOverhead, text, path)


def test_fires_only_above_the_limit() -> None:
    check_limit(ReshapeOverhead, *MATCHING[0])
