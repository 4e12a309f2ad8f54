"""Builds protobuf messages at run time in a separate descriptor pool, such as those of an XSpace.

Generated code would tie the package to a range of protobuf versions. The default pool would
conflict with TensorFlow, which registers the same messages. The field numbers of an XSpace are
those of `tsl/profiler/protobuf/xplane.proto`. These classes only write profiles; `wire` reads
them.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from msgspec import Struct

_Field = descriptor_pb2.FieldDescriptorProto
INT64: Final = _Field.TYPE_INT64
_UINT64: Final = _Field.TYPE_UINT64
_DOUBLE: Final = _Field.TYPE_DOUBLE
TEXT: Final = _Field.TYPE_STRING
_BYTES: Final = _Field.TYPE_BYTES

MessageTable: TypeAlias = dict[str, tuple[tuple[str, int, Any, bool], ...]]

# Message -> (name, number, type or message, is repeated). A dict is the value type of a map.
_MESSAGES: Final[MessageTable] = {
    "XStat": (
        ("metadata_id", 1, INT64, False),
        ("double_value", 2, _DOUBLE, False),
        ("uint64_value", 3, _UINT64, False),
        ("int64_value", 4, INT64, False),
        ("str_value", 5, TEXT, False),
        ("bytes_value", 6, _BYTES, False),
        ("ref_value", 7, _UINT64, False),
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
        ("metadata", 3, _BYTES, False),
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
# A `oneof value` in the published format, which distinguishes 0 from a missing value.
_STAT_VALUES: Final = {
    "double_value",
    "uint64_value",
    "int64_value",
    "str_value",
    "bytes_value",
    "ref_value",
}


class Messages(Struct, frozen=True):
    """The message classes of an XSpace."""

    XSpace: Any
    XPlane: Any
    XLine: Any
    XEvent: Any
    XStat: Any
    XEventMetadata: Any
    XStatMetadata: Any


def build_messages(package: str, messages: MessageTable, *, is_raw: bool) -> dict[str, Any]:
    """Build message classes in a separate pool, by name.

    Args:
        package: Any package name.
        messages: (name, number, type or message, is repeated) of each field, by message.
        is_raw: Keep text as bytes, so that a broken character does not lose a message.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package.replace('.', '/')}.proto", package=package, syntax="proto3"
    )
    for message_name, fields in messages.items():
        message = file.message_type.add(name=message_name)
        if message_name == "XStat":
            message.oneof_decl.add(name="value")
        for name, number, kind, is_repeated in fields:
            field = message.field.add(
                name=name,
                number=number,
                label=_Field.LABEL_REPEATED if is_repeated else _Field.LABEL_OPTIONAL,
            )
            if isinstance(kind, dict):
                entry = "".join(part.capitalize() for part in name.split("_")) + "Entry"
                _add_map_entry(message, entry, f".{package}.{kind['map']}")
                field.type = _Field.TYPE_MESSAGE
                field.type_name = f".{package}.{message_name}.{entry}"
            elif isinstance(kind, str):
                field.type = _Field.TYPE_MESSAGE
                field.type_name = f".{package}.{kind}"
            elif is_raw and kind == TEXT:
                field.type = _BYTES
            else:
                field.type = kind
            if name in _STAT_VALUES:
                field.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: _message_class(pool, pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }


def _add_map_entry(message: Any, entry_name: str, value_type: str) -> None:
    entry = message.nested_type.add(name=entry_name)
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=INT64, label=_Field.LABEL_OPTIONAL)
    entry.field.add(
        name="value",
        number=2,
        type=_Field.TYPE_MESSAGE,
        type_name=value_type,
        label=_Field.LABEL_OPTIONAL,
    )


def _message_class(pool: Any, descriptor: Any) -> Any:
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    # protobuf before 4.22
    factory: Any = message_factory.MessageFactory(pool)
    return factory.GetPrototype(descriptor)


WRITING: Final = Messages(**build_messages("tb_perfadvisor.xplane", _MESSAGES, is_raw=False))
