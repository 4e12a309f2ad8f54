"""Fires rightly on the operations of a recorded training on a TPU v5 (tests/corpus)."""

from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.data_shuffling import DataShuffling
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
        "%dynamic-update-slice.33 = f32[16,7168,512]{2,0,1:T(8,128)} dynamic-update-slice"
        "(f32[16,7168,512]{2,0,1:T(8,128)} %get-tuple-element.1342, f32[1,7168,512]{2,0,1"
        ":T(1,128)} %copy.490, s32[]{:T(128)S(6)} %select.145, s32[]{:T(128)} %c, s32[]{:"
        "T(128)} %c)",
        "jit(train_step)/while/body/dynamic_update_slice:",
    ),
    (
        "%sort = (s32[8192]{0:T(1024)}, s32[8192]{0:T(1024)}) sort(s32[8192]{0:T(1024)} %"
        "b, s32[8192]{0:T(1024)} %i), dimensions={0}, to_apply=%compare",
        "",
    ),
    (
        "%gather.1 = f32[8,1024]{1,0:T(8,128)} gather(f32[32000,1024]{1,0:T(8,128)} %t, s"
        "32[8,1]{1,0:T(8,128)} %i), offset_dims={1}",
        "",
    ),
)
OTHERS = (
    (
        "%all-gather.276 = bf16[2048,32000]{1,0:T(8,128)(2,1)} all-gather(bf16[512,32000]"
        "{1,0:T(8,128)(2,1)} %convert.658), channel_id=21, dimensions={0}",
        "",
    ),
    (
        "%slice.1 = f32[1024,128]{1,0:T(8,128)} slice(f32[1024,1024]{1,0:T(8,128)} %p0), "
        "slice={[0:1024], [128:256]}",
        "",
    ),
    (
        "%fusion.3 = f32[1024,1024]{1,0:T(8,128)} fusion(f32[1024,1024]{1,0:T(8,128)} %p0"
        "), kind=kLoop, calls=%fused_computation.3",
        "jit(f)/gather",
    ),
)


def _legend(text: str, path: str) -> dict[str, Symbol]:
    name = text.partition(" = ")[0].lstrip("%")
    kind = EventKind.COPY if " copy(" in text else EventKind.KERNEL
    return {"s": xla_op(name, text, kind=kind, path=path, source_line="model.py:37")}


def test_saves_what_the_fix_saves() -> None:
    text, path = MEANT[0]
    checked = check_rule(
        DataShuffling, slow=SLOW, fixed=FIXED, saves="4ms", legend=_legend(text, path)
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    saving = finding.saving
    # Four milliseconds in each of two steps, of which half is expected to go.
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (0, 4_000_000, 8_000_000)
    assert finding.evidence[0].rows[0][3] == "model.py:37"  # type: ignore[union-attr]


@pytest.mark.parametrize(("text", "path"), MEANT)
def test_these_are_meant(text: str, path: str) -> None:
    assert len(find(DataShuffling, SLOW, legend=_legend(text, path)) or ()) == 1


@pytest.mark.parametrize(("text", "path"), OTHERS)
def test_these_are_not(text: str, path: str) -> None:
    assert find(DataShuffling, SLOW, legend=_legend(text, path)) == ()


def test_just_below_and_just_above_the_limit() -> None:
    legend = _legend(*MEANT[0])
    # Four of ten milliseconds.
    below, above = {"minimum_share": 0.39}, {"minimum_share": 0.41}
    assert len(find(DataShuffling, SLOW, legend=legend, settings=below) or ()) == 1
    assert find(DataShuffling, SLOW, legend=legend, settings=above) == ()
