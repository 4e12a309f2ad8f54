"""Remarks as part of a settings file."""

from __future__ import annotations

import json
from collections.abc import Iterable

from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.remark import Remark

_HEAD = "# For perfadvisor.toml, which `perfadvisor analyze --config` reads.\n"


def settings_text(remarks: Iterable[Remark]) -> str:
    """The remarks as tables of a settings file in TOML."""
    return "\n".join([_HEAD, *map(_table, remarks)])


def _table(remark: Remark) -> str:
    lines = ["[[notes]]"]
    if remark.run:
        lines.append(f"run = {_quoted(remark.run)}")
    lines.append(f"finding = {_quoted(remark.finding)}")
    if remark.wont_fix:
        lines.append("wont_fix = true")
    if remark.text:
        lines.append(f"text = {_quoted(remark.text)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A string of TOML, which has the escapes of JSON."""
    return json.dumps(plain(text), ensure_ascii=False)
