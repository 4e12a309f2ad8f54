"""Reads the TOML file beside a module of rules.

`[ID.page]` is the page of a rule. `[ID]` is a rule that is data: see `declared`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tb_perfadvisor import toml_files

HEADINGS: Mapping[str, str] = MappingProxyType(
    {
        "finds": "What it finds",
        "matters": "Why it matters",
        "measured": "How it is measured",
        "ignore": "When to ignore",
        "verify": "How to verify",
        "references": "References",
    }
)
"""The heading of each part of a page, by its key, in order."""


@cache
def tables(module: str) -> Mapping[str, str]:
    """The text of each table, by its name; empty if there is no file beside the module."""
    path = Path(sys.modules[module].__file__ or "").with_suffix(".toml")
    return MappingProxyType(toml_files.tables(path) if path.is_file() else {})


def entry(module: str, name: str) -> dict[str, Any]:
    """A table; empty if there is none."""
    text = tables(module).get(name, "")
    try:
        loaded: dict[str, Any] = toml_files.parse(text)
    except ValueError as error:
        raise ValueError(f"[{name}] of {module}: {error}") from error
    return loaded


def page(module: str, rule_id: str) -> dict[str, str]:
    """The sections of a rule's page: heading to text; empty if there is none."""
    parts = entry(module, f"{rule_id}.page")
    unknown = parts.keys() - HEADINGS.keys()
    if unknown:
        raise ValueError(f"[{rule_id}.page] of {module}: unknown keys {', '.join(sorted(unknown))}")
    return {HEADINGS[key]: text.strip("\n") for key, text in parts.items()}
