from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.slow_random import SlowRandom
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
        "jit(step)/jit(main)/jit(_normal)/jit(_normal_real)/erf_inv:",
    ),
    (
        "%fusion.3 = f32[1024,1024]{1,0:T(8,128)} fusion(f32[1024,1024]{1,0:T(8,128)} %p0"
        "), kind=kLoop, calls=%fused_computation.3",
        "jit(step)/jit(_uniform)/threefry2x32:",
    ),
    (
        "%fusion.3 = f32[1024,1024]{1,0:T(8,128)} fusion(f32[1024,1024]{1,0:T(8,128)} %p0"
        "), kind=kLoop, calls=%fused_computation.3",
        "jit(sample)/jit(_gumbel)/log:",
    ),
    (
        "%fusion.3 = f32[1024,1024]{1,0:T(8,128)} fusion(f32[1024,1024]{1,0:T(8,128)} %p0"
        "), kind=kLoop, calls=%fused_computation.3",
        "model/sample/categorical/Multinomial:Multinomial",
    ),
    (
        "%fusion.3 = f32[1024,1024]{1,0:T(8,128)} fusion(f32[1024,1024]{1,0:T(8,128)} %p0"
        "), kind=kLoop, calls=%fused_computation.3",
        "model/noise/RandomStandardNormal:RandomStandardNormal",
    ),
)
OTHERS = (
    (
        "%rng-bit-generator = u32[1024,128]{1,0:T(8,128)} rng-bit-generator(u64[2]{0:T(12"
        "8)} %key), algorithm=rng_default",
        "jit(fold_in)/jit(main)/rng_bit_generator",
    ),
    (
        "%fusion.3 = f32[1024,1024]{1,0:T(8,128)} fusion(f32[1024,1024]{1,0:T(8,128)} %p0"
        "), kind=kLoop, calls=%fused_computation.3",
        "model/post_self_attention_layer_norm/rsqrt:",
    ),
    (
        "%fusion.3 = f32[1024,1024]{1,0:T(8,128)} fusion(f32[1024,1024]{1,0:T(8,128)} %p0"
        "), kind=kLoop, calls=%fused_computation.3",
        "loss/sparse_categorical_crossentropy/log:",
    ),
    (
        "%fusion.3 = f32[1024,1024]{1,0:T(8,128)} fusion(f32[1024,1024]{1,0:T(8,128)} %p0"
        "), kind=kLoop, calls=%fused_computation.3",
        "jit(step)/normalize/mul:",
    ),
)


def _legend(text: str, path: str) -> dict[str, Symbol]:
    name = text.partition(" = ")[0].lstrip("%")
    kind = EventKind.COPY if " copy(" in text else EventKind.KERNEL
    return {"s": xla_op(name, text, kind=kind, path=path, source_line="model.py:37")}


def test_saves_what_the_fix_saves() -> None:
    text, path = MEANT[0]
    checked = check_rule(
        SlowRandom, slow=SLOW, fixed=FIXED, saves="4ms", legend=_legend(text, path)
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    saving = finding.saving
    # Four milliseconds in each of two steps, of which half is expected to go.
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == (0, 4_000_000, 8_000_000)
    assert finding.evidence[0].rows[0][3] == "model.py:37"  # type: ignore[union-attr]


@pytest.mark.parametrize(("text", "path"), MEANT)
def test_these_are_meant(text: str, path: str) -> None:
    assert len(find(SlowRandom, SLOW, legend=_legend(text, path)) or ()) == 1


@pytest.mark.parametrize(("text", "path"), OTHERS)
def test_these_are_not(text: str, path: str) -> None:
    assert find(SlowRandom, SLOW, legend=_legend(text, path)) == ()


def test_just_below_and_just_above_the_limit() -> None:
    legend = _legend(*MEANT[0])
    # Four of ten milliseconds.
    below, above = {"minimum_share": 0.39}, {"minimum_share": 0.41}
    assert len(find(SlowRandom, SLOW, legend=legend, settings=below) or ()) == 1
    assert find(SlowRandom, SLOW, legend=legend, settings=above) == ()
