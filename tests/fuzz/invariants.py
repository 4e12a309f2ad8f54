"""What holds for every result: numbers are numbers, and text is safe to show."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import msgspec

from tb_perfadvisor.errors import OutOfMemoryError, PerfAdvisorError, UnexpectedError
from tests.fuzz.values import MARKUP

_MAX_INTEGER = 2**63
_WRONG_NUMBER = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]|\xcf[\x80-\xff]")
"""MessagePack's code of a float that is infinite or no number, or of an integer of 2^63 and more.
Text may look the same, so what is found is looked at again."""
_ROUNDING = 1e-6


class BrokenError(AssertionError):
    """What a case did that no input may do."""


def raise_bugs(error: PerfAdvisorError) -> None:
    """Raise if an error is not the input's fault."""
    if isinstance(error, UnexpectedError):
        raise BrokenError(error.details)
    if isinstance(error, OutOfMemoryError):
        raise BrokenError("out of memory")


def check_numbers(result: object) -> None:
    """Each number is finite and fits into 64 bits."""
    # The encoder is much faster than a walk, which is only needed for the name of a wrong number.
    try:
        encoded = msgspec.msgpack.encode(result)
    except OverflowError:
        encoded = None
    if encoded is not None and not _WRONG_NUMBER.search(encoded):
        return
    for name, value in _numbers(msgspec.to_builtins(result), ""):
        if isinstance(value, float) and not math.isfinite(value):
            raise BrokenError(f"{name} is {value}")
        if isinstance(value, int) and abs(value) >= _MAX_INTEGER:
            raise BrokenError(f"{name} is {value}, which does not fit into 64 bits")


def check_shares(result: object) -> None:
    """Each number whose name ends in `share` is between 0 and 1."""
    for name, value in _numbers(msgspec.to_builtins(result), ""):
        if name.endswith("share") and not -_ROUNDING <= value <= 1 + _ROUNDING:
            raise BrokenError(f"{name} is {value}")


def _numbers(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _numbers(inner, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


def check_json(text: str) -> None:
    """JSON that every parser reads."""
    json.loads(text, parse_constant=_no_constant)


def check_text(text: str, form: str) -> None:
    """Text, Markdown or HTML without markup or control characters of the input."""
    if form != "text" and MARKUP in _visible(text, form):
        raise BrokenError(f"{form} carries markup of the profile")
    for character in set(text) - {"\n", "\t", "\r"}:
        if unicodedata.category(character) in ("Cc", "Cs"):
            raise BrokenError(f"{form} carries the control character {ord(character):#x}")
    if form == "html":
        _Page().feed(text)


def _visible(text: str, form: str) -> str:
    """What a browser would take for markup; Markdown shows fenced code as it is."""
    return "".join(text.split("```")[::2]) if form == "markdown" else text


def _no_constant(name: str) -> None:
    raise BrokenError(f"JSON with {name}")


class _Page(HTMLParser):
    """Fails on an element that only a profile could have brought in."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if any(key.startswith("on") for key, _ in attrs) or ("src", "x") in attrs:
            raise BrokenError(f"html has an element <{tag}> of the profile")
