"""Memory snapshots of PyTorch's caching allocator, which are pickles."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from tb_perfadvisor.ingest.captures import (
    COMPILE_LOG_FORMAT,
    Capture,
    ProfileFile,
    directory_of,
    make_capture,
    profile_file,
)
from tb_perfadvisor.ingest.format import (
    Format,
    FoundFile,
    Grouped,
    Reader,
    Sniffed,
    reader_of_one_file,
)
from tb_perfadvisor.ingest.trace_names import parse_trace_name, rank_of_name
from tb_perfadvisor.patterns import regex

NAME = "memory-snapshot"

_CLAIM = regex(r"(?:snapshot|memory)[^/]{0,255}\.(?:pickle|pkl)(?:\.gz)?$", re.IGNORECASE)
_ENDING = regex(r"\.(?:pickle|pkl)(?:\.gz)?$")
# The protocol, perhaps the length of the first frame, and then a dictionary or a list.
_PICKLE = regex(rb"\x80[\x02-\x05](?:\x95.{8})?[}\]]", re.DOTALL)
_KEYS = (b"device_traces", b"segment_type")


def _sniff(head: bytes, is_claimed: bool) -> Sniffed | None:
    is_ours = _PICKLE.match(head) is not None and any(key in head for key in _KEYS)
    return Sniffed(NAME) if is_ours else None


def _group(files: Sequence[FoundFile], earlier: Grouped) -> Grouped:
    """The snapshots of one profile's ranks belong to it. Others are captures of their own."""
    captures = list(earlier.captures)
    by_directory: dict[str, list[ProfileFile]] = defaultdict(list)
    for file in files:
        path = file.entry.path
        by_directory[directory_of(path)].append(
            profile_file(file.entry, rank_of_name(path.rsplit("/", 1)[-1]))
        )
    for directory, snapshots in by_directory.items():
        beside = [
            place
            for place, capture in enumerate(captures)
            if directory in (capture.run, directory_of(capture.files[0].path))
            and capture.format != COMPILE_LOG_FORMAT
        ]
        if len(beside) == 1 and _is_of(captures[beside[0]], snapshots):
            (place,) = beside
            captures[place] = replace(captures[place], snapshots=tuple(snapshots))
        else:
            captures += _captures(directory, snapshots)
    return replace(earlier, captures=tuple(captures))


def _is_of(capture: Capture, snapshots: Sequence[ProfileFile]) -> bool:
    """Whether each snapshot is that of one of a profile's workers."""
    if len(capture.workers) == 1:
        return len(snapshots) == 1
    ranks = [snapshot.rank for snapshot in snapshots]
    recorded = {worker.files[0].rank for worker in capture.workers}
    return None not in ranks and len(set(ranks)) == len(ranks) and recorded.issuperset(ranks)


def _captures(directory: str, snapshots: Sequence[ProfileFile]) -> list[Capture]:
    """Ranks of one family of names together; everything else by itself."""
    families: dict[str, list[ProfileFile]] = defaultdict(list)
    for snapshot in snapshots:
        stem = _ENDING.sub("", snapshot.path.rsplit("/", 1)[-1])
        families[parse_trace_name(stem).family].append(snapshot)
    captures = []
    for family, members in families.items():
        ranks = [member.rank for member in members]
        if len(set(ranks)) == len(ranks):
            captures.append(make_capture(directory, family, NAME, members))
        else:  # such as memory.pickle and memory.pkl
            captures += [
                make_capture(directory, member.path.rsplit("/", 1)[-1], NAME, [member])
                for member in members
            ]
    return captures


def _reader() -> Reader:
    from tb_perfadvisor.ingest.memory_snapshots.reader import read_memory_snapshot

    return reader_of_one_file(read_memory_snapshot)


MEMORY_SNAPSHOT = Format(
    name=NAME,
    label="PyTorch memory snapshot",
    claims=lambda path: _CLAIM.search(path) is not None,
    sniff=_sniff,
    group=_group,
    reader=_reader,
    framework="pytorch",
)
