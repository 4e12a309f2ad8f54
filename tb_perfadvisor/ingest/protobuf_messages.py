"""Builds protobuf messages at run time in a separate descriptor pool.

Generated code would tie the package to a range of protobuf versions. The default pool would
conflict with TensorFlow, which registers the same messages.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tb_perfadvisor.ingest.files.budget import Budget

_Field = descriptor_pb2.FieldDescriptorProto
INT64: Final = _Field.TYPE_INT64
UINT64: Final = _Field.TYPE_UINT64
DOUBLE: Final = _Field.TYPE_DOUBLE
TEXT: Final = _Field.TYPE_STRING
BYTES: Final = _Field.TYPE_BYTES

_FIELDS_OF_ITEM: Final = 6
"""A decoded message takes about 12 bytes for each field of its type, whether it is set or not."""
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES: Final = 10

MessageTable: TypeAlias = dict[str, tuple[tuple[str, int, Any, bool], ...]]
"""Message -> (name, number, type or message, is repeated). A dict is the value type of a map."""


def build_messages(
    package: str, messages: MessageTable, *, is_raw: bool, one_of: Collection[str] = ()
) -> dict[str, Any]:
    """Build message classes in a separate pool, by name.

    `package` may be any name. `messages` has (name, number, type or message, is repeated) of each
    field, by message. `is_raw` keeps text as bytes, so that a broken character does not lose a
    message. `one_of` has names of fields of which a message has one, which tells 0 from a missing
    value.
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


def expect_message(data: bytes, descriptor: Any, budget: Budget) -> None:
    """Check that there is room for a message and those in it, before it is decoded.

    Two bytes may hold a message that takes hundreds when it is decoded.

    Decoding says whether the data is damaged.
    """
    types = _types_in(descriptor)
    items_of = {each.full_name: 1 + len(each.fields) // _FIELDS_OF_ITEM for each in types}
    if budget.has_room(len(data) // 2 * max(items_of.values())):
        return  # nearly all are as small
    inner_types = {
        each.full_name: {
            field.number: field.message_type.full_name
            for field in each.fields
            if field.message_type is not None
        }
        for each in types
    }
    items, unfinished = 0, [(0, len(data), descriptor.full_name)]
    while unfinished:
        at, end, name = unfinished.pop()
        inner = inner_types[name]
        while at < end:
            tag, at = _varint(data, at)
            kind = tag & 7
            size = 8 if kind == _FIXED64 else 4
            if kind in (_VARINT, _DELIMITED):
                size, at = _varint(data, at)
            elif kind != _FIXED64 and kind != _FIXED32:
                break
            if kind == _DELIMITED and (inner_name := inner.get(tag >> 3)):
                items += items_of[inner_name]
                budget.expect(items)
                unfinished.append((at + size, end, name))
                end, inner, name = min(at + size, end), inner_types[inner_name], inner_name
                continue
            at += 0 if kind == _VARINT else size


def _types_in(descriptor: Any) -> Collection[Any]:
    """The types of a message and of those in it."""
    found, waiting = {descriptor.full_name: descriptor}, [descriptor]
    while waiting:
        for field in waiting.pop().fields:
            inner = field.message_type
            if inner is not None and inner.full_name not in found:
                found[inner.full_name] = inner
                waiting.append(inner)
    return found.values()


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a position, and the position after it."""
    value = 0
    for place, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    return value, len(data)  # damaged


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
