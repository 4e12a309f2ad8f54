"""The texts are those of XLA's compiler (libtpu 0.0.52), for a TPU v5e and v6e."""

from __future__ import annotations

from math import inf, nan

import pytest

from tb_perfadvisor.hardware import find_device
from tb_perfadvisor.hardware.tpu_shape_costs import Factors, ShapeCosts, nominal_costs
from tb_perfadvisor.signals.tpu.padding import (
    Convolution,
    Multiplication,
    Product,
    multiplication_of,
)
from tb_perfadvisor.trace.hlo_text import parse_instruction

CONVOLUTION = (
    "%convolution.1 = bf16[32,28,28,512]{{3,0,2,1:T(8,128)(2,1)}} convolution("
    "bf16[32,28,28,{0}]{{3,0,2,1:T(8,128)(2,1)}} %x, "
    "bf16[{1},{0},512]{{3,2,1,0:T(8,128)(2,1)}} %w), "
    "window={{size={2}}}, dim_labels=b01f_01io->b01f{3}"
)
# The projection of attention over 4 x 513 positions to 16 heads of 64.
PROJECTION = (
    "%convolution.8 = bf16[16,64,4,513]{3,1,0,2:T(8,128)(2,1)S(1)} convolution("
    "bf16[1024,16,64,1]{0,2,1,3:T(8,128)(2,1)} %fusion.24, "
    "bf16[4,513,1024,1]{2,1,3,0:T(8,128)(2,1)} %fusion.19), window={size=4x1}, "
    "dim_labels=f1b0_0oi1->1b0f"
)


def parsed(text: str) -> Multiplication | None:
    instruction = parse_instruction(text)
    assert instruction is not None
    return multiplication_of(instruction, nan)


def costs(**errors: float) -> ShapeCosts:
    spec = find_device("TPU v5e")
    assert spec is not None
    kinds = ("product", "batched-product", "convolution")
    factors = dict.fromkeys(kinds, Factors(0, 1, 0, 0, 0))
    nominal = nominal_costs("v5e", spec, 1.5e9, 128)
    return nominal._replace(
        factors=factors, errors={name.replace("_", "-"): error for name, error in errors.items()}
    )


def test_a_convolution_of_images() -> None:
    found = parsed(CONVOLUTION.format(129, "3,3", "3x3 pad=1_1x1_1", ""))
    assert isinstance(found, Convolution)
    assert found.sizes == (32, 28, 28, 129, 512, 3)
    assert found.named["input features"] == (129,)
    assert found.resized(129, 128).sizes == (32, 28, 28, 128, 512, 3)


@pytest.mark.parametrize(
    ("kernel", "window", "groups"),
    [
        ("3,3", "3x3 stride=2x2 pad=1_1x1_1", ""),
        ("3,3", "3x3 pad=1_1x1_1", ", feature_group_count=4"),
        ("3,1", "3x1 pad=1_1x0_0", ""),
    ],
)
def test_other_convolutions_are_not_modeled(kernel: str, window: str, groups: str) -> None:
    assert parsed(CONVOLUTION.format(128, kernel, window, groups)) is None


def test_gradients_of_weights_are_not_modeled() -> None:
    image = "bf16[32,28,28,128]{3,0,2,1:T(8,128)(2,1)}"
    text = (
        f"%convolution.2 = bf16[3,3,128,128]{{3,2,1,0:T(8,128)(2,1)}} convolution({image} %x, "
        f"{image} %gradient), window={{size=28x28 pad=1_1x1_1}}, dim_labels=f01b_i01o->01bf"
    )
    assert parsed(text) is None


def test_dimensions_of_columns_are_padded_one_by_one() -> None:
    product, instruction = parsed(PROJECTION), parse_instruction(PROJECTION)
    assert isinstance(product, Product)
    assert instruction is not None
    assert product.sizes == (16 * 64, 1024, 4 * 513)
    # 513 fills the lanes of the result, in which it takes 640.
    assert product.in_tiles(instruction.results[0]).sizes == (16 * 64, 1024, 4 * 640)
    fitting = parse_instruction(PROJECTION.replace("513", "512"))
    assert fitting is not None
    fits = product.resized(513, 512)
    assert fits.in_tiles(fitting.results[0]).sizes == (16 * 64, 1024, 4 * 512)


def test_a_model_that_is_too_far_off_is_not_used() -> None:
    product = Product((64,), (256,), (128,), (256,))
    found = product.work(costs())
    assert found is not None
    assert found[0] == "batched-product"
    # As 64 products, if only those are known.
    found = product.work(costs(batched_product=0.16))
    assert found is not None
    assert found[0] == "product"
    assert found[1].matrix_cycles == 64 * costs().product_cycles(1, 256, 128, 256)
    assert product.work(costs(batched_product=inf, product=0.16)) is None
    assert Convolution(32, 28, 28, 128, 512, 3).work(costs(convolution=0.16)) is None
    assert Convolution(32, 28, 28, 128, 512, 3).work(costs(convolution=0.15)) is not None
