"""A column of texts of which few differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.trace.groups import ranked
from tb_perfadvisor.trace.tables import Int32, Int64


class Labels(Sequence[str]):
    """The text of every row: a sequence of as many texts, and columns for what asks for all."""

    def __init__(self, strings: Sequence[str], index: Int32, unknown: str = "") -> None:
        """Look the texts up.

        Args:
            strings: The trace's.
            index: Of each row, shape (n,); -1 for none.
            unknown: Stands for none, and for the empty text.
        """
        used, rank = ranked(index)
        place_of: dict[str, int] = {}
        places = [
            place_of.setdefault((strings[one] if one >= 0 else "") or unknown, len(place_of))
            for one in used.tolist()
        ]
        self.texts = tuple(place_of)
        """Each once."""
        self.place: Int64 = np.array(places, dtype=np.int64)[rank]
        """Of each row among the texts; shape (n,)."""

    def among(self, *texts: str) -> NDArray[np.bool_]:
        """Which rows have one of some texts; shape (n,)."""
        return np.array([one in texts for one in self.texts], dtype=bool)[self.place]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.place)

    def __iter__(self) -> Iterator[str]:
        """The text of each row."""
        return map(self.texts.__getitem__, self.place.tolist())

    @overload
    def __getitem__(self, row: int) -> str: ...

    @overload
    def __getitem__(self, row: slice) -> tuple[str, ...]: ...

    def __getitem__(self, row: Any) -> Any:
        """The text of a row, or those of some."""
        if isinstance(row, slice):
            return tuple(map(self.texts.__getitem__, self.place[row].tolist()))
        return self.texts[self.place[row]]

    def __eq__(self, other: object) -> bool:
        """Whether another sequence has the same texts, row by row."""
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]
