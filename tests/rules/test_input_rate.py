from __future__ import annotations

import pytest

from tb_perfadvisor.rules.savings import saving_of_doubled_input_rate_ns


@pytest.mark.parametrize(
    ("stall_ns", "low_ns"),
    [
        (8, 2),  # of 10: at twice the rate a step saves 5, of which half counts
        (4, 2),  # then 6 ns of other work limit the step: half of the whole stall counts
        (0, 0),
    ],
)
def test_half_of_the_saving_of_a_doubled_rate_counts(stall_ns: int, low_ns: int) -> None:
    assert saving_of_doubled_input_rate_ns(stall_ns, 10) == low_ns
