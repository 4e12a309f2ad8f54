from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.unfused_batch_norm import UnfusedBatchNorm
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import Symbol, xla_op
from tb_perfadvisor.trace import EventKind

SLOW = """
    cell 1ms
    step  |..........|..........|
    main  |LSSSSSSSSS|LSSSSSSSSS|
    tpu 0 |XXXXXXssss|XXXXXXssss|
"""
FIXED = """
    cell 1ms
    step  |......|......|
    main  |LSSSSS|LSSSSS|
    tpu 0 |XXXXXX|XXXXXX|
"""
MEANT = (
    (
        "%fusion.3 = f32[1024,1024]{1,0:T(8,128)} fusion(f32[1024,1024]{1,0:T(8,128)} %p0"
        "), kind=kLoop, calls=%fused_computation.3",
        "model/stage1/batchnorm/mul_1:Mul",
    ),
    (
        "%fusion.3 = f32[1024,1024]{1,0:T(8,128)} fusion(f32[1024,1024]{1,0:T(8,128)} %p0"
        "), kind=kLoop, calls=%fused_computation.3",
        "model/stage1/moments/SquaredDifference:SquaredDifference",
    ),
    (
        "%fusion.3 = f32[1024,1024]{1,0:T(8,128)} fusion(f32[1024,1024]{1,0:T(8,128)} %p0"
        "), kind=kLoop, calls=%fused_computation.3",
        "gradients/model/bn_2/moments/mean:Mean",
    ),
)
OTHERS = (
    (
        "%fusion.3 = f32[1024,1024]{1,0:T(8,128)} fusion(f32[1024,1024]{1,0:T(8,128)} %p0"
        "), kind=kLoop, calls=%fused_computation.3",
        "model/batch_normalization/FusedBatchNormV3:FusedBatchNormV3",
    ),
    (
        "%fusion.3 = f32[1024,1024]{1,0:T(8,128)} fusion(f32[1024,1024]{1,0:T(8,128)} %p0"
        "), kind=kLoop, calls=%fused_computation.3",
        "model/layer_normalization/batchnorm/mul:Mul",
    ),
    (
        "%fusion.3 = f32[1024,1024]{1,0:T(8,128)} fusion(f32[1024,1024]{1,0:T(8,128)} %p0"
        "), kind=kLoop, calls=%fused_computation.3",
        "model/group_norm/moments/mean:Mean",
    ),
    (
        "%fusion.3 = f32[1024,1024]{1,0:T(8,128)} fusion(f32[1024,1024]{1,0:T(8,128)} %p0"
        "), kind=kLoop, calls=%fused_computation.3",
        "adam/moments_update/mul:Mul",
    ),
)


def _legend(text: str, path: str) -> dict[str, Symbol]:
    name = text.partition(" = ")[0].lstrip("%")
    kind = EventKind.COPY if " copy(" in text else EventKind.KERNEL
    return {"s": xla_op(name, text, kind=kind, path=path, source_line="model.py:37")}


def test_saves_what_the_fix_saves() -> None:
    text, path = MEANT[0]
    checked = check_rule(
        UnfusedBatchNorm, slow=SLOW, fixed=FIXED, saves="4ms", legend=_legend(text, path)
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    saving = finding.saving
    # Four milliseconds in each of two steps, of which half is expected to go.
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (0, 4_000_000, 8_000_000)
    assert finding.evidence[0].rows[0][3] == "model.py:37"  # type: ignore[union-attr]


@pytest.mark.parametrize(("text", "path"), MEANT)
def test_these_are_meant(text: str, path: str) -> None:
    assert len(find(UnfusedBatchNorm, SLOW, legend=_legend(text, path)) or ()) == 1


@pytest.mark.parametrize(("text", "path"), OTHERS)
def test_these_are_not(text: str, path: str) -> None:
    assert find(UnfusedBatchNorm, SLOW, legend=_legend(text, path)) == ()


def test_just_below_and_just_above_the_limit() -> None:
    legend = _legend(*MEANT[0])
    # Four of ten milliseconds.
    below, above = {"minimum_share": 0.39}, {"minimum_share": 0.41}
    assert len(find(UnfusedBatchNorm, SLOW, legend=legend, settings=below) or ()) == 1
    assert find(UnfusedBatchNorm, SLOW, legend=legend, settings=above) == ()
