"""Equal values in columns of rows and indices, which are small numbers.

A table with a place for each value takes one pass where sorting and hashing take ten.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tb_perfadvisor.trace.tables import Int64

# Even with 256 places for each value sorting takes longer, but less memory: a place is a byte.
_PLACES_PER_VALUE = 64
_MOST_PLACES = 1 << 26
_FEWEST_PLACES = 1 << 16
# To compare a column of bytes takes a twentieth of looking its values up.
_FEW_BYTES = 12


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The values of a column of integers, sorted, each once: `numpy.unique`."""
    if not values.size:
        return values[:0]
    found = _occurring(values)
    if found is None:
        return np.unique(values)
    least, occurs = found
    return (np.flatnonzero(occurs) + least).astype(values.dtype)


def among(values: NDArray[Any], some: ArrayLike) -> NDArray[np.bool_]:
    """Whether each of a column of integers is one of some: `numpy.isin`."""
    wanted = np.asarray(some)
    if not wanted.size:
        return np.zeros(np.shape(values), dtype=bool)
    if wanted.size * values.dtype.itemsize <= _FEW_BYTES:
        is_one: NDArray[np.bool_] = np.zeros(np.shape(values), dtype=bool)
        for one in wanted.ravel().tolist():
            is_one |= values == one
        return is_one
    found = _occurring(wanted, values.size)
    if found is None:
        return np.isin(values, wanted)
    least, occurs = found
    limits = np.iinfo(values.dtype)
    if least < limits.min or least + len(occurs) > limits.max:
        return np.isin(values, wanted)
    # Without a sign whatever is less becomes large; one place more, for all beyond the last.
    places = np.dtype(f"u{values.dtype.itemsize}").type
    place = np.asarray(values - values.dtype.type(least)).view(places)
    np.minimum(place, places(len(occurs)), out=place)
    looked_up: NDArray[np.bool_] = np.append(occurs, np.False_).take(place)
    return looked_up


def ranked(values: NDArray[Any]) -> tuple[NDArray[Any], Int64]:
    """The distinct values of a column of integers, sorted, and the place of each row's in them."""
    found = _occurring(values)
    if found is None:
        unique, place = np.unique(values, return_inverse=True)
        return unique, place.reshape(-1)
    least, occurs = found
    number = np.cumsum(occurs) - 1
    return (np.flatnonzero(occurs) + least).astype(values.dtype), number[values - least]


def grouped(*columns: NDArray[Any]) -> tuple[Int64, Int64]:
    """Equal rows of some columns of integers.

    Returns:
        The first row of each group, the groups in the order of their values, and every row's
        group.
    """
    unique, group = ranked(columns[0])
    count = len(unique)
    for column in columns[1:]:
        unique, code = ranked(column)
        # Both are at most the number of rows, so their product fits.
        pairs, group = ranked(group * max(len(unique), 1) + code)
        count = len(pairs)
    first = np.empty(count, dtype=np.int64)
    # Of several assignments to a place the last one stands.
    first[group[::-1]] = np.arange(len(group) - 1, -1, -1)
    return first, group


def mask_of(count: int, rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Which of `count` rows are among some."""
    mask = np.zeros(count, dtype=bool)
    mask[rows] = True
    return mask


def _occurring(values: NDArray[Any], others: int = 0) -> tuple[int, NDArray[np.bool_]] | None:
    """The least value, and which from it on occur; None where they lie too far apart.

    Args:
        values: Integers.
        others: How many are to be looked up.
    """
    if not values.size:
        return None
    least, most = int(values.min()), int(values.max())
    places = min(_PLACES_PER_VALUE * (values.size + others), _MOST_PLACES)
    if most - least >= max(places, _FEWEST_PLACES):
        return None
    return least, mask_of(most - least + 1, values - least)
