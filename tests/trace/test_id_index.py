from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.trace.columns import IdIndex

# Small ids as profilers assign them, and whatever damaged files hold.
IDS = st.one_of(
    st.integers(-3, 40),
    st.integers(2**40, 2**40 + 40),
    st.integers(-(2**63), 2**63 - 1),
)


@given(st.sets(IDS), st.lists(IDS))
def test_rows_are_positions_among_the_sorted_ids(known: set[int], wanted: list[int]) -> None:
    ordered = sorted(known)
    rows = IdIndex(np.array(ordered, dtype=np.int64)).rows(np.array(wanted, dtype=np.int64))
    assert rows.tolist() == [ordered.index(id_) if id_ in known else len(ordered) for id_ in wanted]


@pytest.mark.parametrize("offset", [0, -(2**63), 2**63 - 41])
@given(st.sets(st.integers(0, 40)), st.lists(IDS))
def test_dense_ids_may_start_anywhere(offset: int, known: set[int], wanted: list[int]) -> None:
    ordered = [offset + id_ for id_ in sorted(known)]
    rows = IdIndex(np.array(ordered, dtype=np.int64)).rows(
        np.array(wanted + ordered, dtype=np.int64)
    )
    positions = {id_: position for position, id_ in enumerate(ordered)}
    assert rows.tolist() == [positions.get(id_, len(ordered)) for id_ in wanted + ordered]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_negative_ids_are_unknown(dtype: type) -> None:
    # In a lookup table, -1 must not mean the last entry.
    assert IdIndex(np.array([0, 2], dtype=np.int64)).rows(
        np.array([-1, 2], dtype=dtype)
    ).tolist() == [
        2,
        1,
    ]
