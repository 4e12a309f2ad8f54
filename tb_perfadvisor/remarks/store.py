"""Remarks on findings, one line of JSON each, in the user's data directory.

They are sent nowhere. A digest stands for the log directory and the run, so that the file holds no
paths. The last line about a finding counts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.plain_text import plain
from tb_perfadvisor.remark import Remark
from tb_perfadvisor.user_data import append_lines, data_file, read_lines

FILE: Final = "remarks.jsonl"
FORMAT: Final = 1


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    format: int = FORMAT
    written_unix_s: int
    of: str
    finding: str
    wont_fix: bool = False
    text: str = ""


def run_digest(root: str, run: str) -> str:
    """Tells a run from all others.

    `root` is the absolute path of its log directory, or a URL, and `run` its name there.
    """
    content = f"{root}\0{run}".encode("utf-8", "surrogatepass")
    return blake2b(content, digest_size=16).hexdigest()


def write_remark(digest: str, remark: Remark) -> None:
    """Keep what a user says about a finding, in place of what was said before.

    An empty remark takes back what was said. `digest` is that of the run.
    """
    line = _Line(
        written_unix_s=round(time.time()),
        of=digest,
        finding=remark.finding,
        wont_fix=remark.wont_fix,
        text=remark.text,
    )
    append_lines(msgspec.json.encode(line) + b"\n", _file())


def known_remarks() -> Mapping[str, Mapping[str, Remark]]:
    """What the user says, by digest of the run and by finding; nothing if it cannot be read."""
    known: dict[str, dict[str, Remark]] = {}
    try:
        lines = read_lines(_file())
    except UsageError:
        return known
    for content in lines:
        try:
            line = msgspec.json.decode(content, type=_Line)
        except msgspec.MsgspecError:  # a full disk cut it off, or a later version wrote it
            continue
        of_run = known.setdefault(line.of, {})
        of_run.pop(line.finding, None)
        if line.wont_fix or line.text:
            of_run[line.finding] = Remark(line.finding, line.wont_fix, line.text)
    return known


def _file() -> Path:
    try:
        return data_file(FILE)
    except RuntimeError as error:
        raise UsageError("there is no home directory to keep notes in.") from error


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
