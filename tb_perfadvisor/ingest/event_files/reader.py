"""The scalars of event files: all of them, and nothing else.

A value is a scalar if it is a number (PyTorch, TensorFlow 1) or a tensor with one element
(TensorFlow 2, JAX). TensorBoard's own loader keeps a random thousand points of a tag, which hides
pauses, so it is not used.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

import numpy as np

from tb_perfadvisor.ingest.event_files.records import read_records
from tb_perfadvisor.ingest.files.budget import Budget
from tb_perfadvisor.training.scalars import ScalarSeries

_NS_PER_S: Final = 1e9
_NUMPY_TYPES: Final = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}
"""Types of `tensorflow/core/framework/types.proto` as stored in `tensor_content`."""
_LATEST_UNIX_S: Final = 2.0**33
"""The year 2242: nanoseconds of later times do not fit into 64 bits."""


_ITEMS_OF_TAG: Final = 8
"""The three columns of a tag."""


class ScalarReader:
    """Reads the scalars of one file, and later those that were appended meanwhile."""

    def __init__(self, end: int = 0, points: Mapping[str, ScalarSeries] | None = None) -> None:
        """Begin at the start of the file, or where an earlier reading of some points ended."""
        self.end = end
        """Position behind the last record that was read."""
        # Arrays: lists of Python's numbers would take four times the memory.
        self._points = {
            tag: (
                array("q", series.step.tobytes()),
                array("q", series.unix_ns.tobytes()),
                array("d", series.value.tobytes()),
            )
            for tag, series in (points or {}).items()
        }

    def read(self, stream: BinaryIO, where: str = "") -> None:
        """Read from where the last call ended up to the last whole record."""
        # Imported on use, because building the messages takes as long as reading a small profile.
        from tb_perfadvisor.ingest.event_files.schema import decode_event

        budget = Budget(where, self.end)
        for block in read_records(stream, self.end):
            budget.read_bytes = block.end
            for record in block.records:
                event = decode_event(record)
                if event is not None:
                    self._add(event, budget)
            self.end = block.end

    def series(self) -> dict[str, ScalarSeries]:
        """The series of each tag, in the order of the file."""
        return {
            tag: ScalarSeries(
                np.array(steps, np.int64),
                np.array(unix_ns, np.int64),
                np.array(values, np.float64),
            )
            for tag, (steps, unix_ns, values) in self._points.items()
        }

    def _add(self, event: Any, budget: Budget) -> None:
        if not 0 < event.wall_time < _LATEST_UNIX_S:
            return
        unix_ns = round(event.wall_time * _NS_PER_S)
        for value in event.summary.value:
            number = _number(value)
            if number is not None:
                tag = value.tag.decode("utf-8", "replace")
                points = self._points.get(tag)
                if points is None:
                    budget.keep(_ITEMS_OF_TAG, len(tag))
                    points = self._points[tag] = (array("q"), array("q"), array("d"))
                points[0].append(event.step)
                points[1].append(unix_ns)
                points[2].append(number)
                budget.keep(1)


def _number(value: Any) -> float | None:
    """A logged number; None for images, histograms and text."""
    if value.simple_value:
        return float(value.simple_value[0])
    tensor = value.tensor
    for numbers in (tensor.float_val, tensor.double_val, tensor.int_val, tensor.int64_val):
        if numbers:
            return float(numbers[0]) if len(numbers) == 1 else None
    dtype = np.dtype(_NUMPY_TYPES.get(tensor.dtype, "V0"))
    if dtype.itemsize and len(tensor.tensor_content) == dtype.itemsize:
        return float(np.frombuffer(tensor.tensor_content, dtype)[0])
    return None
