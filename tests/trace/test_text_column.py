"""Columns of texts with few distinct values."""

from __future__ import annotations

import numpy as np
import pytest

from tb_perfadvisor.trace.columns import TextColumn

STRINGS = ("all-reduce", "", "send", "all-gather")


def column(*index: int, unknown: str = "") -> TextColumn:
    return TextColumn(STRINGS, np.array(index, dtype=np.int32), unknown)


def test_each_row_has_its_text() -> None:
    texts = column(2, 0, -1, 2)
    assert list(texts) == ["send", "all-reduce", "", "send"]
    assert (len(texts), texts[0], texts[-1]) == (4, "send", "send")
    assert texts[1:3] == ("all-reduce", "")
    assert texts == ("send", "all-reduce", "", "send")
    assert texts != column(2, 0, -1, 0)


def test_missing_and_empty_texts_are_both_unknown() -> None:
    texts = column(-1, 1, 3, unknown="unknown")
    assert sorted(texts.texts) == ["all-gather", "unknown"]
    assert texts.code[0] == texts.code[1] != texts.code[2]


@pytest.mark.parametrize(
    ("wanted", "rows"),
    [(("send",), [0, 3]), (("send", "all-reduce"), [0, 1, 3]), (("recv",), []), ((), [])],
)
def test_selects_rows_by_text(wanted: tuple[str, ...], rows: list[int]) -> None:
    assert np.flatnonzero(column(2, 0, -1, 2).is_any_of(*wanted)).tolist() == rows


def test_column_without_rows() -> None:
    assert list(column()) == []
    assert column().is_any_of("send").tolist() == []
