from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.max_pool_gradient import MaxPoolGradient
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
OTHERS = (
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


def _legend(text: str, path: str) -> dict[str, Symbol]:
    name = text.partition(" = ")[0].lstrip("%")
    kind = EventKind.COPY if " copy(" in text else EventKind.KERNEL
    return {"s": xla_op(name, text, kind=kind, path=path, source_line="model.py:37")}


def test_saves_what_the_fix_saves() -> None:
    text, path = MEANT[0]
    checked = check_rule(
        MaxPoolGradient, slow=SLOW, fixed=FIXED, saves="4ms", legend=_legend(text, path)
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    saving = finding.saving
    # Four milliseconds in each of two steps, of which half is expected to go.
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (0, 4_000_000, 8_000_000)
    assert finding.evidence[0].rows[0][3] == "model.py:37"  # type: ignore[union-attr]


@pytest.mark.parametrize(("text", "path"), MEANT)
def test_these_are_meant(text: str, path: str) -> None:
    assert len(find(MaxPoolGradient, SLOW, legend=_legend(text, path)) or ()) == 1


@pytest.mark.parametrize(("text", "path"), OTHERS)
def test_these_are_not(text: str, path: str) -> None:
    assert find(MaxPoolGradient, SLOW, legend=_legend(text, path)) == ()


def test_just_below_and_just_above_the_limit() -> None:
    legend = _legend(*MEANT[0])
    # Four of ten milliseconds.
    below, above = {"minimum_share": 0.39}, {"minimum_share": 0.41}
    assert len(find(MaxPoolGradient, SLOW, legend=legend, settings=below) or ()) == 1
    assert find(MaxPoolGradient, SLOW, legend=legend, settings=above) == ()
