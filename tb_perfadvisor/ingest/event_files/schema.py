"""The protobuf messages of event files, built at run time in a separate descriptor pool.

Field numbers are those of `tensorflow/core/util/event.proto` and
`tensorflow/core/framework/{summary,tensor}.proto`; unused fields are not declared, so parsing
skips them. `simple_value` is declared as repeated: it has one element or none, which tells a
logged 0 from no number.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from tb_perfadvisor.ingest.protobuf_messages import INT64, TEXT, MessageTable, build_messages

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_DOUBLE: Final = _FIELD.TYPE_DOUBLE
_FLOAT: Final = _FIELD.TYPE_FLOAT
_BYTES: Final = _FIELD.TYPE_BYTES

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
