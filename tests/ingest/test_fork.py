from __future__ import annotations

import pickle
from typing import Any

import numpy as np

from tb_perfadvisor.ingest.fork import _pickled
from tb_perfadvisor.trace.tables import is_repeated, repeated


def handed_over(made: Any) -> tuple[Any, int]:
    """What arrives, and how many bytes of columns are told."""
    buffers: list[Any] = []
    content = _pickled(made, buffers)
    return pickle.loads(content, buffers=buffers), sum(len(one.raw()) for one in buffers)


def test_columns_are_handed_over_beside_the_message() -> None:
    column = np.arange(1000)
    found, size_bytes = handed_over({"column": column})
    assert found["column"].tolist() == column.tolist()
    assert size_bytes == column.nbytes


def test_a_column_of_one_value_is_told_as_that_value() -> None:
    for column in (repeated(-1, 1000, np.int32), repeated(np.nan, 1000, np.float32)):
        found, size_bytes = handed_over(column)
        np.testing.assert_array_equal(found, column)
        assert found.dtype == column.dtype
        assert is_repeated(found)
        assert size_bytes == 0
