from __future__ import annotations

import pytest

from tb_perfadvisor.rules.xla.costly_operations import SlowRandom
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import xla_op
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


# The fusion that multiplies samples from 32,000 classes (libtpu 0.0.52, TPU v5e).
SAMPLED = (
    "%iota_reduce_fusion = (bf16[512]{0:T(512)(128)(2,1)}, s32[512]{0:T(512)}) fusion("
    "bf16[512,1024]{1,0:T(8,128)(2,1)} %x, bf16[1024,32000]{1,0:T(8,128)(2,1)} %w), kind=kOutput"
)
LOGITS = (
    "%convolution.1 = bf16[512,32000]{1,0:T(8,128)(2,1)} convolution(bf16[512,1024]{1,0:T(8,128)"
    "(2,1)} %fusion.19, bf16[1024,32000]{1,0:T(8,128)(2,1)} %fusion.20), dim_labels=bf_io->bf"
)
GUMBEL = "jit(cat)/dot_general\njit(cat)/jit(_gumbel)/jit(_uniform)/max\njit(cat)/jit(_gumbel)/log"


def test_names_inside_a_fusion_count() -> None:
    symbols = {"s": xla_op("fusion.3", FUSION, inside_paths=GUMBEL)}
    assert find(SlowRandom, SLOW, legend=symbols)


@pytest.mark.parametrize(
    ("opcodes", "is_found"),
    [
        # Threefry in software, and bits of the hardware generator turned into numbers.
        ("add convolution or shift-left shift-right-logical xor", True),
        ("add or shift-right-logical", False),
    ],
)
def test_uniform_numbers_are_slow_in_software(opcodes: str, is_found: bool) -> None:
    path = "jit(train_step)/jvp(jit(_bernoulli))/jit(_uniform)/add"
    fusion = xla_op("fusion.3", FUSION, inside_opcodes=opcodes, inside_paths=path)
    assert bool(find(SlowRandom, SLOW, legend={"s": fusion})) == is_found


def test_a_product_in_the_same_fusion_keeps_its_time() -> None:
    slow = SLOW.replace("cell 1ms", "cell 200us")
    fusion = xla_op("iota_reduce_fusion", SAMPLED, inside_paths=GUMBEL, product=LOGITS)
    (finding,) = find(SlowRandom, slow, legend={"s": fusion}, device="TPU v5e") or ()
    assert finding.saving is not None
    # 2 x 512 x 1,024 x 32,000 = 33.55 GFLOP at 197 TFLOP/s take 170,327 ns. Of 800 us in each of
    # two steps, half is expected to remain: more than 1.3 times the product.
    assert finding.saving.high_ns == pytest.approx(2 * (800_000 - 170_327), abs=4)
    assert finding.saving.expected_ns == 800_000
    # Without the device's rates, nothing tells what the product takes.
    assert find(SlowRandom, slow, legend={"s": fusion}) == ()


def test_fires_only_above_the_limit() -> None:
    check_limit(SlowRandom, *MATCHING[0])
