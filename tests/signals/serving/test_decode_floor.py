"""The bytes of weights by hand, from the shapes of products."""

from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.serving.decode_floor import DecodeFloor, decode_floor
from tb_perfadvisor.testing import TraceBuilder, ms, run_of, us
from tb_perfadvisor.testing.builder import Builder

H100 = "NVIDIA H100 80GB HBM3"
_HALF = ["c10::BFloat16", "c10::BFloat16"]


def product(builder: Builder, at: int, rows: int, size: tuple[int, int]) -> None:
    """`mm` of some rows by weights."""
    shapes = [[rows, size[0]], list(size)]
    key = f"{at}"
    builder.operator("aten::mm", at, at + us(10), shapes=shapes, dtypes=_HALF, key=key)
    builder.kernel("gemm", at + us(10), at + us(90), launched_by=key)


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
    assert floor_of([(DECODE, [])] * 4) is None


def test_it_is_that_of_decode_steps() -> None:
    assert floor_of([(PREFILL, [(300, LAYER)])] * 4) is None
