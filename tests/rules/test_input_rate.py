from __future__ import annotations

import pytest

from tb_perfadvisor.rules.savings.input_rate import saving_of_doubled_input_rate_ns


@pytest.mark.parametrize(
    ("stall_ns", "low_ns"),
    [
        (8, 2),  # of 10: at twice the pace a step takes 5, of which half counts
        (4, 2),  # then 6 ns of other work set the pace: the whole stall, and half of it
        (0, 0),
    ],
)
def test_half_of_what_twice_the_pace_would_save(stall_ns: int, low_ns: int) -> None:
    assert saving_of_doubled_input_rate_ns(stall_ns, 10) == low_ns
