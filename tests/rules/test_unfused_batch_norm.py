from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.costly_operations import UnfusedBatchNorm
from tb_perfadvisor.testing import check_rule
from tests.support.xla_operation import FIXED, FUSION, SLOW, check_limit, fires, legend, saved_ns

MATCHING = (
    (FUSION, "model/stage1/batchnorm/mul_1:Mul"),
    (FUSION, "model/stage1/moments/SquaredDifference:SquaredDifference"),
    (FUSION, "gradients/model/bn_2/moments/mean:Mean"),
)
OTHER = (
    (FUSION, "model/batch_normalization/FusedBatchNormV3:FusedBatchNormV3"),
    (FUSION, "model/layer_normalization/batchnorm/mul:Mul"),
    (FUSION, "model/group_norm/moments/mean:Mean"),
    (FUSION, "adam/moments_update/mul:Mul"),
)


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        UnfusedBatchNorm,
        slow=SLOW,
        fixed=FIXED,
        saves="4ms",
        legend=legend(*MATCHING[0]),
        framework="tensorflow",
    )
    # Half of the 8 ms in both steps is expected.
    assert saved_ns(checked) == (0, 4_000_000, 8_000_000)


@pytest.mark.parametrize(("text", "path"), MATCHING)
def test_fires_on_matching_operations(text: str, path: str) -> None:
    assert fires(UnfusedBatchNorm, text, path)


@pytest.mark.parametrize(("text", "path"), OTHER)
def test_ignores_other_operations(text: str, path: str) -> None:
    assert not fires(UnfusedBatchNorm, text, path)


def test_fires_only_above_the_limit() -> None:
    check_limit(UnfusedBatchNorm, *MATCHING[0])
