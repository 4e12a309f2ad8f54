"""Makes names from files and file systems safe to show: terminals obey control characters.

And safe to print in commands, which people paste into a shell and agents run.
"""

from __future__ import annotations

import json
import os
import shlex
import unicodedata
from collections.abc import Iterable
from typing import Final

from tb_perfadvisor.patterns import regex

# Delete, the C1 controls, and what turns the direction of text or ends lines. JSON always escapes
# the C0 controls.
_LEFT_BY_JSON: Final = regex("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")

_NOT_ASCII: Final = regex(r"[^\x00-\x7f]")

_PLAIN_IN_POWERSHELL: Final = regex(r"[A-Za-z0-9_./\\:-]+")
_QUOTES_OF_POWERSHELL: Final = regex("['\u2018-\u201b]")


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


def shell_word(name: str, *, is_powershell: bool = os.name == "nt") -> str:
    """Any text as one word of a command, in one line; each name in a command goes through here.

    The word is for POSIX shells, and on Windows for PowerShell: `cmd` knows no such quotes. A name
    that cannot be shown needs Bash or Zsh to be found. Other shells read another name, but never a
    second word or command.
    """
    if is_powershell:
        shown = printable_name(name)
        if _PLAIN_IN_POWERSHELL.fullmatch(shown):
            return shown
        doubled = _QUOTES_OF_POWERSHELL.sub(lambda match: 2 * match[0], shown)
        return f"'{doubled}'"
    if name.isprintable():
        return shlex.quote(name)
    return f"$'{''.join(map(_for_bash, name))}'"


def shell_path(path: str) -> str:
    """The path of a file or directory as a word that no command takes for an option."""
    return shell_word(f"./{path}" if path.startswith("-") else path)


def shell_line(words: Iterable[str]) -> str:
    """A command of the user's, whose options stay options."""
    return " ".join(map(shell_word, words))


def printable_json(text: str) -> str:
    """The same JSON without the control characters that JSON allows in strings."""
    return _LEFT_BY_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def ascii_json(text: str) -> str:
    """The same JSON in ASCII, which almost every encoding contains."""
    return _NOT_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _is_control(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] == "C" or category in ("Zl", "Zp")


def _for_bash(character: str) -> str:
    """A character between `$'` and `'`: as bytes, which do not depend on the shell's locale."""
    # Other shells end the word at a quote, even after a backslash; `!` stands for older commands.
    if not _is_control(character) and character not in "\\'!":
        return character
    is_byte = "\udc80" <= character <= "\udcff"
    content = character.encode("utf-8", "surrogateescape" if is_byte else "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in content)


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte that is not UTF-8: PEP 383
        return f"\\x{ord(character) - 0xDC00:02x}"
    return ascii(character)[1:-1]
