from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.unfused_batch_norm import UnfusedBatchNorm
from tb_perfadvisor.testing import check_rule
from tests.support.one_operation import FIXED, FUSION, SLOW, check_limit, fires, legend, saved_ns

MEANT = (
    (FUSION, "model/stage1/batchnorm/mul_1:Mul"),
    (FUSION, "model/stage1/moments/SquaredDifference:SquaredDifference"),
    (FUSION, "gradients/model/bn_2/moments/mean:Mean"),
)
OTHERS = (
    (FUSION, "model/batch_normalization/FusedBatchNormV3:FusedBatchNormV3"),
    (FUSION, "model/layer_normalization/batchnorm/mul:Mul"),
    (FUSION, "model/group_norm/moments/mean:Mean"),
    (FUSION, "adam/moments_update/mul:Mul"),
)


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        UnfusedBatchNorm, slow=SLOW, fixed=FIXED, saves="4ms", legend=legend(*MEANT[0])
    )
    # Half of what both steps take is expected to go.
    assert saved_ns(checked) == (0, 4_000_000, 8_000_000)


@pytest.mark.parametrize(("text", "path"), MEANT)
def test_these_are_meant(text: str, path: str) -> None:
    assert fires(UnfusedBatchNorm, text, path)


@pytest.mark.parametrize(("text", "path"), OTHERS)
def test_these_are_not(text: str, path: str) -> None:
    assert not fires(UnfusedBatchNorm, text, path)


def test_just_below_and_just_above_the_limit() -> None:
    check_limit(UnfusedBatchNorm, *MEANT[0])
