"""Makes names from files and file systems safe to show: terminals obey control characters."""

from __future__ import annotations

import json
import re
import shlex
import unicodedata
from typing import Final

# Delete, the C1 controls, and what turns the direction of text or ends lines. JSON always escapes
# the C0 controls.
_LEFT_BY_JSON: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")

_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")


def plain(text: str) -> str:
    """Text without control characters, also those that have no width or turn its direction."""
    if text.isprintable():
        return text
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if _is_control(character) else character for character in text
    )


def plain_lines(text: str) -> str:
    """Like `plain`, but keeps the ends of lines."""
    return "\n".join(map(plain, text.split("\n")))


def printable_name(name: str) -> str:
    r"""The name of a file, with escapes like `\x1b` in place of what cannot be shown.

    Two names rarely become equal, unlike with `plain`. Bytes of names that are not UTF-8, which
    Python represents by lone surrogates, become escapes too.
    """
    if name.isprintable():
        return name
    return "".join(
        _escaped(character) if _is_control(character) else character for character in name
    )


def shell_word(name: str) -> str:
    """A name as a word of a shell command; one that cannot be shown needs Bash or Zsh."""
    if name.isprintable():
        return shlex.quote(name)
    escaped = printable_name(name.replace("\\", "\\\\").replace("'", "\\'"))
    return f"$'{escaped}'"


def printable_json(text: str) -> str:
    """The same JSON without the control characters that JSON allows in strings."""
    return _LEFT_BY_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def ascii_json(text: str) -> str:
    """The same JSON in ASCII, which almost every encoding contains."""
    return _NOT_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _is_control(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] == "C" or category in ("Zl", "Zp")


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte that is not UTF-8: PEP 383
        return f"\\x{ord(character) - 0xDC00:02x}"
    return ascii(character)[1:-1]
