"""Exports of Nsight Systems: SQLite databases with any name that ends with `.sqlite`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from tb_perfadvisor.ingest.captures import (
    ProfileFile,
    directory_of,
    make_capture,
    profile_file,
)
from tb_perfadvisor.ingest.files.tree import FileEntry
from tb_perfadvisor.ingest.format import (
    Format,
    FoundFile,
    Grouped,
    Reader,
    Slicing,
    Sniffed,
    reader_of_one_trace,
)
from tb_perfadvisor.ingest.trace_names import TraceName, parse_trace_name
from tb_perfadvisor.patterns import regex

_ENDING = regex(r"\.sqlite(?:\.gz)?$")
_LOG_ENDING = "-wal"
"""SQLite's write-ahead log beside a database: changes that are not in the database yet."""
_LOG = regex(rf"\.sqlite{_LOG_ENDING}$")
# Tables that only Nsight Systems writes. The definitions of those that it fills first stand at the
# beginning of the file; its texts may lie between them and the others.
_TABLES = regex(
    rb"\ASQLite format 3\0.*?(?:CUPTI_ACTIVITY_KIND_(?:KERNEL|RUNTIME|MEMCPY|GRAPH_TRACE)"
    rb"|ENUM_NSYS_|TABLE ['\"]?(?:NVTX_EVENTS|OSRT_API|META_DATA_EXPORT|EXPORT_META_DATA"
    rb"|ProcessStreams|TARGET_INFO_(?:GPU|SYSTEM_ENV|SESSION_START_TIME))\b)",
    re.DOTALL,
)
# Nvidia's older profilers have databases with other tables of similar names.
_OLDER = regex(rb"CUPTI_ACTIVITY_KIND_(?:MARKER|DEVICE|DRIVER)\b|StringTable")
_LOG_MAGIC = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")


def _sniff(head: bytes, is_claimed: bool) -> Sniffed | None:
    if _TABLES.search(head) and not _OLDER.search(head):
        return Sniffed("nsight")
    return Sniffed("nsight") if is_claimed and head.startswith(_LOG_MAGIC) else None


def _group(files: Sequence[FoundFile], earlier: Grouped) -> Grouped:
    """The exports of several ranks together, and each database together with its log."""
    logs = {file.entry.path: file.entry for file in files if _LOG.search(file.entry.path)}
    families: dict[tuple[str, str], list[FileEntry]] = defaultdict(list)
    for file in files:
        path = file.entry.path
        if path not in logs:
            families[directory_of(path), _name(path).family].append(file.entry)
    captures = []
    for (directory, family), members in families.items():
        ranks = [_name(member.path).rank for member in members]
        are_ranks = None not in ranks and len(set(ranks)) == len(ranks)
        for part in [members] if are_ranks else [[member] for member in members]:
            session = family if len(part) > 1 else _name(part[0].path).worker
            found = [file for member in part for file in _with_log(member, logs)]
            captures.append(
                make_capture(directory, session, "nsight", found, merges_hosts=len(found) > 1)
            )
    return replace(earlier, captures=(*earlier.captures, *captures))


def _with_log(entry: FileEntry, logs: Mapping[str, FileEntry]) -> list[ProfileFile]:
    """A database, and what was written to it last. Files of one worker name the same host."""
    name = _name(entry.path)
    log = logs.get(entry.path + _LOG_ENDING)
    entries = [entry] if log is None else [entry, log]
    return [profile_file(each, name.rank, name.worker) for each in entries]


def _name(path: str) -> TraceName:
    return parse_trace_name(_ENDING.sub("", path))


def _reader(slicing: Slicing | None = None) -> Reader:
    from tb_perfadvisor.ingest.nsight.reader import read_nsight

    threads = slicing.processes + 1 if slicing else 1
    return reader_of_one_trace(partial(read_nsight, threads=threads))


NSIGHT = Format(
    name="nsight",
    label="Nsight Systems export",
    claims=lambda path: _LOG.search(path) is not None,
    sniff=_sniff,
    group=_group,
    reader=_reader,
    slicing_reader=_reader,
)
