from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.broadcast_overhead import BroadcastOverhead
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
        "%broadcast.7 = f32[1024,1024]{1,0:T(8,128)} broadcast(f32[1024]{0:T(1024)} %bias"
        "), dimensions={1}",
        "",
    ),
)
OTHERS = (
    (
        "%broadcast.548 = f32[16,512,7168]{2,0,1:T(8,128)} broadcast(f32[]{:T(128)} %cons"
        "tant.791), dimensions={}",
        "",
    ),
    (
        "%fusion.3 = f32[1024,1024]{1,0:T(8,128)} fusion(f32[1024,1024]{1,0:T(8,128)} %p0"
        "), kind=kLoop, calls=%fused_computation.3",
        "jit(f)/broadcast_in_dim",
    ),
)


def _legend(text: str, path: str) -> dict[str, Symbol]:
    name = text.partition(" = ")[0].lstrip("%")
    kind = EventKind.COPY if " copy(" in text else EventKind.KERNEL
    return {"s": xla_op(name, text, kind=kind, path=path, source_line="model.py:37")}


def test_saves_what_the_fix_saves() -> None:
    text, path = MEANT[0]
    checked = check_rule(
        BroadcastOverhead, slow=SLOW, fixed=FIXED, saves="4ms", legend=_legend(text, path)
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    saving = finding.saving
    # Four milliseconds in each of two steps.
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (0, 8_000_000, 8_000_000)
    assert finding.evidence[0].rows[0][3] == "model.py:37"  # type: ignore[union-attr]


@pytest.mark.parametrize(("text", "path"), MEANT)
def test_these_are_meant(text: str, path: str) -> None:
    assert len(find(BroadcastOverhead, SLOW, legend=_legend(text, path)) or ()) == 1


@pytest.mark.parametrize(("text", "path"), OTHERS)
def test_these_are_not(text: str, path: str) -> None:
    assert find(BroadcastOverhead, SLOW, legend=_legend(text, path)) == ()


def test_just_below_and_just_above_the_limit() -> None:
    legend = _legend(*MEANT[0])
    # Four of ten milliseconds.
    below, above = {"minimum_share": 0.39}, {"minimum_share": 0.41}
    assert len(find(BroadcastOverhead, SLOW, legend=legend, settings=below) or ()) == 1
    assert find(BroadcastOverhead, SLOW, legend=legend, settings=above) == ()
