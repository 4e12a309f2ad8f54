"""Set operations and grouping for integer columns such as rows and indices.

The values are small numbers, so a lookup table takes one pass where sorting or hashing takes ten.
Each function falls back to numpy's own where the values are too far apart for a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tb_perfadvisor.trace.tables import Int64

# Limits of the table, in entries of a byte. Even 256 entries per value are faster than sorting,
# but take more memory.
_ENTRIES_PER_VALUE = 64
_MAX_ENTRIES = 1 << 26
_MIN_ENTRIES = 1 << 16
# Comparing a column of bytes with one value takes a twentieth of looking its values up.
_FEW_BYTES = 12
# Searching so few values takes no longer than looking values up in a large table.
_FEW_VALUES = 16
# For so few rows, a call of NumPy takes longer than Python takes for all of them.
_FEW_ROWS = 256


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """The sorted distinct values of an integer column, as `numpy.unique`."""
    if not values.size:
        return values[:0]
    if values.size <= _FEW_ROWS:
        return np.array(sorted(set(values.ravel().tolist())), values.dtype)
    table = _occurrence_table(values)
    if table is None:
        # NumPy 2.4 hashes the values, which takes a hundred times as long if most are distinct.
        ordered = np.sort(values, axis=None, kind="stable")  # most come in runs
        unique: NDArray[Any] = ordered[np.append(True, ordered[1:] != ordered[:-1])]
        return unique
    least, occurs = table
    return (np.flatnonzero(occurs) + least).astype(values.dtype)


def is_in(values: NDArray[Any], wanted: ArrayLike) -> NDArray[np.bool_]:
    """Whether each value of an integer column is among the wanted ones, as `numpy.isin`."""
    wanted = np.asarray(wanted)
    if not wanted.size:
        return np.zeros(np.shape(values), dtype=bool)
    if wanted.size * values.dtype.itemsize <= _FEW_BYTES:
        matches: NDArray[np.bool_] = np.zeros(np.shape(values), dtype=bool)
        for value in wanted.ravel().tolist():
            matches |= values == value
        return matches
    table = _occurrence_table(wanted, values.size)
    limits = np.iinfo(values.dtype)
    if table is None or not limits.min <= table[0] <= limits.max - len(table[1]):
        # NumPy's `isin` imports masked arrays, which takes as long as reading a small file.
        ordered = np.sort(wanted, axis=None)
        slot = np.minimum(np.searchsorted(ordered, values), ordered.size - 1)
        found: NDArray[np.bool_] = ordered[slot] == values
        return found
    least, occurs = table
    # As unsigned numbers, values below the least are large. The last entry, appended below,
    # stands for all values beyond the table.
    unsigned = np.dtype(f"u{values.dtype.itemsize}").type
    entry = np.asarray(values - values.dtype.type(least) if least else values).view(unsigned)
    entry = np.minimum(entry, unsigned(len(occurs)))
    if entry.dtype == np.uint64:
        entry = entry.view(np.int64)  # NumPy 1 takes by no unsigned indices of 64 bits
    looked_up: NDArray[np.bool_] = np.append(occurs, np.False_).take(entry)
    return looked_up


def without(values: NDArray[Any], excluded: ArrayLike) -> NDArray[Any]:
    """The sorted distinct values that are not among the excluded ones, as `numpy.setdiff1d`.

    NumPy's imports masked arrays, which takes a tenth of the analysis of a small profile.
    """
    return distinct(values[~is_in(values, excluded)])


def quantile(values: NDArray[Any], share: float) -> float:
    """A quantile of some integers, at least one, exactly as `numpy.quantile`.

    It imports masked arrays, too.
    """
    place = (values.size - 1) * share
    low = int(place)
    high = min(low + 1, values.size - 1)
    ordered = np.partition(values, (low, high))
    below, above, weight = int(ordered[low]), int(ordered[high]), place - low
    if weight < 0.5:
        return below + (above - below) * weight
    return above - (above - below) * (1 - weight)


def unique_inverse(values: NDArray[Any]) -> tuple[NDArray[Any], Int64]:
    """The sorted distinct values of an integer column, and the index of each row's value in them.

    The same as `numpy.unique(values, return_inverse=True)`.
    """
    table = _occurrence_table(values) if values.size > _FEW_ROWS else None
    if table is None:
        unique = distinct(values)
        return unique, np.searchsorted(unique, values)
    least, occurs = table
    unique = (np.flatnonzero(occurs) + least).astype(values.dtype)
    if unique.size < _FEW_VALUES and len(occurs) > values.size:  # no second large table
        return unique, np.searchsorted(unique, values)
    number = np.cumsum(occurs, dtype=np.int32)  # no 64 bits
    number -= 1
    entry = (values - least if least else values).astype(np.intp, copy=False)
    return unique, number.take(entry).astype(np.int64)


def group_rows(*columns: NDArray[Any]) -> tuple[Int64, Int64]:
    """Group the rows that are equal in all of some integer columns.

    Returns the first row of each group, in the order of the groups' values, and the group of each
    row.
    """
    unique, group = unique_inverse(columns[0])
    count = len(unique)
    for column in columns[1:]:
        if column.size and column.min() == column.max():
            continue  # divides no group
        unique, code = unique_inverse(column)
        # Neither factor exceeds the number of rows, so the product cannot overflow.
        pairs, group = unique_inverse(group * max(len(unique), 1) + code)
        count = len(pairs)
    first = np.empty(count, dtype=np.int64)
    # The last assignment to an entry wins, so assign in reverse order.
    first[group[::-1]] = np.arange(len(group) - 1, -1, -1)
    return first, group


def stable_order(values: NDArray[Any]) -> Int64:
    """As `numpy.argsort(values, kind="stable")`, which sorts 16-bit integers ten times as fast."""
    if values.itemsize > 2 and values.size and values.min() >= 0 and values.max() < 2**16:
        values = values.astype(np.uint16)
    order: Int64 = np.argsort(values, kind="stable")
    return order


def rows_by_group(group: NDArray[Any], count: int) -> list[Int64]:
    """The rows of each of `count` groups, in order, from the group of each row."""
    ends = np.cumsum(np.bincount(group, minlength=count))
    return np.split(stable_order(group), ends)[:count]


def places_by_value(values: NDArray[Any]) -> Iterator[tuple[int, Int64]]:
    """The distinct values of an integer column in order, each with the places where it occurs.

    Takes one sort, where a comparison with each value would take a pass per value.
    """
    if not values.size:
        return
    order = stable_order(values)
    ordered = values[order]
    bounds = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), order.size]
    for begin, end in pairwise(bounds):
        yield int(ordered[begin]), order[begin:end]


def row_mask(count: int, rows: NDArray[Any]) -> NDArray[np.bool_]:
    """A mask of `count` rows in which the given ones are set."""
    mask = np.zeros(count, dtype=bool)
    mask[rows.astype(np.intp, copy=False)] = True  # NumPy sets by 32-bit rows thrice as slowly
    return mask


def _occurrence_table(
    values: NDArray[Any], lookups: int = 0
) -> tuple[int, NDArray[np.bool_]] | None:
    """The least value, and which integers from there on occur; None if the table were too large.

    `lookups` is how many values will be looked up in the table.
    """
    if not values.size:
        return None
    least, greatest = int(values.min()), int(values.max())
    if least > 0 and greatest < _MIN_ENTRIES:
        least = 0  # saves subtracting it from all values
    limit = min(_ENTRIES_PER_VALUE * (values.size + lookups), _MAX_ENTRIES)
    if greatest - least >= max(limit, _MIN_ENTRIES):
        return None
    return least, row_mask(greatest - least + 1, values - least if least else values)
