from __future__ import annotations

import pytest

from tb_perfadvisor.rules.compute.examined_results import MostlyZeroProducts
from tb_perfadvisor.testing import check_rule, find, ms
from tests.support.examined import observed, program


def test_saves_its_part_of_the_time() -> None:
    checked = check_rule(
        MostlyZeroProducts,
        slow=program(observed("mostly zero", 0.5)),
        fixed=program(step_ms=5),
        saves="5ms",
    )
    (finding,) = checked.findings
    assert "is zero" in finding.summary


def test_just_below_and_just_above_the_limit() -> None:
    assert find(MostlyZeroProducts, program(observed("mostly zero", 0.049))) == ()
    assert find(MostlyZeroProducts, program(observed("mostly zero", 0.051)))


def test_sparse_products_take_eight_times_as_long_for_what_is_left() -> None:
    # Of 5 ms, 2 % are left: 8 x 2 % = 16 % stay as expected, and 20 x 2 % = 40 % at most.
    (finding,) = find(MostlyZeroProducts, program(observed("mostly zero", 0.5, 0.98)))
    assert finding.saving is not None
    assert finding.saving.expected_ns == pytest.approx(ms(3 * 4.2), rel=1e-3)
    assert finding.saving.low_ns == pytest.approx(ms(3 * 5 * 0.6 * 0.8), rel=1e-3)
