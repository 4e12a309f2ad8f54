"""The messages of XLA programs (`HloProto`).

Field numbers are those of `xla/service/hlo.proto` and `xla/xla_data.proto`; only used fields are
declared.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.message import DecodeError

from tb_perfadvisor.ingest.xplane.decode.schema import INT64, TEXT, build_messages

HloProto: Final = build_messages(
    "tb_perfadvisor.hlo",
    {
        "Layout": (("minor_to_major", 1, INT64, True),),
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
        ),
        "Instruction": (
            ("name", 1, TEXT, False),
            ("opcode", 2, TEXT, False),
            ("shape", 3, "Shape", False),
            ("metadata", 7, "OpMetadata", False),
            ("fusion_kind", 11, TEXT, False),
            ("custom_call_target", 28, TEXT, False),
            ("id", 35, INT64, False),
            ("operand_ids", 36, INT64, True),
            ("called_computation_ids", 38, INT64, True),
        ),
        "Computation": (
            ("instructions", 2, "Instruction", True),
            ("id", 5, INT64, False),
        ),
        "Module": (("computations", 3, "Computation", True),),
        "Proto": (("hlo_module", 1, "Module", False),),
    },
    is_raw=True,
)["Proto"]


def decode_program(data: bytes) -> Any:
    """Decode an HloProto; an empty one if it is damaged."""
    message = HloProto()
    try:
        message.ParseFromString(data)
    except DecodeError:
        return HloProto()
    return message
