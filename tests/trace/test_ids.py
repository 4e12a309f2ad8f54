from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.trace.ids import Ids

# Small ones as profilers give, and what damaged bytes may hold.
ANY = st.one_of(
    st.integers(-3, 40),
    st.integers(2**40, 2**40 + 40),
    st.integers(-(2**63), 2**63 - 1),
)


@given(st.sets(ANY), st.lists(ANY))
def test_rows_are_places_among_the_ids(known: set[int], wanted: list[int]) -> None:
    ordered = sorted(known)
    found = Ids(np.array(ordered, dtype=np.int64)).rows(np.array(wanted, dtype=np.int64))
    assert found.tolist() == [
        ordered.index(one) if one in known else len(ordered) for one in wanted
    ]


@pytest.mark.parametrize("far", [0, -(2**63), 2**63 - 41])
@given(st.sets(st.integers(0, 40)), st.lists(ANY))
def test_ids_near_each_other_may_lie_anywhere(far: int, known: set[int], wanted: list[int]) -> None:
    ordered = [far + one for one in sorted(known)]
    rows = Ids(np.array(ordered, dtype=np.int64)).rows(np.array(wanted + ordered, dtype=np.int64))
    places = {one: place for place, one in enumerate(ordered)}
    assert rows.tolist() == [places.get(one, len(ordered)) for one in wanted + ordered]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_negative_ids_are_unknown(dtype: type) -> None:
    # As a table: -1 must not be its last entry.
    assert Ids(np.array([0, 2], dtype=np.int64)).rows(np.array([-1, 2], dtype=dtype)).tolist() == [
        2,
        1,
    ]
