"""Repair of JSON that recorders, uploads and disks have damaged.

Applied to a chunk of events only after the strict decoder has refused it, so that the cost
and the risk (a repair may alter a name that held the same characters) fall on damaged files.
"""

from __future__ import annotations

import re

_WHITE = b"\t\n\r"
_CONTROL = bytes(set(range(0x20)) - set(_WHITE))
_TO_SPACES = bytes.maketrans(_CONTROL + _WHITE, b" " * 0x20)
SPACES = bytes.maketrans(_WHITE, b"   ")
"""White space of any kind to spaces: what repairing does to sound JSON."""
_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_NOT_A_NUMBER = re.compile(r"([:\[,]\s*)[-+]?(?:NaN|nan|Infinity|Inf|inf)(?=\s*[,}\]])")
_DANGLING_COMMA = re.compile(r",(\s*[}\]])")
_MISSING_VALUE = re.compile(r"(:\s*)(?=[,}])")
# A number too large for a float, as an overflowing printf leaves it.
_HUGE_EXPONENT = re.compile(r"([:\[,]\s*)-?\d+(?:\.\d+)?[eE]\+?\d{3,}(?=\s*[,}\]])")


def repair_json(data: bytes) -> bytes:
    """Make JSON of what nearly is.

    Raw control characters become spaces (also within strings), a backslash that escapes
    nothing stands for itself, NaN and infinities become null, dangling commas go, bytes that
    are not UTF-8 become the replacement character.
    """
    text = data.translate(_TO_SPACES).decode("utf-8", "replace")
    text = _ESCAPE.sub(lambda match: match.group() if match.group(1) else r"\\", text)
    text = _NOT_A_NUMBER.sub(r"\1null", text)
    text = _HUGE_EXPONENT.sub(r"\1null", text)
    text = _MISSING_VALUE.sub(r"\1null", text)
    text = _DANGLING_COMMA.sub(r"\1", text)
    # A lone half of a surrogate pair (`\ud800`) decodes, but encodes to nothing.
    return text.encode("utf-8", "replace")
