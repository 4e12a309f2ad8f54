"""Maps values of a file to indices.

Each map is a dictionary that adds missing values, so that a known value costs one lookup per event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.ingest.json_trace.envelope import ABSENT, decoded
from tb_perfadvisor.ingest.json_trace.numbers import to_integers
from tb_perfadvisor.ingest.kineto.decode.event_roles import Role, role_of
from tb_perfadvisor.trace.assembler import Interned


def indices(lookup: dict[Any, int], values: list[Any]) -> NDArray[np.int32]:
    """The index of each value; shape (n,). Lists and objects count as missing."""
    if values.count(None) == len(values):  # most files have no such column
        return np.full(len(values), lookup[None] if values else -1, dtype=np.int32)
    try:
        return np.fromiter(map(lookup.__getitem__, values), np.int32, len(values))
    except TypeError:
        hashable = (None if isinstance(v, list | dict) else v for v in values)
        return np.fromiter(map(lookup.__getitem__, hashable), np.int32, len(values))


def raw_indices(lookup: dict[Any, int], values: list[msgspec.Raw]) -> NDArray[np.int64]:
    """The index of each undecoded JSON value; shape (n,)."""
    if values and values[0] is ABSENT and values.count(ABSENT) == len(values):
        return np.full(len(values), lookup[b""], dtype=np.int64)
    return np.fromiter(map(lookup.__getitem__, map(bytes, values)), np.int64, len(values))


class Texts(dict[Any, int]):
    """Maps values to the indices of their texts; -1 for values without a text.

    Args:
        intern: Stores a text and returns its index.
        text_of: The text of a value; by default, strings are their own texts.
    """

    def __init__(
        self, intern: Callable[[str], int], text_of: Callable[[Any], str | None] | None = None
    ) -> None:
        super().__init__()
        self._intern = intern
        self._text_of = text_of or _string

    def __missing__(self, value: Any) -> int:
        """Intern the text of a new value."""
        text = self._text_of(value)
        index = self[value] = -1 if text is None else self._intern(text)
        return index


class Products(dict[bytes, int]):
    """Maps undecoded JSON lists of sizes to their products; -1 for other values."""

    def __missing__(self, raw: bytes) -> int:
        """Multiply the sizes of a new list."""
        product = self[raw] = int(to_integers([_product(decoded(raw))])[0])
        return product


class Categories(Interned):
    """Maps categories to indices, and indices to roles."""

    def __init__(self) -> None:
        super().__init__()
        self._roles: list[Role] = []

    def __missing__(self, category: Any) -> int:
        """Add a category with its role; values other than strings are ignored."""
        self._roles.append(role_of(category) if isinstance(category, str) else Role.IGNORED)
        return super().__missing__(category)

    def roles(self) -> NDArray[np.uint8]:
        """`Role` of each category; shape (categories,)."""
        return np.array(self._roles, dtype=np.uint8)


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _product(sizes: Any) -> int | None:
    if type(sizes) is not list or not sizes:
        return None
    product = 1
    for size in sizes:
        if type(size) is not int:
            return None
        product *= size
    return product
