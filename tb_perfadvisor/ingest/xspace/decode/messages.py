"""The messages of XLA programs (`HloProto`), and of an XSpace, for writing; `wire` reads them.

Field numbers are those of `xla/service/hlo.proto`, `xla/xla_data.proto` and
`tsl/profiler/protobuf/xplane.proto`; of programs only used fields are declared.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

from google.protobuf.message import DecodeError

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
        "StackFrame": (("file_location_id", 1, INT64, False),),
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
