"""A lap in pieces against one join after the other."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tb_perfadvisor.whatif import laps
from tb_perfadvisor.whatif.joins import Joins
from tb_perfadvisor.whatif.laps import Cuts, find_cuts, lap_of
from tb_perfadvisor.whatif.program import NEVER


def joins_of(count: int, tails: int, reach: int, seed: int) -> Joins:
    """Joins of which each follows one of the last, or, now and then, a tail."""
    random = np.random.default_rng(seed)
    number = tails + 1 + np.arange(count)

    def sources() -> np.ndarray:
        near = number - random.integers(1, reach + 1, count)
        some_tail = random.integers(0, tails + 1, count)
        is_far = (near <= tails) | (random.random(count) < 0.02)
        return np.where(is_far, some_tail, near).astype(np.int32)

    def lags(count: int = count) -> np.ndarray:
        return random.integers(-5, 1_000, count)

    end = np.append(number[-min(count, 2) :], random.integers(0, tails)).astype(np.int32)
    return Joins(sources(), lags(), sources(), lags(), end, lags(len(end)), None)


def cut(joins: Joins, tails: int) -> Cuts | None:
    return find_cuts(joins.source, joins.other_source, joins.end_source, tails + 1)


def in_pieces(joins: Joins, cuts: Cuts) -> Joins:
    return Joins(*(getattr(joins, name) for name in joins.__struct_fields__[:-1]), cuts)


@settings(max_examples=200)
@given(
    count=st.integers(1, 300),
    tails=st.integers(1, 4),
    reach=st.integers(1, 6),
    seed=st.integers(0, 1 << 30),
    piece=st.sampled_from([4, 16, 64]),
    lanes=st.sampled_from([1, 3, 64]),
    data=st.data(),
)
def test_in_pieces_it_is_the_same(
    count: int, tails: int, reach: int, seed: int, piece: int, lanes: int, data: st.DataObject
) -> None:
    joins = joins_of(count, tails, reach, seed)
    moments = st.one_of(st.just(NEVER), st.integers(0, 10**13))
    begun = data.draw(st.lists(moments, min_size=tails, max_size=tails))
    begun[0] = 5
    with (
        patch.object(laps, "_WORTH_JOINS", 0),
        patch.object(laps, "_PIECE", piece),
        patch.object(laps, "_LANES", lanes),
    ):
        cuts = cut(joins, tails)
        assert cuts is not None
        assert int(cuts.length.sum()) == count
        found = lap_of(in_pieces(joins, cuts))(begun)
    assert found == lap_of(joins)(begun)


@pytest.mark.parametrize("count", [laps._WORTH_JOINS, 1_000_000])
def test_many_joins_are_cut_where_little_is_carried_over(count: int) -> None:
    joins = joins_of(count, 3, 2, 0)
    cuts = cut(joins, 3)
    assert cuts is not None
    assert len(cuts.length) > 50
    begun = [0, 50, NEVER]
    assert lap_of(in_pieces(joins, cuts))(begun) == lap_of(joins)(begun)


@pytest.mark.parametrize(("count", "reach"), [(laps._WORTH_JOINS - 1, 2), (30_000, 100)])
def test_few_joins_and_those_that_hang_together_are_not(count: int, reach: int) -> None:
    assert cut(joins_of(count, 3, reach, 0), 3) is None
