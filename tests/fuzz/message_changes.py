"""Changes to protobuf messages that keep their lengths right: numbers, texts, fields, nesting.

Nothing is known of the messages. A delimited field that parses as a message is taken for one.
"""

from __future__ import annotations

import struct
from random import Random

from tests.fuzz.values import INTEGERS, NUMBERS, TEXTS

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_MASK = 2**64 - 1
_DEEPEST = 12

Field = tuple[int, int, int | bytes | list["Field"]]  # type: ignore[misc]
"""Number, wire type, and value: a list of fields if it is a message."""


def change_message(data: bytes, random: Random) -> bytes:
    """The message with one to four changes."""
    fields = _parse(data, 0)
    if not fields:
        return data
    for _ in range(random.choice((1, 1, 2, 3, 4))):
        _change(fields, random)
    return _encoded(fields)


def _change(message: list[Field], random: Random) -> None:
    holder = message
    # Inner messages are where the events are; each level is left with some chance.
    while random.random() < 0.85:
        inner = [value for _, _, value in holder if isinstance(value, list) and value]
        if not inner:
            break
        holder = random.choice(inner)
    if not holder:
        return
    at = random.randrange(len(holder))
    number, wire, value = holder[at]
    choice = random.randrange(10)
    if choice < 4:
        holder[at] = (number, wire, _other_value(wire, value, holder, random))
    elif choice == 4:
        holder[at] = (random.choice((1, 2, 3, 4, 5, 6, 7, 9, 11, 2**28)), wire, value)
    elif choice == 5:
        del holder[at : at + random.choice((1, 1, 5, 1000))]
    elif choice == 6:
        holder[at:at] = [holder[at]] * random.choice((1, 3, 50))
    elif choice == 7:
        other = random.randrange(len(holder))
        holder[at], holder[other] = holder[other], holder[at]
    elif choice == 8:
        for _ in range(random.choice((1, 3, 50))):
            holder[at] = (number, _DELIMITED, [holder[at]])
    else:
        wire = random.choice((_VARINT, _FIXED64, _DELIMITED, _FIXED32))
        holder[at] = (number, wire, _other_value(wire, b"", holder, random))


def _other_value(
    wire: int, value: int | bytes | list[Field], holder: list[Field], random: Random
) -> int | bytes | list[Field]:
    if wire == _VARINT:
        others = [other for _, kind, other in holder if kind == _VARINT]
        if others and random.random() < 0.3:
            return random.choice(others)
        if isinstance(value, int) and random.random() < 0.3:
            return (value + random.choice((-1, 1, 1000, -1000, 2**32))) & _MASK
        return random.choice(INTEGERS) & _MASK
    if wire == _FIXED64:
        return struct.pack("<d", _as_float(random.choice(NUMBERS)))
    if wire == _FIXED32:
        return random.randbytes(4)
    if isinstance(value, list) and random.random() < 0.5:
        return value[: random.randrange(len(value) + 1)]
    return random.choice(TEXTS).encode("utf-8", "surrogatepass")


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf")


# --- the wire format ----------------------------------------------------------------------------


def _parse(data: bytes, depth: int) -> list[Field] | None:
    """The fields of a message; None if it is none."""
    fields: list[Field] = []
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if at < 0 or not 0 < number < 2**29:
            return None
        value: int | bytes | list[Field]
        if wire == _VARINT:
            value, at = _varint(data, at)
            if at < 0:
                return None
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
            value, at = data[at : at + size], at + size
        elif wire == _DELIMITED:
            size, at = _varint(data, at)
            if at < 0:
                return None
            value, at = data[at : at + size], at + size
        else:
            return None
        if at > len(data):
            return None
        if wire == _DELIMITED and isinstance(value, bytes) and depth < _DEEPEST:
            # Short texts often look like a message, which is as good a change as any.
            inner = _parse(value, depth + 1) if value else None
            value = inner if inner else value
        fields.append((number, wire, value))
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends; -1 if it does not."""
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & _MASK, at
        shift += 7
    return 0, -1


def _encoded(fields: list[Field]) -> bytes:
    out = bytearray()
    for number, wire, value in fields:
        out += _encoded_varint(number << 3 | wire)
        if isinstance(value, int):
            out += _encoded_varint(value)
            continue
        content = _encoded(value) if isinstance(value, list) else value
        if wire == _DELIMITED:
            out += _encoded_varint(len(content))
        out += content
    return bytes(out)


def _encoded_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
