"""The scalars of event files: all of them, and nothing else.

A value is a scalar if it is a number (PyTorch, TensorFlow 1) or a tensor with one element
(TensorFlow 2, JAX). TensorBoard's own loader keeps a random thousand points of a tag, which hides
pauses, so it is not used.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Final

import numpy as np
from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError
from msgspec import Struct

from tb_perfadvisor.ingest.files.budget import Budget
from tb_perfadvisor.ingest.protobuf_messages import INT64, TEXT, MessageTable, build_messages
from tb_perfadvisor.training.metrics import ScalarSeries

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
        from tb_perfadvisor.ingest.event_files.reader import decode_event

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


_LENGTH = struct.Struct("<Q")
_BEFORE_DATA = 12
_AFTER_DATA = 4
_BLOCK_BYTES = 8 << 20
MAX_RECORD_BYTES = 64 << 10
"""An event with scalars takes some hundred bytes. Larger ones are images, audio or graphs."""


class RecordBlock(Struct, frozen=True):
    """Records that follow each other in a file."""

    records: tuple[bytes, ...]
    """Without those above `MAX_RECORD_BYTES`."""
    end: int
    """Position in the file behind them."""


def read_records(stream: BinaryIO, begin: int = 0) -> Iterator[RecordBlock]:
    """The records of a file from a position on, up to the last whole one.

    A record is its length (8 bytes), a checksum of the length (4 bytes), the data, and a checksum
    of the data (4 bytes). Source: `tensorflow/core/lib/io/record_writer.h`. The checksums are not
    verified: data that is not a message is left out anyway.

    The stream is seekable, and may grow meanwhile. `begin` is 0, or the end of the last block of an
    earlier reading.
    """
    size = stream.seek(0, os.SEEK_END)
    while begin + _BEFORE_DATA + _AFTER_DATA <= size:
        stream.seek(begin)
        data = stream.read(_BLOCK_BYTES)
        records, read = _split(data)
        if not read:  # a record that is larger than a block, a damaged length, or an unfinished end
            read = _record_bytes(data, 0)
            if len(data) < _BLOCK_BYTES or begin + read > size:
                return
        begin += read
        yield RecordBlock(records, begin)


def _split(data: bytes) -> tuple[tuple[bytes, ...], int]:
    """The whole records at the start of some bytes, and how many bytes these are."""
    records: list[bytes] = []
    at = 0
    while at + _BEFORE_DATA <= len(data):
        after = at + _record_bytes(data, at)
        if after > len(data):
            break
        if after - at <= MAX_RECORD_BYTES:
            records.append(data[at + _BEFORE_DATA : after - _AFTER_DATA])
        at = after
    return tuple(records), at


def _record_bytes(data: bytes, at: int) -> int:
    """The size of the record at a position, with its frame."""
    return int(_LENGTH.unpack_from(data, at)[0]) + _BEFORE_DATA + _AFTER_DATA


_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_DOUBLE: Final = _FIELD.TYPE_DOUBLE
_FLOAT: Final = _FIELD.TYPE_FLOAT
_BYTES: Final = _FIELD.TYPE_BYTES

# Field numbers are those of `tensorflow/core/util/event.proto` and
# `tensorflow/core/framework/{summary,tensor}.proto`. Undeclared fields are skipped. `simple_value`
# is declared as repeated: it has one element or none, which tells a logged 0 from no number.
_MESSAGES: Final[MessageTable] = {
    "Tensor": (
        ("dtype", 1, INT64, False),
        ("tensor_content", 4, _BYTES, False),
        ("float_val", 5, _FLOAT, True),
        ("double_val", 6, _DOUBLE, True),
        ("int_val", 7, INT64, True),
        ("int64_val", 10, INT64, True),
    ),
    "Value": (
        ("tag", 1, TEXT, False),
        ("simple_value", 2, _FLOAT, True),
        ("tensor", 8, "Tensor", False),
    ),
    "Summary": (("value", 1, "Value", True),),
    "Event": (
        ("wall_time", 1, _DOUBLE, False),
        ("step", 2, INT64, False),
        ("summary", 5, "Summary", False),
    ),
}
Event: Final[Any] = build_messages("tb_perfadvisor.event_files", _MESSAGES, is_raw=True)["Event"]


def decode_event(record: bytes) -> Any:
    """Decode an event; None if it is damaged."""
    try:
        return Event.FromString(record)
    except DecodeError:
        return None
