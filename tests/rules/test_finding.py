from __future__ import annotations

import numpy as np
import pytest

from tb_perfadvisor.rules.finding import LargerBatch, Saving

CLAIMS = np.array([[0, 60], [100, 140]], dtype=np.int64)  # 100 ns


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ((10, 20, 30), (10, 20, 30)),
        ((10, 200, 300), (10, 100, 100)),  # no more than what is claimed
        ((10, 50, 30), (10, 30, 30)),
        ((40, 20, 30), (20, 20, 30)),
        ((40, 20, 10), (10, 10, 10)),
        ((-5, -3, -1), (0, 0, 0)),
        ((-5, 20, 30), (0, 20, 30)),
    ],
)
def test_a_saving_is_a_range_within_its_claims(
    given: tuple[int, int, int], kept: tuple[int, int, int]
) -> None:
    saving = Saving(*given, CLAIMS, "measured")
    assert (saving.low_ns, saving.expected_ns, saving.high_ns) == kept


def test_a_larger_batch_saves_less_than_everything() -> None:
    batch = LargerBatch(8, 16, 0.5, 0.25, 1.5)
    assert (batch.low_share, batch.expected_share) == (0.25, 0.25)
    assert 0.25 < batch.high_share < 1
