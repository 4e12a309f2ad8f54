from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.slow_random import SlowRandom
from tb_perfadvisor.testing import check_rule
from tests.support.xla_operation import FIXED, FUSION, SLOW, check_limit, fires, legend, saved_ns

MATCHING = (
    (FUSION, "jit(step)/jit(main)/jit(_normal)/jit(_normal_real)/erf_inv:"),
    (FUSION, "jit(step)/jit(_uniform)/threefry2x32:"),
    (FUSION, "jit(sample)/jit(_gumbel)/log:"),
    (FUSION, "model/sample/categorical/Multinomial:Multinomial"),
    (FUSION, "model/noise/RandomStandardNormal:RandomStandardNormal"),
)
OTHER = (
    (
        "%rng-bit-generator = u32[1024,128]{1,0:T(8,128)} rng-bit-generator(u64[2]{0:T(12"
        "8)} %key), algorithm=rng_default",
        "jit(fold_in)/jit(main)/rng_bit_generator",
    ),
    (FUSION, "model/post_self_attention_layer_norm/rsqrt:"),
    (FUSION, "loss/sparse_categorical_crossentropy/log:"),
    (FUSION, "jit(step)/normalize/mul:"),
)


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        SlowRandom, slow=SLOW, fixed=FIXED, saves="4ms", legend=legend(*MATCHING[0])
    )
    # Half of the 8 ms in both steps is expected.
    assert saved_ns(checked) == (0, 4_000_000, 8_000_000)


@pytest.mark.parametrize(("text", "path"), MATCHING)
def test_fires_on_matching_operations(text: str, path: str) -> None:
    assert fires(SlowRandom, text, path)


@pytest.mark.parametrize(("text", "path"), OTHER)
def test_ignores_other_operations(text: str, path: str) -> None:
    assert not fires(SlowRandom, text, path)


def test_fires_only_above_the_limit() -> None:
    check_limit(SlowRandom, *MATCHING[0])
