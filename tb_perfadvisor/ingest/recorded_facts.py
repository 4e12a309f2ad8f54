"""Reads what our recorders store beside their captures: the machine, the program, the whole run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.captures import (
    Capture,
    ProfileFile,
    directory_of,
    name_of,
    name_of_facts,
    profile_file,
)
from tb_perfadvisor.ingest.files.access import open_file
from tb_perfadvisor.ingest.files.tree import FileEntry
from tb_perfadvisor.ingest.recordings import split_step
from tb_perfadvisor.machine.facts import RUN_SUFFIX, SUFFIX, UNKNOWN, Facts, RunTimers
from tb_perfadvisor.note import Note
from tb_perfadvisor.plain_text import plain

MOST_BYTES = 1 << 20
"""Facts of a program with hundreds of parts have some ten kilobytes, and so have the timers of a
run."""
_MOST_PROCESSES = 1_024
_Stored = TypeVar("_Stored", Facts, RunTimers)


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


def with_timers(captures: Iterable[Capture], entries: Iterable[FileEntry]) -> tuple[Capture, ...]:
    """Captures with the files of timers in the directory of their run."""
    by_run: dict[str, list[ProfileFile]] = defaultdict(list)
    for entry in entries:
        if entry.path.endswith(RUN_SUFFIX):
            by_run[directory_of(entry.path)].append(profile_file(entry))
    return tuple(
        replace(capture, timers=tuple(by_run[run][:_MOST_PROCESSES]))
        if (run := split_step(capture.run)[0]) in by_run
        else capture
        for capture in captures
    )


def read_timers(
    root: str, capture: Capture, recorded_ns: Sequence[int | None]
) -> tuple[RunTimers, ...]:
    """The timers of the run that a capture was recorded in, in order of rank; at most one of each.

    The directory of a run may be used again, so a recording must lie within the timers of its run.
    `recorded_ns` has the Unix times at which the capture was recorded. Files that cannot be read
    count as missing: they add to reports, which need none of them.
    """
    found: dict[int, list[RunTimers]] = defaultdict(list)
    for file in capture.timers:
        try:
            with open_file(root, file) as stream:
                timers = _decode(stream.read(MOST_BYTES + 1), RunTimers)
        except (PerfAdvisorError, ValueError, RecursionError):
            continue
        times = [each for each in recorded_ns if each is not None]
        # A recording may follow the last timed step: the file is written with it.
        if timers.is_sound and all(each >= timers.start_ns[0] for each in times):
            found[timers.rank].append(timers)
    names = [name_of(file.path)[1] for file in capture.files]
    chosen = []
    for rank in sorted(found):
        of_capture = [
            timers
            for timers in found[rank]
            if any(n.startswith(f"{timers.worker}.") for n in names)
        ]
        # Of programs one after another in a directory, the last that had begun.
        chosen.append(max(of_capture or found[rank], key=lambda timers: timers.start_ns[0]))
    return tuple(chosen)


def decode_facts(data: bytes) -> Facts:
    """Decode the content of such a file.

    Raises:
        ValueError: If it is too large or not of this form.
    """
    return _decode(data, Facts)


def _decode(data: bytes, kind: type[_Stored]) -> _Stored:
    if len(data) > MOST_BYTES:
        raise ValueError("too large")
    return msgspec.convert(_plain(msgspec.json.decode(data)), kind)


def _plain(value: Any) -> Any:
    """The same value with texts that are safe to show."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {plain(key): _plain(each) for key, each in value.items()}
    return value
