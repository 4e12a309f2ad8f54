"""Columns of texts."""

from __future__ import annotations

import numpy as np
import pytest

from tb_perfadvisor.trace.labels import Labels

STRINGS = ("all-reduce", "", "send", "all-gather")


def labels(*index: int, unknown: str = "") -> Labels:
    return Labels(STRINGS, np.array(index, dtype=np.int32), unknown)


def test_each_row_has_its_text() -> None:
    found = labels(2, 0, -1, 2)
    assert list(found) == ["send", "all-reduce", "", "send"]
    assert (len(found), found[0], found[-1]) == (4, "send", "send")
    assert found[1:3] == ("all-reduce", "")
    assert found == ("send", "all-reduce", "", "send")
    assert found != labels(2, 0, -1, 0)


def test_none_and_the_empty_text_are_one() -> None:
    found = labels(-1, 1, 3, unknown="unknown")
    assert sorted(found.texts) == ["all-gather", "unknown"]
    assert found.place[0] == found.place[1] != found.place[2]


@pytest.mark.parametrize(
    ("asked", "rows"),
    [(("send",), [0, 3]), (("send", "all-reduce"), [0, 1, 3]), (("recv",), []), ((), [])],
)
def test_rows_are_found_by_their_texts(asked: tuple[str, ...], rows: list[int]) -> None:
    assert np.flatnonzero(labels(2, 0, -1, 2).among(*asked)).tolist() == rows


def test_there_may_be_no_rows() -> None:
    assert list(labels()) == []
    assert labels().among("send").tolist() == []
