"""The messages of XLA programs (`HloProto`), and of an XSpace, for writing; `wire` reads them.

Field numbers are those of `xla/service/hlo.proto`, `xla/xla_data.proto` and
`tsl/profiler/protobuf/xplane.proto`; of programs only used fields are declared.
"""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from types import SimpleNamespace
from typing import Any, BinaryIO, Final, TypeVar

import numpy as np
from google.protobuf.message import DecodeError
from msgspec import Struct

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.files.budget import Budget
from tb_perfadvisor.ingest.protobuf_messages import (
    BYTES,
    DOUBLE,
    INT64,
    TEXT,
    UINT64,
    MessageTable,
    build_messages,
    expect_message,
)
from tb_perfadvisor.ingest.xspace.decode import wire

HloProto: Final = build_messages(
    "tb_perfadvisor.hlo",
    {
        "Tile": (("dimensions", 1, INT64, True),),
        "Layout": (
            ("minor_to_major", 1, INT64, True),
            ("tiles", 6, "Tile", True),
            ("memory_space", 8, INT64, False),
        ),
        "Shape": (
            ("element_type", 2, INT64, False),
            ("dimensions", 3, INT64, True),
            ("tuple_shapes", 4, "Shape", True),
            ("layout", 5, "Layout", False),
        ),
        "OpMetadata": (
            ("op_name", 2, TEXT, False),
            ("source_file", 3, TEXT, False),
            ("source_line", 4, INT64, False),
            ("stack_frame_id", 15, INT64, False),
        ),
        "FileLocation": (("file_name_id", 1, INT64, False), ("line", 3, INT64, False)),
        "StackFrame": (
            ("file_location_id", 1, INT64, False),
            ("parent_frame_id", 2, INT64, False),
        ),
        "StackFrameIndex": (
            ("file_names", 1, TEXT, True),
            ("file_locations", 3, "FileLocation", True),
            ("stack_frames", 4, "StackFrame", True),
        ),
        "WindowDimension": (
            ("size", 1, INT64, False),
            ("stride", 2, INT64, False),
            ("base_dilation", 6, INT64, False),
        ),
        "Window": (("dimensions", 1, "WindowDimension", True),),
        "ConvolutionDimensions": (
            ("kernel_input_feature", 3, INT64, False),
            ("kernel_output_feature", 4, INT64, False),
            ("kernel_spatial", 6, INT64, True),
            ("input_batch", 7, INT64, False),
            ("input_feature", 8, INT64, False),
            ("output_batch", 9, INT64, False),
            ("output_feature", 10, INT64, False),
            ("input_spatial", 11, INT64, True),
            ("output_spatial", 12, INT64, True),
        ),
        "DotDimensions": (
            ("lhs_contracting", 1, INT64, True),
            ("rhs_contracting", 2, INT64, True),
            ("lhs_batch", 3, INT64, True),
            ("rhs_batch", 4, INT64, True),
        ),
        "Literal": (
            ("preds", 2, BYTES, False),
            ("s32s", 4, INT64, True),
            ("f32s", 8, BYTES, False),
            ("bf16s", 13, BYTES, False),
        ),
        "Sharding": (
            ("type", 1, INT64, False),
            ("tile_assignment_dimensions", 3, INT64, True),
            ("replicate_on_last_tile_dim", 6, INT64, False),
            ("last_tile_dims", 8, INT64, True),
        ),
        "ReplicaGroup": (("replica_ids", 1, INT64, True),),
        "IotaGroups": (("num_devices_per_group", 2, INT64, False),),
        "DeviceGroups": (
            ("replica_groups", 1, "ReplicaGroup", True),
            ("iota_replica_group_list", 2, "IotaGroups", False),
        ),
        "MeshAxis": (("size", 2, INT64, False),),
        "Mesh": (("axes", 1, "MeshAxis", True),),
        "MeshAxisChosen": (("mesh_axis_index", 1, INT64, False),),
        "MeshGroups": (("mesh", 1, "Mesh", False), ("axes", 2, "MeshAxisChosen", True)),
        "AliasEntry": (("parameter_number", 2, INT64, False),),
        "Aliases": (("entries", 1, "AliasEntry", True),),
        "SourceTarget": (("source", 1, INT64, False), ("target", 2, INT64, False)),
        "PrecisionConfig": (("operand_precision", 1, INT64, True),),
        "Instruction": (
            ("name", 1, TEXT, False),
            ("opcode", 2, TEXT, False),
            ("shape", 3, "Shape", False),
            ("metadata", 7, "OpMetadata", False),
            ("literal", 8, "Literal", False),
            ("parameter_number", 9, INT64, False),
            ("fusion_kind", 11, TEXT, False),
            ("tuple_index", 13, INT64, False),
            ("dimensions", 14, INT64, True),
            ("window", 15, "Window", False),
            ("convolution_dimensions", 16, "ConvolutionDimensions", False),
            ("custom_call_target", 28, TEXT, False),
            ("dot_dimensions", 30, "DotDimensions", False),
            ("id", 35, INT64, False),
            ("operand_ids", 36, INT64, True),
            ("called_computation_ids", 38, INT64, True),
            ("sharding", 40, "Sharding", False),
            ("backend_config", 43, BYTES, False),
            ("replica_groups", 49, "ReplicaGroup", True),
            ("feature_group_count", 50, INT64, False),
            ("precision_config", 51, "PrecisionConfig", False),
            ("source_target_pairs", 52, "SourceTarget", True),
            ("batch_group_count", 58, INT64, False),
            ("comparison_direction", 63, TEXT, False),
            ("collective_device_list", 87, "DeviceGroups", False),
            ("mesh_groups", 93, "MeshGroups", False),
        ),
        "Computation": (
            ("instructions", 2, "Instruction", True),
            ("id", 5, INT64, False),
            ("root_id", 6, INT64, False),
        ),
        "DeviceAssignment": (
            ("replica_count", 1, INT64, False),
            ("computation_count", 2, INT64, False),
        ),
        "Module": (
            ("computations", 3, "Computation", True),
            ("entry_computation_id", 6, INT64, False),
            ("input_output_alias", 8, "Aliases", False),
            ("spmd_parameters_shardings", 14, "Sharding", True),
            ("device_assignment", 15, "DeviceAssignment", False),
            ("stack_frame_index", 17, "StackFrameIndex", False),
        ),
        "BufferAllocation": (
            ("size", 2, INT64, False),
            ("is_thread_local", 3, INT64, False),
            ("is_argument", 5, INT64, False),
            ("argument_number", 6, INT64, False),
            ("maybe_live_out", 7, INT64, False),
            ("color", 8, INT64, False),
            ("is_constant", 12, INT64, False),
        ),
        "BufferAssignment": (("buffer_allocations", 3, "BufferAllocation", True),),
        "Proto": (
            ("hlo_module", 1, "Module", False),
            ("buffer_assignment", 3, "BufferAssignment", False),
        ),
    },
    is_raw=True,
)["Proto"]


_ITEMS_OF_INSTRUCTION: Final = 10
"""Of which a decoded message takes half."""


def decode_program(data: bytes, budget: Budget) -> Any:
    """Decode an HloProto; an empty one if it is damaged."""
    expect_message(data, HloProto.DESCRIPTOR, budget)
    message = HloProto()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return HloProto()
    computations = message.hlo_module.computations
    count = sum(len(computation.instructions) for computation in computations)
    budget.keep(len(computations) + _ITEMS_OF_INSTRUCTION * count)
    return message


_MESSAGES: Final[MessageTable] = {
    "XStat": (
        ("metadata_id", 1, INT64, False),
        ("double_value", 2, DOUBLE, False),
        ("uint64_value", 3, UINT64, False),
        ("int64_value", 4, INT64, False),
        ("str_value", 5, TEXT, False),
        ("bytes_value", 6, BYTES, False),
        ("ref_value", 7, UINT64, False),
    ),
    "XEvent": (
        ("metadata_id", 1, INT64, False),
        ("offset_ps", 2, INT64, False),
        ("duration_ps", 3, INT64, False),
        ("stats", 4, "XStat", True),
        ("num_occurrences", 5, INT64, False),
    ),
    "XEventMetadata": (
        ("id", 1, INT64, False),
        ("name", 2, TEXT, False),
        ("metadata", 3, BYTES, False),
        ("display_name", 4, TEXT, False),
        ("stats", 5, "XStat", True),
        ("child_id", 6, INT64, True),
    ),
    "XStatMetadata": (
        ("id", 1, INT64, False),
        ("name", 2, TEXT, False),
        ("description", 3, TEXT, False),
    ),
    "XLine": (
        ("id", 1, INT64, False),
        ("name", 2, TEXT, False),
        ("timestamp_ns", 3, INT64, False),
        ("events", 4, "XEvent", True),
        ("duration_ps", 9, INT64, False),
        ("display_id", 10, INT64, False),
        ("display_name", 11, TEXT, False),
    ),
    "XPlane": (
        ("id", 1, INT64, False),
        ("name", 2, TEXT, False),
        ("lines", 3, "XLine", True),
        ("event_metadata", 4, {"map": "XEventMetadata"}, True),
        ("stat_metadata", 5, {"map": "XStatMetadata"}, True),
        ("stats", 6, "XStat", True),
    ),
    "XSpace": (
        ("planes", 1, "XPlane", True),
        ("errors", 2, TEXT, True),
        ("warnings", 3, TEXT, True),
        ("hostnames", 4, TEXT, True),
    ),
}
# A `oneof value` in the published format.
_STAT_VALUES: Final = {name for name, *_ in _MESSAGES["XStat"]} - {"metadata_id"}
WRITING: Final = SimpleNamespace(
    **build_messages("tb_perfadvisor.xplane", _MESSAGES, is_raw=False, one_of=_STAT_VALUES)
)


T = TypeVar("T")

_MAX_HEADER_BYTES: Final = 2 * wire.MAX_VARINT_BYTES
_WINDOW_BYTES: Final = 8 << 10
_FIELD_NUMBER_LIMIT: Final = 2**29
_FIXED_BYTES: Final = {wire.FIXED64: 8, wire.FIXED32: 4}


class Field(Struct, frozen=True):
    """A field of a message, without its payload."""

    at: int
    """Its position in the file."""
    number: int
    wire_type: int
    value: int
    """The signed value of a varint; 0 for other types."""
    begin: int
    """The start of its payload."""
    end: int


class FileReader:
    """Reads parts of a stream."""

    def __init__(
        self, stream: BinaryIO, *, where: str, executor: Executor | None = None, blocks: int = 1
    ) -> None:
        """Determine the size of the stream; a stream that is not seekable is read entirely.

        Threads of the executor work on some blocks, while this one reads further ones.
        """
        # Local files and fsspec's files have `readinto`; other streams may not.
        can_seek = stream.seekable() and hasattr(stream, "readinto")
        self._stream: Any = stream if can_seek else io.BytesIO(stream.read())
        self.where = where
        self.size: int = self._stream.seek(0, os.SEEK_END)
        self.budget = Budget(where, self.size)
        """What the reader may keep of the file."""
        self._blocks: deque[tuple[bytearray, list[Future[Any]]]] = deque()
        self._blocks.extend((bytearray(), []) for _ in range(blocks))
        self._executor = executor
        self._window_at = 0
        self._window = b""

    def read(self, begin: int, end: int) -> bytes:
        """The bytes from `begin` to `end`, both inside the file."""
        if end - begin > _WINDOW_BYTES:
            return self._read(begin, end)
        # Fields follow one another: read some more for the next ones.
        at = begin - self._window_at
        if at < 0 or at + end - begin > len(self._window):
            self._window = self._read(begin, min(begin + _WINDOW_BYTES, self.size))
            self._window_at, at = begin, 0
        return self._window[at : at + end - begin]

    def _read(self, begin: int, end: int) -> bytes:
        self._stream.seek(begin)
        data: bytes = self._stream.read(end - begin)
        self._check(len(data), end - begin)
        return data

    def _check(self, count: int, wanted: int) -> None:
        if count < wanted:
            raise UnreadableProfileError(
                "the file became shorter while it was read.",
                where=self.where,
                hint="Wait until the profiler has finished writing, then try again.",
            )

    def block(self, begin: int, end: int) -> wire.Bytes:
        """The bytes as a padded buffer, which a later call overwrites.

        Blocks share buffers, because new memory pages cost as much as decoding a block. A buffer
        that threads work on is waited for.
        """
        size = end - begin
        block, work = self._blocks.popleft()
        wait(work)
        if len(block) < size + len(wire.PADDING):
            block = bytearray(size + len(wire.PADDING))
        self._blocks.append((block, []))
        view = memoryview(block)
        self._stream.seek(begin)
        self._check(self._stream.readinto(view[:size]), size)
        view[size : size + len(wire.PADDING)] = wire.PADDING
        return np.frombuffer(block, dtype=np.uint8, count=size + len(wire.PADDING))

    def work(self, function: Callable[[], T]) -> Future[T]:
        """Call a function on the latest block, in a thread if there are any."""
        future: Future[T] = Future()
        if self._executor is None:
            future.set_result(function())
        else:
            future = self._executor.submit(function)
            self._blocks[-1][1].append(future)
        return future

    def text(self, field: Field) -> str:
        """The payload of a field as text."""
        return self.read(field.begin, field.end).decode("utf-8", "replace")

    def field(self, at: int, end: int) -> Field | None:
        """The field at a position of a message that ends at `end`; None at the end and if damaged.

        Groups count as damage, because no profiler writes them.
        """
        head = self.read(at, min(at + _MAX_HEADER_BYTES, end))
        tag, payload = wire.varint(head, 0)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number < _FIELD_NUMBER_LIMIT:
            return None
        value, after = 0, payload + _FIXED_BYTES.get(wire_type, 0)
        if wire_type in (wire.VARINT, wire.DELIMITED):
            value, after = wire.varint(head, payload)
        if wire_type == wire.DELIMITED:
            value, payload, after = 0, after, after + value
        is_known = wire_type in (wire.VARINT, wire.DELIMITED) or wire_type in _FIXED_BYTES
        if not is_known or payload < 0 or after < 0 or at + after > end:
            return None
        signed = (value + 2**63) % 2**64 - 2**63
        return Field(at, number, wire_type, signed, at + payload, at + after)
