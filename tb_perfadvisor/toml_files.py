"""Reads TOML.

Our own files are cut into tables, which are parsed when they are used: to parse a whole file takes
longer than to analyze a small profile.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from tb_perfadvisor.patterns import regex

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_HEADER = regex(r"^\[([a-z0-9.-]+)\]$", re.MULTILINE)


def parse(text: str) -> dict[str, Any]:
    """The values of a text; raises `ValueError` if it is no TOML."""
    values: dict[str, Any] = tomllib.loads(text)
    return values


def tables(path: Path) -> dict[str, str]:
    """The text of each table of a file, by its name."""
    pieces = _HEADER.split(path.read_text(encoding="utf-8"))
    texts: dict[str, str] = {}
    for name, text in zip(pieces[1::2], pieces[2::2], strict=True):
        if texts.setdefault(name, text) is not text:
            raise ValueError(f"{path.name}: a second table [{name}]")
    return texts
