"""Files into which a tool has merged the traces of several ranks.

A profiler records one process, so a file in which several processes launch device work was merged.
Tools name the processes of each rank after it (`RANK 0 - CPU`, `RANK 0 - GPU` by TraceLens). Then
the ranks can be told apart, and each becomes a trace of its own.

Processes that append to the same file, as ranks of a server do, and files that were joined leave
one document after another. A listing reads only the beginning of a file, so they are one capture:
its workers are the documents of the first recording, and the others are named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec.structs import replace

from tb_perfadvisor.note import Note
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import EventKind, Source, Trace
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.retimed import part_of

_RANK = regex(r"\brank[\s_:#=-]*(\d{1,7})\b", re.IGNORECASE)


def rank_in(process: str) -> int | None:
    """The rank that the name of a process states; None if it states none."""
    found = _RANK.search(process)
    return int(found[1]) if found else None


def is_merged(processes: Iterable[str]) -> bool:
    """Whether processes are named after several ranks."""
    return len({rank for name in processes if (rank := rank_in(name)) is not None}) > 1


def split_by_rank(trace: Trace) -> tuple[Trace, ...]:
    """The trace of each rank in a merged trace, in order; of another one, the trace itself."""
    names = _processes(trace)
    if not is_merged(names):
        return (with_merge_note(trace),)
    ranks = [rank_in(name) for name in names]
    rank_of_track = np.array([-1 if rank is None else rank for rank in ranks], dtype=np.int64)
    present = [rank for rank in distinct(rank_of_track).tolist() if rank >= 0]
    note = Note(
        "merged-file",
        "info",
        f"{trace.source.path} holds the merged traces of {len(present)} ranks. They are analyzed "
        "one by one.",
    )
    is_complete = present == list(range(len(present)))
    world_size = trace.source.world_size or (len(present) if is_complete else None)
    parts = []
    for rank in present:
        part = part_of(trace, rank_of_track == rank)
        source = replace(part.source, rank=rank, world_size=world_size)
        parts.append(replace(part, source=source, notes=(*part.notes, note)))
    return tuple(parts)


def with_merge_note(trace: Trace) -> Trace:
    """The trace as it is; if it was merged, with a note that it is analyzed as one process."""
    launches = trace.rows(EventKind.LAUNCH)
    launching = distinct(trace.tracks.process[trace.events.track[launches]])
    if len(launching) < 2 and not is_merged(_processes(trace)):
        return trace
    note = Note(
        "merged-file",
        "warning",
        f"{trace.source.path} holds the merged traces of several processes. They are analyzed as "
        "one, so what one of them does may be taken for the reason why another one waits.",
        "Analyze the unmerged files of all ranks, in one directory.",
    )
    return replace(trace, notes=(*trace.notes, note))


def _processes(trace: Trace) -> list[str]:
    """The name of each track's process."""
    return [trace.text(process) for process in trace.tracks.process.tolist()]


def recorded_together(documents: Sequence[tuple[Source, int]]) -> list[int]:
    """The documents that were recorded with the first: other ranks, or at the same time.

    Each is given by its source and its duration in nanoseconds.
    """
    together = [0]
    for place, document in enumerate(documents[1:], 1):
        others = [documents[other] for other in together]
        is_new_rank = document[0].rank not in {None, *(source.rank for source, _ in others)}
        if is_new_rank or any(_overlap(*other, *document) for other in others):
            together.append(place)
    return together


def _overlap(first: Source, first_ns: int, second: Source, second_ns: int) -> bool:
    begin_ns, other_ns = first.origin_unix_ns, second.origin_unix_ns
    if begin_ns is None or other_ns is None:
        return second.rank is None  # without a clock, each rank is there once
    return begin_ns < other_ns + second_ns and other_ns < begin_ns + first_ns


def documents_note(path: str, count: int, together: int) -> Note:
    """Says how many documents a file holds, and which are analyzed."""
    message = f"{path} holds {count} documents."
    if together == count:
        message += " Each is analyzed as a worker of its own."
        return Note("several-documents", "info", message)
    message += f" Of these, {count - together} of another time than the first are left out."
    remedy = "Write each recording into a file of its own."
    return Note("several-documents", "warning", message, remedy)
