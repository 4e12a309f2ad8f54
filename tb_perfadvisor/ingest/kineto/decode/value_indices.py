"""Look-ups from what a file says to indices: what a value becomes is worked out once.

Each is a dictionary that adds what it does not have, so that one look-up per event is all that
a value costs that has been seen before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.ingest.kineto.decode.event_roles import Role, role_of
from tb_perfadvisor.ingest.kineto.decode.numbers import to_integers
from tb_perfadvisor.ingest.kineto.decode.schema import ABSENT, decoded
from tb_perfadvisor.trace.assembler import Interned


def indices(lookup: dict[Any, int], values: list[Any]) -> NDArray[np.int32]:
    """The index of each value; shape (n,). A list or an object counts as no value."""
    if values.count(None) == len(values):  # a column that most files do not have
        return np.full(len(values), lookup[None] if values else -1, dtype=np.int32)
    try:
        return np.fromiter(map(lookup.__getitem__, values), np.int32, len(values))
    except TypeError:
        hashable = (None if isinstance(v, list | dict) else v for v in values)
        return np.fromiter(map(lookup.__getitem__, hashable), np.int32, len(values))


def raw_indices(lookup: dict[Any, int], values: list[msgspec.Raw]) -> NDArray[np.int64]:
    """What a look-up of undecoded JSON has for each value; shape (n,)."""
    if values and values[0] is ABSENT and values.count(ABSENT) == len(values):
        return np.full(len(values), lookup[b""], dtype=np.int64)
    return np.fromiter(map(lookup.__getitem__, map(bytes, values)), np.int64, len(values))


class Texts(dict[Any, int]):
    """Indices of the texts that values stand for; -1 for those that stand for none.

    Args:
        intern: Gives the index of a text.
        text_of: What a value stands for; by default strings for themselves.
    """

    def __init__(
        self, intern: Callable[[str], int], text_of: Callable[[Any], str | None] | None = None
    ) -> None:
        """Start empty."""
        super().__init__()
        self._intern = intern
        self._text_of = text_of or _string

    def __missing__(self, value: Any) -> int:
        """Work the text out."""
        text = self._text_of(value)
        index = self[value] = -1 if text is None else self._intern(text)
        return index


class Products(dict[bytes, int]):
    """Products of the lists of sizes that undecoded JSON holds; -1 for what is no such list."""

    def __missing__(self, raw: bytes) -> int:
        """Multiply."""
        product = self[raw] = int(to_integers([_product(decoded(raw))])[0])
        return product


class Categories(Interned):
    """Indices of categories, and the role of each."""

    def __init__(self) -> None:
        """Start empty."""
        super().__init__()
        self._roles: list[Role] = []

    def __missing__(self, category: Any) -> int:
        """Find the role; what is no string is ignored."""
        self._roles.append(role_of(category) if isinstance(category, str) else Role.IGNORED)
        return super().__missing__(category)

    def roles(self) -> NDArray[np.uint8]:
        """`Role` of each category; shape (categories,)."""
        return np.array(self._roles, dtype=np.uint8)


class Threads(dict[tuple[Any, Any], int]):
    """Indices of (pid, tid), equal for `17` and `"17"`: old files mix both for one thread."""

    def __init__(self) -> None:
        """Start empty."""
        super().__init__()
        self.keys_in_order = Interned()
        """The normal forms, by index."""

    def __missing__(self, pair: tuple[Any, Any]) -> int:
        """Find the normal form."""
        index = self[pair] = self.keys_in_order[thread_key(*pair)]
        return index

    def indices(self, pairs: Iterable[tuple[Any, Any]]) -> NDArray[np.int32]:
        """The index of each pair; shape (n,)."""
        pairs = list(pairs)
        try:
            return np.fromiter(map(self.__getitem__, pairs), np.int32, len(pairs))
        except TypeError:
            keys = (thread_key(*pair) for pair in pairs)
            return np.fromiter(map(self.__getitem__, keys), np.int32, len(pairs))


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
