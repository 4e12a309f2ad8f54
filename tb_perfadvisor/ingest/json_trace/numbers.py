"""Converts decoded JSON values of any type to numeric columns, exactly."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.trace.assembler import Interned

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
# Below this many microseconds a float64 resolves nanoseconds.
_EXACT_US = 2.0**43
# Beyond this a time in nanoseconds does not fit 64 bits.
_MAX_US = 9.2e15


def to_integers(values: Sequence[Any], missing: int = -1) -> NDArray[np.int64]:
    """Convert numbers and numeric strings to integers.

    Null and values that are not numbers become `missing`. Unsigned 64-bit numbers beyond the signed
    range, such as addresses, wrap. The result has shape (n,).
    """
    try:
        return np.array(array("q", values))  # which takes integers only
    except (TypeError, OverflowError):
        return np.array([_to_integer(value, missing) for value in values], dtype=np.int64)


def to_floats(values: Sequence[Any]) -> NDArray[np.float64]:
    """Convert values to floats, shape (n,); NaN for values that are not numbers."""
    kinds = set(map(type, values))
    if kinds <= {int, float, type(None)}:
        try:
            return np.array(values, dtype=np.float64)  # NaN for None
        except OverflowError:
            pass
    return np.array([_to_float(value) for value in values], dtype=np.float64)


def to_nanoseconds(values: Sequence[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Convert times in microseconds to integer nanoseconds.

    Exact for integers, decimals, strings, and floats below 2^43 (102 days), where a float64
    resolves nanoseconds. Files with `baseTimeNanoseconds` count from a recent quarter and stay
    below this limit; most other files have whole microseconds; the rest is decoded as decimals.

    Returns nanoseconds (0 if invalid) and whether each time is valid; shape (n,) each.
    """
    kinds = set(map(type, values))
    if kinds <= {int}:
        try:
            whole = np.fromiter(values, np.int64, len(values))
        except OverflowError:
            pass
        else:
            is_valid = np.abs(whole.astype(np.float64)) < _MAX_US
            return np.where(is_valid, whole, 0) * 1000, is_valid
    if kinds <= {int, float}:
        try:
            floats = np.array(values, dtype=np.float64)
        except OverflowError:
            pass
        else:
            # Large integers among floats are exact only as integers.
            if kinds == {float} or (np.abs(floats) < _EXACT_US).all():
                return _floats_to_nanoseconds(floats)
    pairs = [_to_nanoseconds(value) for value in values]
    nanoseconds = np.array([0 if pair is None else pair for pair in pairs], dtype=np.int64)
    return nanoseconds, np.array([pair is not None for pair in pairs], dtype=np.bool_)


def _floats_to_nanoseconds(
    values: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    is_valid = np.abs(values) < _MAX_US  # false for NaN
    values = np.where(is_valid, values, 0.0)
    # Convert the integer part and the fraction separately, to round only once.
    whole = np.floor(values)
    fraction = np.rint((values - whole) * 1000)
    return whole.astype(np.int64) * 1000 + fraction.astype(np.int64), is_valid


def _to_nanoseconds(value: Any) -> int | None:
    if isinstance(value, str):
        try:
            value = Decimal(value.strip())
        except InvalidOperation:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    # Large integers and decimals don't fit a float, so compare them as they are. NaN compares as
    # false; as a decimal it may refuse to be compared.
    if isinstance(value, Decimal) and value.is_nan():
        return None
    if not -_MAX_US < value < _MAX_US:
        return None
    if isinstance(value, float):
        whole = math.floor(value)
        return whole * 1000 + round((value - whole) * 1000)
    return round(value * 1000)


def _to_integer(value: Any, missing: int) -> int:
    if isinstance(value, str):
        text = value.strip()
        try:
            value = int(text, 16) if text[:2].lower() == "0x" else int(text)
        except ValueError:
            value = _to_float(text)
    if isinstance(value, float):
        if not math.isfinite(value):
            return missing
        value = int(value)
    if not isinstance(value, int):
        return missing
    if value > _INT64_MAX and value < 2**64:
        return value - 2**64
    return value if _INT64_MIN <= value <= _INT64_MAX else missing


def _to_float(value: Any) -> float:
    if isinstance(value, str | int | float):
        try:
            return float(value)
        except (ValueError, OverflowError):
            return math.nan
    return math.nan


class Threads(dict[tuple[Any, Any], int]):
    """Maps (pid, tid) to indices; `17` and `"17"` are equal, because old files mix them."""

    def __init__(self) -> None:
        super().__init__()
        self.keys_in_order = Interned()
        """The normalized pairs, in order of index."""

    def __missing__(self, pair: tuple[Any, Any]) -> int:
        """Normalize a new pair."""
        index = self[pair] = self.keys_in_order[thread_key(*pair)]
        return index

    def indices(self, events: Sequence[Any]) -> NDArray[np.int32]:
        """The index of each event's thread; shape (n,)."""
        pids, tids = [event.pid for event in events], [event.tid for event in events]
        try:
            pairs = zip(pids, tids, strict=True)
            return np.fromiter(map(self.__getitem__, pairs), np.int32, len(pids))
        except TypeError:
            keys = map(thread_key, pids, tids)
            return np.fromiter(map(self.__getitem__, keys), np.int32, len(pids))


def thread_key(pid: Any, tid: Any) -> tuple[Any, Any]:
    """The normal form of a process and a thread."""
    return _identifier(pid), _identifier(tid)


def _identifier(value: Any) -> Any:
    if isinstance(value, str):
        text = value.strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else ""
