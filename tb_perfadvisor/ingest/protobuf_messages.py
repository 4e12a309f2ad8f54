"""Builds protobuf messages at run time in a separate descriptor pool.

Generated code would tie the package to a range of protobuf versions. The default pool would
conflict with TensorFlow, which registers the same messages.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
INT64: Final = _Field.TYPE_INT64
UINT64: Final = _Field.TYPE_UINT64
DOUBLE: Final = _Field.TYPE_DOUBLE
TEXT: Final = _Field.TYPE_STRING
BYTES: Final = _Field.TYPE_BYTES

MessageTable: TypeAlias = dict[str, tuple[tuple[str, int, Any, bool], ...]]
"""Message -> (name, number, type or message, is repeated). A dict is the value type of a map."""


def build_messages(
    package: str, messages: MessageTable, *, is_raw: bool, one_of: Collection[str] = ()
) -> dict[str, Any]:
    """Build message classes in a separate pool, by name.

    Args:
        package: Any package name.
        messages: (name, number, type or message, is repeated) of each field, by message.
        is_raw: Keep text as bytes, so that a broken character does not lose a message.
        one_of: Names of fields of which a message has one, which tells 0 from a missing value.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package.replace('.', '/')}.proto", package=package, syntax="proto3"
    )
    for message_name, fields in messages.items():
        message = file.message_type.add(name=message_name)
        if any(name in one_of for name, *_ in fields):
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
                field.type = BYTES
            else:
                field.type = kind
            if name in one_of:
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
