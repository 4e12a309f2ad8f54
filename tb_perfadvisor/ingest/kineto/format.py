"""Kineto traces, as a format.

Joins recordings of ranks that each log into a directory of their own: `rank0/`, `host1/`.

Names prove nothing: what joins them is what the files say. They are of one run if they name the
same group of all ranks, hold different ranks of it, and began at the same time. Files of older
versions name no groups: then all ranks must be there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Generic, TypeVar

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
    RunOfRank,
    Slicing,
    Sniffed,
    reader_of_documents,
)
from tb_perfadvisor.ingest.json_trace.recognition import (
    ascend_error,
    has_foreign_marks,
    has_kineto_marks,
    is_ascend_profile,
)
from tb_perfadvisor.ingest.trace_names import TraceName, parse_trace_name, session_label
from tb_perfadvisor.patterns import regex

_NEAR_NS = 60 * 10**9
"""Ranks begin to record at the same step. Clocks of hosts differ by seconds, and without a
synchronization ranks may be some steps apart."""

T = TypeVar("T")


class RankRecording(Struct, Generic[T], frozen=True):
    """What one directory holds of a recording."""

    directory: tuple[str, ...]
    ranks: tuple[int, ...]
    run: RunOfRank
    """Of its first rank to begin."""
    traces: tuple[T, ...]


def join_directories(
    recordings: Sequence[RankRecording[T]],
) -> Iterator[tuple[tuple[str, ...], tuple[RankRecording[T], ...]]]:
    """The recordings that belong together, with the directory that they are of.

    The recordings are of programs with several ranks. Their directories differ in one place:
    `rank0` and `rank1`, or `rank0/profile` and `rank1/profile`. Yields the common parts of the
    directories' names, and the recordings.
    """
    remaining = list(recordings)
    for place in reversed(range(max((len(one.directory) for one in remaining), default=0))):
        groups: dict[object, list[RankRecording[T]]] = defaultdict(list)
        for recording in remaining:
            names = recording.directory
            if place < len(names):
                common = (*names[:place], None, *names[place + 1 :])
                groups[common, recording.run.world_size, recording.run.group].append(recording)
        for group in groups.values():
            for joined in _together(group):
                names = joined[0].directory
                yield (*names[:place], *names[place + 1 :]), joined
                remaining = [recording for recording in remaining if recording not in joined]


def _together(group: Sequence[RankRecording[T]]) -> list[tuple[RankRecording[T], ...]]:
    """The first recording of each directory, the second of each, and so on; [] without proof."""
    by_directory: Mapping[tuple[str, ...], list[RankRecording[T]]] = defaultdict(list)
    for recording in sorted(group, key=lambda recording: recording.run.start_ns):
        by_directory[recording.directory].append(recording)
    if len(by_directory) < 2 or len({len(found) for found in by_directory.values()}) > 1:
        return []
    turns = list(zip(*by_directory.values(), strict=True))
    last_ns = -1
    for turn in turns:
        begins = [recording.run.start_ns for recording in turn]
        ranks = [rank for recording in turn for rank in recording.ranks]
        is_proof = (
            last_ns < min(begins)
            and max(begins) - min(begins) <= _NEAR_NS
            and len(set(ranks)) == len(ranks)
            and max(ranks) < turn[0].run.world_size
            and (turn[0].run.group or len(ranks) == turn[0].run.world_size)
        )
        if not is_proof:
            return []
        last_ns = max(begins)
    return turns


# Ranks write their traces when the same step ends; large ones take a while, and clocks of hosts
# differ. Recordings of one rank are told apart by the rank being there twice.
_MAX_SPAN_NS = 600 * 10**9

_MOMENT_NS = 1_000_000
"""No process begins to record twice within a millisecond."""

_TRACE = regex(r"trace\.json(?:\.gz)?$")
_EVENTS = regex(rb'"traceEvents"\s*:\s*\[')
_INFO = regex(rb'"distributedInfo"\s*:\s*\{([^{}]*)')
_WORLD = regex(rb'"world_size"\s*:\s*(\d{1,7})')
_FIRST_GROUP = regex(rb'"pg_config"\s*:\s*\[\s*\{([^{}]*)\}')  # it has all ranks
_BASE = regex(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')
_TIME = regex(rb'"ts"\s*:\s*"?(\d{1,19}(?:\.\d{1,9})?)')
_RANK = regex(rb'"rank"\s*:\s*(\d{1,7})')


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
    return Sniffed(
        "kineto",
        rank=int(rank[1]) if rank else None,
        run=_run_of(head, info[1]) if info else None,
        is_certain=is_certain,
    )


def _run_of(head: bytes, info: bytes) -> RunOfRank | None:
    """The run that a file is a rank of; None if it does not say so or has a single rank."""
    world, groups, begin = _WORLD.search(info), _FIRST_GROUP.search(head), _TIME.search(head)
    if world is None or int(world[1]) < 2 or begin is None:
        return None
    base = _BASE.search(head)
    start_ns = round(float(begin[1]) * 1_000) + (int(base[1]) if base else 0)
    group = groups[1].decode(errors="replace") if groups else ""
    return RunOfRank(int(world[1]), group, start_ns)


def _is_long(head: bytes) -> bool:
    """Whether it may go on with Kineto's events: others may be first, or a long header."""
    return len(head) >= HEAD_BYTES and _EVENTS.search(head) is not None


class _Trace(Struct, frozen=True):
    """A trace with what its name and its beginning say."""

    entry: FileEntry
    name: TraceName
    rank: int | None
    run: RunOfRank | None


def _group(files: Sequence[FoundFile], earlier: Grouped) -> Grouped:
    """Ranks of one directory and one time together; everything else by itself."""
    groups: dict[tuple[str, str], list[_Trace]] = defaultdict(list)
    recordings: list[list[_Trace]] = []
    for file in files:
        name = parse_trace_name(file.entry.path)
        rank = file.rank if file.rank is not None else name.rank
        trace = _Trace(file.entry, name, rank, file.run if file.rank is not None else None)
        if trace.rank is None:
            recordings.append([trace])
        else:
            family = name.family if name.at_ns is None else ""
            groups[directory_of(file.entry.path), family].append(trace)
    for group in groups.values():
        recordings += _recordings(group)
    captures = [*_joined(recordings)]
    return replace(earlier, captures=(*earlier.captures, *captures))


def _joined(recordings: Sequence[list[_Trace]]) -> Iterator[Capture]:
    """The captures of recordings: those of ranks with a directory each are one."""
    parts = [part for recording in recordings for part in _part_of_run(recording)]
    is_joined: set[FileEntry] = set()
    for directory, joined in join_directories(parts):
        traces = [trace for part in joined for trace in part.traces]
        is_joined.update(trace.entry for trace in traces)
        yield _capture(traces, "/".join(directory) or ".")
    for recording in recordings:
        if recording[0].entry not in is_joined:
            yield _capture(recording, directory_of(recording[0].entry.path))


def _part_of_run(recording: list[_Trace]) -> Iterator[RankRecording[_Trace]]:
    """A recording that may be of some ranks of a run; nothing if the files do not say so."""
    directory = directory_of(recording[0].entry.path)
    runs = [trace.run for trace in recording if trace.run is not None]
    ranks = tuple(trace.rank for trace in recording if trace.rank is not None)
    if directory != "." and len(runs) == len(ranks) == len(recording):
        first = min(runs, key=lambda run: run.start_ns)
        if all(run.group == first.group and run.world_size == first.world_size for run in runs):
            names = tuple(directory.split("/"))
            yield RankRecording(names, ranks, first, tuple(recording))


def _recordings(traces: list[_Trace]) -> list[list[_Trace]]:
    """Split the traces of several ranks into recordings: each holds every rank once."""
    ordered = sorted(traces, key=lambda trace: (trace.name.at_ns or 0, trace.entry.path))
    by_rank: dict[int | None, list[_Trace]] = defaultdict(list)
    for trace in ordered:
        by_rank[trace.rank].append(trace)
    # Files that were recorded at the same time are of two processes, whatever rank they claim.
    process = {
        trace.entry: (rank, sum(_overlap(other, trace) for other in ranked[:place]))
        for rank, ranked in by_rank.items()
        for place, trace in enumerate(ranked)
    }
    by_process: dict[tuple[int | None, int], list[_Trace]] = defaultdict(list)
    for trace in ordered:
        by_process[process[trace.entry]].append(trace)
    if len({len(ranked) for ranked in by_process.values()}) == 1:
        # Every rank recorded as often: the first of each belong together, and so on.
        paired = [list(recording) for recording in zip(*by_process.values(), strict=True)]
        if all(map(_is_near, paired)):
            return paired
    recordings: list[list[_Trace]] = []
    for trace in ordered:
        last = recordings[-1] if recordings else []
        is_new = process[trace.entry] in {process[other.entry] for other in last}
        if not last or is_new or not _is_near([last[0], trace]):
            recordings.append([trace])
        else:
            last.append(trace)
    return recordings


def _overlap(first: _Trace, second: _Trace) -> bool:
    """Whether one began before the other was written, or both began at the same moment.

    Files of one worker, which has a process, don't overlap.
    """
    if first.run is None or second.run is None or first.name.worker == second.name.worker:
        return False
    begun = sorted((first.run.start_ns, second.run.start_ns))
    written_ns = min(first.name.at_ns or 0, second.name.at_ns or 0)
    return begun[1] - begun[0] < _MOMENT_NS or 0 < written_ns - begun[1] < _MAX_SPAN_NS


def _is_near(traces: list[_Trace]) -> bool:
    times = [trace.name.at_ns or 0 for trace in traces]
    return max(times) - min(times) <= _MAX_SPAN_NS


def _capture(traces: list[_Trace], run: str) -> Capture:
    first = min(traces, key=lambda trace: (trace.name.at_ns or 0, trace.entry.path))
    if first.name.at_ns is not None:
        session = session_label(first.name.at_ns)
    else:
        session = first.name.worker if len(traces) == 1 else first.name.family
    files = [profile_file(trace.entry, trace.rank, trace.name.host) for trace in traces]
    return make_capture(run, session, "kineto", files)


def _reader(slicing: Slicing | None = None) -> Reader:
    from tb_perfadvisor.ingest.kineto.reader import read_kineto

    return reader_of_documents(partial(read_kineto, slicing=slicing))


KINETO = Format(
    name="kineto",
    label="PyTorch trace",
    claims=lambda path: _TRACE.search(path) is not None,
    sniff=_sniff,
    group=_group,
    reader=_reader,
    slicing_reader=_reader,
    least_sliced_bytes=30_000_000,
    framework="pytorch",
)
