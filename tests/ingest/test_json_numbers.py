"""Numbers of JSON become columns, exactly, whatever types they are mixed with."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.ingest.json_trace.numbers import to_floats, to_integers, to_nanoseconds
from tests.support.night import examples

# Of 1.6 ns, 3,001.7 ns and -1.6 ns, the nearest whole nanosecond. Of 2.5 ns, the even one.
FLOATS = [0.0016, 3.0017, -0.0016, 0.0025]
NEAREST = [2, 3002, -2, 2]


@pytest.mark.parametrize(
    ("others", "expected", "valid"),
    [
        ([], [], []),
        (["0.0016", " 7 "], [2, 7000], [True, True]),
        (["later", None, True], [0, 0, 0], [False] * 3),
        ([2**53 + 1], [(2**53 + 1) * 1000], [True]),
        ([Decimal("0.0016")], [2], [True]),
    ],
)
def test_times_are_rounded_alike_in_any_company(
    others: list[object], expected: list[int], valid: list[bool]
) -> None:
    at_ns, is_valid = to_nanoseconds([*FLOATS, *others])
    assert at_ns.tolist() == [*NEAREST, *expected]
    assert is_valid.tolist() == [*[True] * len(FLOATS), *valid]


@examples(100)
@given(st.lists(st.floats(-(2.0**43), 2.0**43), min_size=1))
def test_times_are_the_nearest_nanoseconds(times_us: list[float]) -> None:
    alone, _ = to_nanoseconds(times_us)
    mixed, _ = to_nanoseconds([*times_us, "1"])
    assert mixed.tolist() == [*alone.tolist(), 1000]
    for time_us, at_ns in zip(times_us, alone.tolist(), strict=True):
        # A float64 holds the fraction of a microsecond with an error far below a nanosecond.
        assert abs(Fraction(time_us) * 1000 - at_ns) <= Fraction("0.500001")


def test_integers_and_floats_in_any_company() -> None:
    assert to_integers([1.9, "2", "0x10", None, -1.9, "x", 2**64 - 1]).tolist() == [
        *(1, 2, 16, -1, -1, -1, -1),
    ]
    assert to_floats([1, 0.5, "0.25", " 3 "]).tolist() == [1.0, 0.5, 0.25, 3.0]
