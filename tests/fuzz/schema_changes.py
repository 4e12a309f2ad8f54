"""Changes to messages by their schema: each known field, also of those that a message lacks.

`message_changes` knows only what is in the bytes. Here, a number may become any other of the same
field anywhere in the message (an id or a reference that fits, or one that leads in a circle), and
programs inside the stats of an XSpace are changed, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any

from google.protobuf.message import DecodeError

from tb_perfadvisor.ingest.xspace.decode.messages import WRITING, HloProto
from tests.fuzz.values import INTEGERS, NUMBERS, TEXTS

_PROGRAM_SHARE = 0.4
_SMALL = (0, 0, 1, -1, 2)


def change_xspace(data: bytes, random: Random) -> bytes:
    """The XSpace with one to four changes to its fields, or to those of its programs."""
    space = WRITING.XSpace()
    try:
        space.ParseFromString(data)
    except DecodeError:
        return data
    for _ in range(random.choice((1, 1, 2, 3, 4))):
        programs = [
            stat
            for plane in space.planes
            for _, kind in sorted(plane.event_metadata.items())
            for stat in kind.stats
            if stat.bytes_value
        ]
        if programs and random.random() < _PROGRAM_SHARE:
            stat = random.choice(programs)
            program = HloProto()
            try:
                program.ParseFromString(stat.bytes_value)
            except DecodeError:
                continue
            change_field(program, random)
            stat.bytes_value = program.SerializeToString()
        else:
            change_field(space, random)
    return bytes(space.SerializeToString(deterministic=True))


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in _inner(value):
                yield from _messages(inner)


def _inner(value: Any) -> Iterable[Any]:
    """The messages of a field: one, a list, or the values of a map."""
    if hasattr(value, "ListFields"):
        return (value,)
    return [value[key] for key in sorted(value)] if hasattr(value, "values") else value


def _is_repeated(field: Any) -> bool:
    # protobuf 6 warns of the label, and older ones have nothing else.
    is_repeated = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if is_repeated is None else is_repeated)


def change_field(root: Any, random: Random) -> None:
    """Change a field of a message, or of one in it, to what fits its type."""
    # Each kind of message gets its turn, however few there are of it.
    by_name: dict[str, list[Any]] = {}
    for message in _messages(root):
        by_name.setdefault(message.DESCRIPTOR.full_name, []).append(message)
    alike = by_name[random.choice(sorted(by_name))]
    message = random.choice(alike)
    field = random.choice(message.DESCRIPTOR.fields)
    if field.message_type is not None:
        _change_messages(message, field, alike, random)
    elif _is_repeated(field):
        values = getattr(message, field.name)
        value = _value(field, alike, random)
        match random.randrange(3):
            case 0:
                values.extend([value] * random.choice((1, 3, 300)))
            case 1 if values:
                values[random.randrange(len(values))] = value
            case _ if values:
                del values[: random.choice((1, len(values)))]
    else:
        setattr(message, field.name, _value(field, alike, random))


def _change_messages(message: Any, field: Any, alike: list[Any], random: Random) -> None:
    if not _is_repeated(field):
        if random.random() < 0.5:
            message.ClearField(field.name)
        else:
            getattr(message, field.name).SetInParent()
        return
    values, source = getattr(message, field.name), getattr(random.choice(alike), field.name)
    if hasattr(values, "values"):
        ids = (*sorted(values), *sorted(source), *_SMALL)
        kept = values[random.choice(ids)]  # added if it is not there
        if source and random.random() < 0.5:
            kept.CopyFrom(source[random.choice(sorted(source))])
        elif random.random() < 0.5:
            del values[random.choice(sorted(values))]
        return
    match random.randrange(4):
        case 0:
            for _ in range(random.choice((1, 3, 300))):
                values.add()
        case 1 if source:
            copied = type(source[0]).FromString(random.choice(source).SerializeToString())
            values.extend([copied] * random.choice((1, 3, 100)))
        case 2 if values:
            del values[random.randrange(len(values))]
        case _ if len(values) > 1:
            values.append(values.pop(random.randrange(len(values))))


def _value(field: Any, alike: list[Any], random: Random) -> Any:
    """A value of the field: another message's, a small one, or an extreme one."""
    if random.random() < 0.4:
        other = getattr(random.choice(alike), field.name)
        if not _is_repeated(field):
            return other
        if other:
            return random.choice(other)
    return _EXTREME[field.cpp_type](field, random)


def _integer(bits: int, *, is_signed: bool) -> Callable[[Any, Random], int]:
    def choose(field: Any, random: Random) -> int:
        number = random.choice(_SMALL if random.random() < 0.5 else INTEGERS) % 2**bits
        return number - 2**bits if is_signed and number >= 2 ** (bits - 1) else number

    return choose


def _float(field: Any, random: Random) -> float:
    number = random.choice(NUMBERS)
    return float(number) if abs(number) < 1e300 else float("inf")


def _text(field: Any, random: Random) -> str | bytes:
    text = random.choice(TEXTS)
    if field.type == field.TYPE_BYTES:
        return text.encode("utf-8", "surrogatepass")
    return text.encode("utf-8", "replace").decode()


# By `FieldDescriptor.cpp_type`: int32, int64, uint32, uint64, double, float, bool, enum, string.
_EXTREME: dict[int, Callable[[Any, Random], Any]] = {
    1: _integer(32, is_signed=True),
    2: _integer(64, is_signed=True),
    3: _integer(32, is_signed=False),
    4: _integer(64, is_signed=False),
    5: _float,
    6: lambda field, random: random.choice((0.0, -1.0, 1e30, float("nan"), float("inf"))),
    7: lambda field, random: random.random() < 0.5,
    8: lambda field, random: 0,
    9: _text,
}
