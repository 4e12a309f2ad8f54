"""Repairs JSON that recorders, uploads or disks have damaged.

Only chunks that the strict decoder rejects are repaired, because repairs take time and may alter
names that contain the same characters.
"""

from __future__ import annotations

import re

_WHITE = b"\t\n\r"
_CONTROL = bytes(set(range(0x20)) - set(_WHITE))
_TO_SPACES = bytes.maketrans(_CONTROL + _WHITE, b" " * 0x20)
SPACES = bytes.maketrans(_WHITE, b"   ")
"""Turns white space into spaces, which is all that repairing changes in valid JSON."""
_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_NOT_A_NUMBER = re.compile(r"([:\[,]\s*)[-+]?(?:NaN|nan|Infinity|Inf|inf)(?=\s*[,}\]])")
_DANGLING_COMMA = re.compile(r",(\s*[}\]])")
_MISSING_VALUE = re.compile(r"(:\s*)(?=[,}])")
# A number too large for a float, as an overflowing printf writes it.
_HUGE_EXPONENT = re.compile(r"([:\[,]\s*)-?\d+(?:\.\d+)?[eE]\+?\d{3,}(?=\s*[,}\]])")


def repair_json(data: bytes) -> bytes:
    """Repair JSON.

    Control characters become spaces, also in strings. Backslashes that escape nothing are doubled.
    NaN and infinities become null. Trailing commas are removed. Bytes that are not UTF-8 become
    the replacement character.
    """
    text = data.translate(_TO_SPACES).decode("utf-8", "replace")
    text = _ESCAPE.sub(lambda match: match.group() if match.group(1) else r"\\", text)
    text = _NOT_A_NUMBER.sub(r"\1null", text)
    text = _HUGE_EXPONENT.sub(r"\1null", text)
    text = _MISSING_VALUE.sub(r"\1null", text)
    text = _DANGLING_COMMA.sub(r"\1", text)
    # A lone half of a surrogate pair (`\ud800`) decodes, but encodes to nothing.
    return text.encode("utf-8", "replace")


_PLACE = re.compile(r"\(byte (\d+)\)")
_VALUE = re.compile(rb"(?<=[:\[,])\s*[^\s\"{}\[\],][^\"{}\[\],]*(?=[,}\]])")


def without_bad_value(data: bytes, error: str) -> bytes:
    """JSON with null in place of the value at which the decoder stopped; empty if none is there.

    Args:
        data: The JSON.
        error: The decoder's message, which names the byte.
    """
    place = _PLACE.search(error)
    if place is None:
        return b""
    stopped = int(place[1])
    # The value begins after the last separator, at the byte or a little before it (`-nan(ind)`).
    begin = max(data.rfind(separator, 0, stopped + 1) for separator in (b":", b"[", b","))
    value = _VALUE.match(data, begin + 1) if begin >= 0 else None
    return b"" if value is None else data[: value.start()] + b"null" + data[value.end() :]
