"""The bytes of weights and of the key-value cache by hand, from the shapes of operators."""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor import load
from tb_perfadvisor.report.views.serving import describe_floor
from tb_perfadvisor.signals import Signals, reference_worker
from tb_perfadvisor.signals.serving.decode import DecodeFloor, cache_bytes_per_token, decode_floor
from tb_perfadvisor.testing import TraceBuilder, ms, run_of, us
from tb_perfadvisor.testing.builder import Builder
from tb_perfadvisor.trace import KernelFamily

H100 = "NVIDIA H100 80GB HBM3"
DEEPSEEK = (
    "tracelens/partial_fixtures/agent_evals/Analysis/partial_tests/semantic_purity_deepseek_r1"
)
_HALF = ["c10::BFloat16", "c10::BFloat16"]


def product(builder: Builder, at: int, rows: int, size: tuple[int, int]) -> None:
    """`mm` of some rows by weights."""
    shapes = [[rows, size[0]], list(size)]
    key = f"{at}"
    builder.operator("aten::mm", at, at + us(10), shapes=shapes, dtypes=_HALF, key=key)
    family = KernelFamily.MATMUL
    builder.kernel("gemm", at + us(10), at + us(90), launched_by=key, family=family)


def floor_of(steps: list[tuple[str, list[tuple[int, tuple[int, int]]]]]) -> DecodeFloor | None:
    """Of steps of 10 ms, each with a name and its products, and one more that is cut off."""
    builder = TraceBuilder(has_shapes=True).device(H100)
    for number, (name, products) in enumerate([*steps, steps[-1]]):
        begin = number * ms(10)
        builder.annotation(name, begin, begin + ms(9))
        for place, (rows, size) in enumerate(products):
            product(builder, begin + place * us(100), rows, size)
        if not products:
            builder.launch(begin, begin + us(5), name="cudaGraphLaunch", key=f"graph {number}")
            builder.kernel("gemm", begin + us(5), begin + ms(1), launched_by=f"graph {number}")
    return decode_floor(Signals(run_of(builder.build())))


DECODE = "execute_context_0(0)_generation_8(8)"
PREFILL = "execute_context_2(300)_generation_0(0)"
LAYER, HEAD = (4096, 8192), (4096, 50_000)


def test_weights_of_decode_steps_that_run_operator_by_operator() -> None:
    floor = floor_of([(DECODE, [(8, LAYER), (8, LAYER), (8, HEAD)])] * 3)
    # 2 x 4,096 x 8,192 and 4,096 x 50,000 numbers of 2 bytes, at 3,352 GB/s.
    size = 2 * (2 * 4096 * 8192 + 4096 * 50_000)
    assert floor is not None
    assert floor.weight_bytes == size
    assert floor.floor_ns == pytest.approx(size / 3.352e12 * 1e9, abs=1)


def test_steps_in_graphs_read_the_weights_of_those_that_read_prompts() -> None:
    # All tokens in the layers, and the last one of each of two requests in the head. The product of
    # 64 rows is no layer's.
    prefill = (PREFILL, [(300, LAYER), (64, LAYER), (2, HEAD)])
    floor = floor_of([(DECODE, []), prefill, (DECODE, []), (DECODE, [])])
    assert floor is not None
    assert floor.weight_bytes == 2 * (4096 * 8192 + 4096 * 50_000)


def test_without_shapes_it_is_unknown() -> None:
    floor = floor_of([(DECODE, [])] * 4)
    assert floor is not None
    assert (floor.weight_bytes, floor.cache_bytes, floor.floor_ns) == (None, None, None)
    assert floor.missing.startswith("The shapes of the operators were not recorded.")


def test_without_the_length_of_contexts_the_cache_is_unknown() -> None:
    floor = floor_of([(DECODE, [(8, LAYER)])] * 3)
    assert floor is not None
    assert (floor.cached_tokens, floor.cache_bytes) == (None, None)
    assert floor.missing.startswith("The server does not state how long the contexts are.")


def test_it_is_that_of_decode_steps() -> None:
    assert floor_of([(PREFILL, [(300, LAYER)])] * 4) is None


DETAILED = "execute_8_context_0(sq0sk0sqsq0sqsk0)_generation_8(sq8sk10000sqsq8sqsk10000)"
PREFILL_300 = "execute_300_context_2(sq300sk300sqsq90000sqsk90000)_generation_0(sq0sk0sqsq0sqsk0)"


def cached(
    name: str, shapes: list[list[int]], dtypes: list[str], step: str, *, layers: int, parts: int = 1
) -> tuple[int | None, int | None]:
    """The bytes of a token and of all contexts, with one write into the cache for each layer."""
    builder = TraceBuilder(has_shapes=True).device(H100)
    for number, annotation in enumerate([step, DETAILED, DETAILED, DETAILED]):
        begin = number * ms(10)
        builder.annotation(annotation, begin, begin + ms(9))
        if not number:
            for write in range(layers * parts):
                at = begin + write * us(100)
                builder.operator(name, at, at + us(10), shapes=shapes, dtypes=dtypes)
        builder.launch(
            begin + ms(8), begin + ms(8) + us(5), name="cudaGraphLaunch", key=f"{number}"
        )
        builder.kernel("gemm", begin + ms(8) + us(5), begin + ms(9), launched_by=f"{number}")
    signals = Signals(run_of(builder.build()))
    floor = decode_floor(signals)
    assert floor is not None
    return cache_bytes_per_token(signals), floor.cache_bytes


BFLOAT16, UINT8, INT64 = "c10::BFloat16", "unsigned char", "long int"
FLASH = "_C_cache_ops::reshape_and_cache_flash"


def written(tokens: int) -> list[list[int]]:
    """The shapes that the corpus' vLLM recorded: 8 heads of 64, blocks of 32 tokens."""
    return [[tokens, 8, 64], [tokens, 8, 64], *[[2000, 32, 8, 64]] * 2, [tokens]]


@pytest.mark.parametrize(("dtype", "item_bytes"), [(BFLOAT16, 2), (UINT8, 1)])
def test_the_cache_keeps_keys_and_values_of_every_layer(dtype: str, item_bytes: int) -> None:
    dtypes = [BFLOAT16, BFLOAT16, dtype, dtype, INT64]
    # 24 layers, keys and values, 8 heads of 64; contexts of 10,000 tokens together.
    per_token = 24 * 2 * 8 * 64 * item_bytes
    found = cached(FLASH, written(300), dtypes, PREFILL_300, layers=24)
    assert found == (per_token, 10_000 * per_token)


def test_padding_counts_nothing_and_parts_of_a_step_are_not_layers() -> None:
    dtypes = [BFLOAT16] * 4 + [INT64]
    per_token = 24 * 2 * 8 * 64 * 2
    assert cached(FLASH, written(512), dtypes, PREFILL_300, layers=24)[0] == per_token
    assert cached(FLASH, written(150), dtypes, PREFILL_300, layers=24, parts=2)[0] is None


def test_deepseek_keeps_one_vector_per_token() -> None:
    # DeepSeek-V3: 512 compressed and 64 for positions.
    shapes = [[8, 512], [8, 64], [1000, 64, 576], [8]]
    dtypes = [*[BFLOAT16] * 3, INT64]
    found = cached("_C_cache_ops::concat_and_cache_mla", shapes, dtypes, DETAILED, layers=61)
    assert found == (61 * 576 * 2, 10_000 * 61 * 576 * 2)


def test_weights_and_cache_add_up() -> None:
    builder = TraceBuilder(has_shapes=True).device(H100)
    for number in range(4):
        begin = number * ms(10)
        builder.annotation(DETAILED, begin, begin + ms(9))
        product(builder, begin, 8, LAYER)
        dtypes = [BFLOAT16] * 4 + [INT64]
        at = begin + us(100)
        builder.operator(FLASH, at, at + us(10), shapes=written(8), dtypes=dtypes)
    floor = decode_floor(Signals(run_of(builder.build())))
    weights, cache = 2 * 4096 * 8192, 10_000 * 2 * 8 * 64 * 2
    assert floor is not None
    assert (floor.weight_bytes, floor.cache_bytes, floor.cached_tokens) == (weights, cache, 10_000)
    # 67,108,864 and 20,480,000 bytes at 3,352 GB/s: 20.02 and 6.11 µs.
    assert floor.floor_ns == pytest.approx((weights + cache) / 3.352e12 * 1e9, abs=1)
    assert floor.missing == ""
    # Of 80 µs on the device.
    assert describe_floor(floor, us(80)) == (
        "Reading 64.0 MiB of weights and 19.5 MiB of the key-value cache takes at least 26.1 µs if"
        " every layer attends to all 10,000 tokens: 32.7 % of a decode step's time on the device."
    )


def test_in_words() -> None:
    weights = DecodeFloor(1 << 30, None, None, us(320), "The server does not say.")
    assert describe_floor(weights, us(640)) == (
        "Reading 1.00 GiB of weights takes at least 320 µs: 50.0 % of a decode step's time on the"
        " device. The key-value cache comes on top. The server does not say."
    )
    cache = DecodeFloor(None, 1 << 30, 1000, us(320), "Record shapes.")
    assert describe_floor(cache, us(640)).endswith(
        "50.0 % of a decode step's time on the device. The weights come on top. Record shapes."
    )
    unknown = DecodeFloor(None, None, None, None, "Record shapes.")
    assert describe_floor(unknown, us(640)) == (
        "What a decode step takes at least is unknown. Record shapes."
    )
    assert describe_floor(None, us(640)) == ""


@pytest.mark.parametrize(
    ("path", "cached_tokens", "missing"),
    [
        ("tracelens/inference_sglang_decode/b6a467c1", 32785, "--disable-cuda-graph"),
        (f"{DEEPSEEK}/B300", 8209, "--disable-cuda-graph"),
        (f"{DEEPSEEK}/MI300", 8209, "--disable-cuda-graph"),
    ],
)
def test_real_decode_steps_in_graphs_show_no_sizes(
    corpus: Path, path: str, cached_tokens: int, missing: str
) -> None:
    (run,) = load(corpus / path)
    floor = decode_floor(reference_worker(run))
    assert floor is not None
    assert (floor.cached_tokens, floor.floor_ns) == (cached_tokens, None)
    assert missing in floor.missing


def test_the_cache_of_a_real_server(corpus: Path) -> None:
    # gpt-oss-20b: 24 layers, 8 heads of 64 for keys and values each, in 2 bytes.
    (run,) = load(corpus / "tracelens/inference_vllm_prefilldecode_piecewise/2bd22c87")
    signals = reference_worker(run)
    assert cache_bytes_per_token(signals) == 24 * 2 * 8 * 64 * 2
    # Its only step reads prompts as well.
    assert decode_floor(signals) is None


@pytest.mark.parametrize(("expert_us", "is_known"), [(60, True), (200, False)])
def test_weights_of_few_products_are_no_floor(expert_us: int, is_known: bool) -> None:
    builder = TraceBuilder(has_shapes=True).device(H100)
    for number in range(4):
        begin = number * ms(10)
        builder.annotation(DECODE, begin, begin + ms(9))
        product(builder, begin, 8, LAYER)  # 80 us on the device
        builder.launch(begin + us(100), begin + us(105), key=f"experts {number}")
        builder.kernel(
            "cutlass_moe_gemm", begin + us(110), begin + us(110 + expert_us),
            launched_by=f"experts {number}", family=KernelFamily.MATMUL,
        )  # fmt: skip
    floor = decode_floor(Signals(run_of(builder.build())))
    assert floor is not None
    assert floor.weight_bytes == 2 * 4096 * 8192
    assert (floor.floor_ns is not None) is is_known
    # 80 of 280 us.
    assert ("only 28.6 % of the products' time" in floor.missing) is not is_known
