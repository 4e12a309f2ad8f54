"""The test of the model of shapes, with made-up answers."""

from __future__ import annotations

import pytest

from cost_models import tpu_shape_model
from cost_models.tpu_shape_model import Neighbors, coverage, neighbors, nominal, saved_range
from cost_models.tpu_shapes import Answer
from tb_perfadvisor.hardware.tpu_shape_costs import Factors


def answer(sizes: tuple[int, ...], cycles: float, family: int = 1) -> Answer:
    return Answer("product", sizes, "bfloat16", family, True, cycles, 0, 0, 0, 0, 1, "0.0.52")


def test_neighbors_differ_in_one_size_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [
        answer((1024, 520, 2048), 1000),
        answer((1024, 512, 2048), 900),
        answer((1024, 640, 2048), 1100),  # fits, but is far away
        answer((1024, 512, 2048), 500, family=2),
        answer((2048, 512, 1024), 500),  # more than one size differs
    ]
    monkeypatch.setattr(tpu_shape_model, "read_answers", lambda generation: answers)
    costs = nominal("v5e")._replace(factors={"product": Factors(0, 1, 0, 0, 0)})
    (found,) = neighbors(costs)
    # 520 contracted terms take as many passes as 640: 512 saves a fifth. The compiler says a tenth.
    assert found.expected == pytest.approx(0.2)
    assert found.true == pytest.approx(0.1)
    assert neighbors(costs._replace(errors={"product": 0.2})) == []


def test_the_range_holds_four_of_five_savings() -> None:
    pairs = [Neighbors(0.1, 0.01 * times, False) for times in range(1, 12)]
    # Of 0.1 to 1.1 times the expected saving, a tenth is below 0.2, and a tenth above 1.0.
    within = saved_range(pairs)
    assert within == (0.2, 1.0)
    held_out = [Neighbors(0.1, true, True) for true in (-0.2, 0.005, 0.02, 0.1, 0.11, 0.115)]
    # A point of the time is tolerated, so 0.02 is in the range, and 0.11 is, too.
    assert coverage([*pairs, *held_out], within) == (3, 6)
