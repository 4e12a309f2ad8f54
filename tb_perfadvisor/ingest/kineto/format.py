"""Traces of PyTorch's profiler: `WORKER.TIME.pt.trace.json[.gz]`, or any other name."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.ingest.captures import Capture, directory_of, make_capture, profile_file
from tb_perfadvisor.ingest.files.tree import FileEntry
from tb_perfadvisor.ingest.format import (
    HEAD_BYTES,
    Format,
    FoundFile,
    Grouped,
    Reader,
    Sniffed,
    reader_of_one_file,
)
from tb_perfadvisor.ingest.json_trace.recognition import (
    ascend_error,
    has_foreign_marks,
    has_kineto_marks,
    is_ascend_profile,
)
from tb_perfadvisor.ingest.trace_names import TraceName, parse_trace_name, session_label

# Ranks write their traces when the same step ends; large ones take a while, and clocks of hosts
# differ. Recordings of one rank are told apart by the rank being there twice.
_MAX_SPAN_NS = 600 * 10**9

_TRACE = re.compile(r"trace\.json(?:\.gz)?$")
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_INFO = re.compile(rb'"distributedInfo"\s*:\s*\{([^{}]*)')
_RANK = re.compile(rb'"rank"\s*:\s*(\d{1,7})')


def _sniff(head: bytes, is_claimed: bool) -> Sniffed | None:
    if is_ascend_profile(head):
        error = ascend_error("")
        return Sniffed(None, f"{error.message} {error.hint}")
    is_certain = has_kineto_marks(head)
    if not is_certain and not (is_claimed and _is_long(head) and not has_foreign_marks(head)):
        return None
    # Finding the word first takes a tenth of the time, and many files do not have it.
    info = _INFO.search(head) if b'"distributedInfo"' in head else None
    rank = _RANK.search(info[1]) if info else None
    return Sniffed("kineto", rank=int(rank[1]) if rank else None, is_certain=is_certain)


def _is_long(head: bytes) -> bool:
    """Whether it may go on with Kineto's events: others may be first, or a long header."""
    return len(head) >= HEAD_BYTES and _EVENTS.search(head) is not None


class _Trace(Struct, frozen=True):
    """A trace with what its name and its beginning say."""

    entry: FileEntry
    name: TraceName
    rank: int | None


def _group(files: Sequence[FoundFile], earlier: Grouped) -> Grouped:
    """Ranks of one directory and one time together; everything else by itself."""
    groups: dict[tuple[str, str], list[_Trace]] = defaultdict(list)
    recordings: list[list[_Trace]] = []
    for file in files:
        name = parse_trace_name(file.entry.path)
        trace = _Trace(file.entry, name, file.rank if file.rank is not None else name.rank)
        if trace.rank is None:
            recordings.append([trace])
        else:
            family = name.family if name.at_ns is None else ""
            groups[directory_of(file.entry.path), family].append(trace)
    for group in groups.values():
        recordings += _recordings(group)
    return replace(earlier, captures=(*earlier.captures, *map(_capture, recordings)))


def _recordings(traces: list[_Trace]) -> list[list[_Trace]]:
    """Split the traces of several ranks into recordings: each holds every rank once."""
    ordered = sorted(traces, key=lambda trace: (trace.name.at_ns or 0, trace.entry.path))
    by_rank: dict[int | None, list[_Trace]] = defaultdict(list)
    for trace in ordered:
        by_rank[trace.rank].append(trace)
    if len({len(ranked) for ranked in by_rank.values()}) == 1:
        # Every rank recorded as often: the first of each belong together, and so on.
        paired = [list(recording) for recording in zip(*by_rank.values(), strict=True)]
        if all(map(_is_near, paired)):
            return paired
    recordings: list[list[_Trace]] = []
    for trace in ordered:
        last = recordings[-1] if recordings else []
        is_new = trace.rank in {other.rank for other in last}
        if not last or is_new or not _is_near([last[0], trace]):
            recordings.append([trace])
        else:
            last.append(trace)
    return recordings


def _is_near(traces: list[_Trace]) -> bool:
    times = [trace.name.at_ns or 0 for trace in traces]
    return max(times) - min(times) <= _MAX_SPAN_NS


def _capture(traces: list[_Trace]) -> Capture:
    first = min(traces, key=lambda trace: (trace.name.at_ns or 0, trace.entry.path))
    if first.name.at_ns is not None:
        session = session_label(first.name.at_ns)
    else:
        session = first.name.worker if len(traces) == 1 else first.name.family
    files = [profile_file(trace.entry, trace.rank, trace.name.host) for trace in traces]
    return make_capture(directory_of(first.entry.path), session, "kineto", files)


def _reader() -> Reader:
    from tb_perfadvisor.ingest.kineto.reader import read_kineto

    return reader_of_one_file(read_kineto)


KINETO = Format(
    name="kineto",
    label="PyTorch trace",
    claims=lambda path: _TRACE.search(path) is not None,
    sniff=_sniff,
    group=_group,
    reader=_reader,
    framework="pytorch",
)
