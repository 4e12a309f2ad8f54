"""A column of texts with few distinct values, stored as codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.trace.integer_groups import unique_inverse
from tb_perfadvisor.trace.tables import Int32, Int64


class TextColumn(Sequence[str]):
    """A categorical column: reads as a sequence of texts, computes with integer codes."""

    def __init__(self, strings: Sequence[str], index: Int32, unknown: str = "") -> None:
        """Look up the texts.

        Args:
            strings: The trace's string table.
            index: The string index of each row, shape (n,); -1 for none.
            unknown: The text of rows that have none or an empty one.
        """
        used, inverse = unique_inverse(index)
        code_of: dict[str, int] = {}
        codes = [
            code_of.setdefault((strings[string] if string >= 0 else "") or unknown, len(code_of))
            for string in used.tolist()
        ]
        self.texts = tuple(code_of)
        """The distinct texts."""
        self.code: Int64 = np.array(codes, dtype=np.int64)[inverse]
        """The index into `texts` of each row; shape (n,)."""

    def is_any_of(self, *texts: str) -> NDArray[np.bool_]:
        """Which rows have one of the given texts; shape (n,)."""
        return np.array([text in texts for text in self.texts], dtype=bool)[self.code]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.code)

    def __iter__(self) -> Iterator[str]:
        """The text of each row."""
        return map(self.texts.__getitem__, self.code.tolist())

    @overload
    def __getitem__(self, row: int) -> str: ...

    @overload
    def __getitem__(self, row: slice) -> tuple[str, ...]: ...

    def __getitem__(self, row: Any) -> Any:
        """The text of a row, or the texts of a slice."""
        if isinstance(row, slice):
            return tuple(map(self.texts.__getitem__, self.code[row].tolist()))
        return self.texts[self.code[row]]

    def __eq__(self, other: object) -> bool:
        """Whether another sequence has the same text in every row."""
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]
