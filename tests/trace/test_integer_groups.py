from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tb_perfadvisor.trace.integer_groups import (
    distinct,
    group_rows,
    is_in,
    places_by_value,
    quantile,
    row_mask,
    unique_inverse,
    without,
)

NEAR = st.integers(-3, 40)
FAR = st.integers(-(2**63), 2**63 - 1)


def columns(values: st.SearchStrategy[int]) -> st.SearchStrategy[np.ndarray]:
    return arrays(np.int64, st.integers(0, 30), elements=values)


# Few rows and many are handled apart.
@given(st.one_of(columns(NEAR), columns(FAR)), st.sampled_from([1, 300]))
def test_distinct_values_match_sorting(values: np.ndarray, times: int) -> None:
    values = np.tile(values, times)
    unique, inverse = unique_inverse(values)
    assert unique.tolist() == distinct(values).tolist() == sorted(set(values.tolist()))
    assert unique[inverse].tolist() == values.tolist()


@pytest.mark.parametrize("times", [1, 300])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint64])
def test_keeps_the_integer_type(dtype: type[np.integer], times: int) -> None:
    values = np.array([3, 1, 3] * times, dtype=dtype)
    unique, inverse = unique_inverse(values)
    assert distinct(values).dtype == unique.dtype == dtype
    assert inverse[:3].tolist() == [1, 0, 1]


@pytest.mark.parametrize("times", [1, 300])
def test_columns_of_truths_are_values_and_no_masks(times: int) -> None:
    unique, inverse = unique_inverse(np.array([True, False, True] * times))
    assert unique.tolist() == [False, True]
    assert inverse.tolist() == [1, 0, 1] * times


@given(st.lists(st.tuples(NEAR, FAR, st.integers(0, 1)), max_size=30), st.sampled_from([1, 300]))
def test_groups_equal_rows_in_order_of_value(rows: list[tuple[int, ...]], times: int) -> None:
    rows = rows * times
    first, group = group_rows(*np.array(rows, dtype=np.int64).reshape(-1, 3).T)
    assert [rows[row] for row in first] == sorted(set(rows))
    assert [rows.index(row) for row in rows] == first[group].tolist()


@given(
    st.sampled_from([np.uint8, np.int8, np.int32, np.int64]),
    st.lists(st.one_of(NEAR, FAR), max_size=30),
    st.lists(st.one_of(NEAR, FAR), max_size=20),
)
def test_is_in_matches_a_python_set(
    dtype: type[np.integer], values: list[int], chosen: list[int]
) -> None:
    column = np.array(values, dtype=np.int64).astype(dtype)
    wanted = chosen + column[::3].tolist()
    expected = [value in set(wanted) for value in column.tolist()]
    assert is_in(column, wanted).tolist() == expected
    assert is_in(column, np.array(wanted, dtype=np.int64)).tolist() == expected


@given(columns(st.one_of(NEAR, FAR)), columns(st.one_of(NEAR, FAR)))
def test_without_matches_a_python_set(values: np.ndarray, more: np.ndarray) -> None:
    excluded = np.concatenate((more, values[::3]))
    expected = sorted({*values.tolist()} - {*excluded.tolist()})
    assert without(values, excluded).tolist() == expected


@given(
    arrays(np.int64, st.integers(1, 30), elements=st.integers(-(2**50), 2**50)),
    st.floats(0, 1),
)
def test_quantiles_equal_those_of_numpy(values: np.ndarray, share: float) -> None:
    assert quantile(values, share) == float(np.quantile(values, share))


def test_row_mask() -> None:
    assert row_mask(4, np.array([2, 0])).tolist() == [True, False, True, False]


@given(st.one_of(columns(NEAR), columns(FAR)))
def test_places_by_value(values: np.ndarray) -> None:
    listed = values.tolist()
    found = {value: places.tolist() for value, places in places_by_value(values)}
    assert list(found) == sorted(set(listed))
    assert found == {
        value: [at for at, other in enumerate(listed) if other == value] for value in set(listed)
    }
