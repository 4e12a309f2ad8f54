"""Reads what our recorders store beside their captures: the machine, the program, the load."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.captures import (
    Capture,
    ProfileFile,
    name_of,
    name_of_facts,
    profile_file,
)
from tb_perfadvisor.ingest.files.access import open_file
from tb_perfadvisor.ingest.files.tree import FileEntry
from tb_perfadvisor.machine.facts import SUFFIX, UNKNOWN, Facts
from tb_perfadvisor.note import Note
from tb_perfadvisor.plain_text import plain

MOST_BYTES = 1 << 20
"""Facts of a program with hundreds of parts have some ten kilobytes."""


def is_facts_file(path: str) -> bool:
    """Whether a file has the facts of a capture, by its name."""
    return path.endswith(SUFFIX)


def with_facts(captures: Iterable[Capture], entries: Iterable[FileEntry]) -> tuple[Capture, ...]:
    """Captures with the files of facts that are named like theirs."""
    by_name = {name_of_facts(entry.path): entry for entry in entries}
    if not by_name:
        return tuple(captures)
    return tuple(
        replace(
            capture,
            facts=tuple(
                profile_file(by_name[name], file.rank, file.host)
                for file in capture.files
                if (name := name_of(file.path)) in by_name
            ),
        )
        for capture in captures
    )


def read_facts(root: str, file: ProfileFile) -> tuple[Facts, tuple[Note, ...]]:
    """What a file tells, and a note if it cannot be read."""
    try:
        with open_file(root, file) as stream:
            return decode_facts(stream.read(MOST_BYTES + 1)), ()
    except PerfAdvisorError as error:
        reason = error.message
    except (ValueError, RecursionError):  # not JSON, or not of this form
        reason = "it is damaged, or was not written by Perf Advisor."
    message = f"{file.path} was left out, so the machine is unknown: {reason}"
    return UNKNOWN, (Note("unsupported-file", "info", message),)


def decode_facts(data: bytes) -> Facts:
    """Decode the content of such a file.

    Raises:
        ValueError: If it is too large or not of this form.
    """
    if len(data) > MOST_BYTES:
        raise ValueError("too large")
    return msgspec.convert(_plain(msgspec.json.decode(data)), Facts)


def _plain(value: Any) -> Any:
    """The same value with texts that are safe to show."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {plain(key): _plain(each) for key, each in value.items()}
    return value
