from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tb_perfadvisor.trace.groups import among, distinct, grouped, mask_of, ranked

NEAR = st.integers(-3, 40)
FAR = st.integers(-(2**63), 2**63 - 1)


def columns(values: st.SearchStrategy[int]) -> st.SearchStrategy[np.ndarray]:
    return arrays(np.int64, st.integers(0, 30), elements=values)


@given(st.one_of(columns(NEAR), columns(FAR)))
def test_distinct_values_and_their_places_are_those_of_sorting(values: np.ndarray) -> None:
    unique, place = ranked(values)
    assert unique.tolist() == distinct(values).tolist() == sorted(set(values.tolist()))
    assert unique[place].tolist() == values.tolist()


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_types_stay(dtype: type[np.integer]) -> None:
    values = np.array([3, -1, 3], dtype=dtype)
    assert distinct(values).dtype == ranked(values)[0].dtype == dtype


@given(st.lists(st.tuples(NEAR, FAR, st.integers(0, 1)), max_size=30))
def test_groups_are_equal_rows_in_the_order_of_their_values(rows: list[tuple[int, ...]]) -> None:
    first, group = grouped(*np.array(rows, dtype=np.int64).reshape(-1, 3).T)
    assert [rows[one] for one in first] == sorted(set(rows))
    assert [rows.index(row) for row in rows] == first[group].tolist()


@given(
    st.sampled_from([np.uint8, np.int8, np.int32, np.int64]),
    st.lists(st.one_of(NEAR, FAR), max_size=30),
    st.lists(st.one_of(NEAR, FAR), max_size=20),
)
def test_what_is_among_some(dtype: type[np.integer], values: list[int], some: list[int]) -> None:
    column = np.array(values, dtype=np.int64).astype(dtype)
    wanted = some + column[::3].tolist()
    expected = [one in set(wanted) for one in column.tolist()]
    assert among(column, wanted).tolist() == expected
    assert among(column, np.array(wanted, dtype=np.int64)).tolist() == expected


def test_mask() -> None:
    assert mask_of(4, np.array([2, 0])).tolist() == [True, False, True, False]
