"""The check of the model of matrix products, with made-up predictions."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.matmul_model import (
    BF16,
    DEVICES,
    FP32,
    Predicted,
    compare,
    foretell,
    markdown,
    products,
    speedup_table,
)

(H100,) = (device for device in DEVICES if device.label == "H100")
SHAPE = (1, 4096, 4096, 4096)
# See tests/rules/test_slow_matmul.py.
ACHIEVABLE_NS = 171_758


def predicted(factor: float) -> Predicted:
    return Predicted([SHAPE], np.array([round(ACHIEVABLE_NS * factor)]), np.array([512]))


def test_products_are_those_of_large_models() -> None:
    shapes = products()
    assert len(shapes) == len(set(shapes)) > 3_000
    assert SHAPE in shapes
    assert (1, 1, 4096, 4096) in shapes
    assert all(2 * b * m * n * k < 4e14 for b, m, n, k in shapes)


def test_a_product_at_the_predicted_time() -> None:
    row = compare(H100, BF16, predicted(1.25))
    assert row.ratio == pytest.approx(0.8, rel=1e-4)
    assert row.error == pytest.approx(0.2, rel=1e-3)
    assert not any(row.called_slow.values())


def test_rules_are_asked_however_little_a_product_would_save() -> None:
    row = compare(H100, BF16, predicted(10))
    assert row.called_slow == {
        "slow-matmul": 1,
        "tensor-cores-idle": 1,
        "misaligned-shapes": 0,
        "low-occupancy": 0,
    }


def test_the_time_in_16_bits() -> None:
    # 2 x 4096^3 FLOP at 0.90 of 66.9 TFLOP/s in whole waves, and writing half of 67 MB: 2.371 ms,
    # of which 172 us remain.
    wide = Predicted([SHAPE], np.array([2_371_000]), np.array([1024]))
    row = foretell(H100, FP32, wide, predicted(1.0))
    assert (row.products, row.in_range) == (1, 1.0)
    assert row.error < 0.01


def test_the_tables() -> None:
    text = markdown([compare(H100, BF16, predicted(10))])
    assert "| H100 | bf16 | 1 | 0.10 | 90 % |" in text
    assert "1 by slow-matmul, 1 by tensor-cores-idle" in text
    foretold = speedup_table([foretell(H100, FP32, predicted(14), predicted(1))])
    assert "| H100 | fp32 | 1 |" in foretold
