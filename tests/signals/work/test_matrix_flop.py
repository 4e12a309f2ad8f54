from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.work.matrix_flop import matrix_flop
from tb_perfadvisor.testing import TraceBuilder, run_of
from tb_perfadvisor.testing.builder import ms


def trained(steps: int, *, shapes: bool = True) -> TraceBuilder:
    """A product, a convolution with what it calls, and an addition in each step."""
    builder = TraceBuilder()
    product = [[8, 128], [128, 64]]
    image, filters = [2, 3, 16, 16], [4, 3, 3, 3]
    values = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    for number in range(steps):
        at = ms(10 * number)
        builder.step(number, at, at + ms(10))
        for name, offset, length, arrays, rest in (
            ("aten::mm", 1, 1, product, None),
            ("aten::conv2d", 3, 3, [image, filters], None),
            ("aten::convolution", 4, 2, [image, filters], values),
            ("aten::add", 8, 1, [[8, 64], [8, 64]], None),
        ):
            builder.operator(
                name,
                at + ms(offset),
                at + ms(offset + length),
                launches=False,
                **(
                    {"shapes": arrays, "dtypes": ["float", "float"], "values": rest}
                    if shapes
                    else {}
                ),
            )
    return builder


@pytest.mark.parametrize("steps", [1, 3])
def test_products_and_convolutions_of_a_step_count_once(steps: int) -> None:
    # 2 x 8 x 128 x 64, and for each of 2 x 4 x 16 x 16 results 2 x 3 x 3 x 3.
    expected = 131_072 + 2_048 * 54
    assert matrix_flop(Signals(run_of(trained(steps).build()))) == expected


def test_it_is_unknown_without_shapes() -> None:
    assert matrix_flop(Signals(run_of(trained(2, shapes=False).build()))) is None
