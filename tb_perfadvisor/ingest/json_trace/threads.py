"""Threads of a file: processes and threads, as numbers or texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.trace.assembler import Interned


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
