from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.work.products import matrix_flop
from tb_perfadvisor.testing import TraceBuilder, run_of
from tb_perfadvisor.testing.builder import ms


def training(steps: int, *, shapes: bool = True) -> TraceBuilder:
    """A product, a convolution with the operator that it calls, and an addition in each step."""
    builder = TraceBuilder()
    product = [[8, 128], [128, 64]]
    image, filters = [2, 3, 16, 16], [4, 3, 3, 3]
    values = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    for number in range(steps):
        start = ms(10 * number)
        builder.step(number, start, start + ms(10))
        for name, offset, length, arrays, options in (
            ("aten::mm", 1, 1, product, None),
            ("aten::conv2d", 3, 3, [image, filters], None),
            ("aten::convolution", 4, 2, [image, filters], values),
            ("aten::add", 8, 1, [[8, 64], [8, 64]], None),
        ):
            builder.operator(
                name,
                start + ms(offset),
                start + ms(offset + length),
                launches=False,
                **(
                    {"shapes": arrays, "dtypes": ["float", "float"], "values": options}
                    if shapes
                    else {}
                ),
            )
    return builder


@pytest.mark.parametrize("steps", [1, 3])
def test_products_and_convolutions_of_a_step_count_once(steps: int) -> None:
    # 2 x 8 x 128 x 64, plus 2 x 3 x 3 x 3 for each of 2 x 4 x 16 x 16 outputs.
    expected = 131_072 + 2_048 * 54
    assert matrix_flop(Signals(run_of(training(steps).build()))) == expected


def test_flop_are_unknown_without_shapes() -> None:
    assert matrix_flop(Signals(run_of(training(2, shapes=False).build()))) is None
