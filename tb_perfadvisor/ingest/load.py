"""Loads a capture: all its files, into one run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.errors import PerfAdvisorError, UnreadableProfileError
from tb_perfadvisor.ingest.discovery import Capture, Format, Listing, ProfileFile
from tb_perfadvisor.ingest.files.local_and_remote import open_file
from tb_perfadvisor.ingest.naming import stem_of
from tb_perfadvisor.trace import LazyTraces, Note, Run, Source, Trace

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

Progress = Callable[[str, float], None]
Reader = Callable[[BinaryIO, Source], Trace]
Digest = Callable[[Trace], Any]
"""Makes of a trace what is held of a worker whose trace is not; it goes to other processes."""

_MAX_RANKS_NAMED = 8
KEPT_TRACES = 4
"""Workers of a capture whose traces stay in memory. Of more than these only the digests do, and
a trace that is wanted again is read again: one of many."""


class Worker(Struct, frozen=True):
    """What is held of one worker of a capture."""

    source: Source
    digest: Any
    """None where none was asked for."""
    trace: Trace | None
    """None where it is read again when it is wanted."""


Read = Callable[[], Worker]


def start_reading(
    listing: Listing,
    capture: Capture,
    executor: Executor | None = None,
    digest: Digest | None = None,
) -> tuple[Read, ...]:
    """One call per worker of a capture that returns what is held of it.

    Args:
        listing: The listing that the capture is of.
        capture: What to read.
        executor: Where reading starts at once; without one each call reads when it is made.
        digest: What to make of each trace where it is read. Without it all traces are kept.
    """
    keeps = digest is None or len(capture.workers) <= KEPT_TRACES
    jobs = [
        partial(read_worker, listing.root, capture, own, digest, keeps) for own in capture.workers
    ]
    if executor is None:
        return tuple(jobs)
    return tuple(
        _elsewhere(executor, job, own[0].path)
        for job, own in zip(jobs, capture.workers, strict=True)
    )


def _elsewhere(executor: Executor, job: Read, path: str) -> Read:
    from concurrent.futures import BrokenExecutor, Future

    try:
        future: Future[Worker] = executor.submit(job)
    except BrokenExecutor as error:
        future = Future()
        future.set_exception(error)

    def read() -> Worker:
        try:
            return future.result()
        except BrokenExecutor as error:
            raise ended_early(path) from error

    return read


def ended_early(path: str) -> UnreadableProfileError:
    """The error for a file whose reader was ended from outside."""
    return UnreadableProfileError(
        "a process that read files was ended, most likely for lack of memory.",
        where=path,
        hint="Try with fewer workers.",
    )


def load_capture(
    listing: Listing,
    capture: Capture,
    progress: Progress | None = None,
    *,
    reads: Sequence[Read] | None = None,
) -> Run:
    """Read all files of a capture.

    Args:
        listing: The listing that the capture is of.
        capture: What to load.
        progress: Called with what is being done and how much of it is, from 0 to 1.
        reads: What `start_reading` returned, if it was called before.

    Returns:
        The traces in order of rank, then host; unreadable files among readable ones are notes.

    Raises:
        UnreadableProfileError: When no file can be read.
    """
    if reads is None:
        reads = start_reading(listing, capture)
    workers: list[tuple[Worker, tuple[ProfileFile, ...]]] = []
    notes: list[Note] = []
    errors: list[PerfAdvisorError] = []
    for index, (own, read) in enumerate(zip(capture.workers, reads, strict=True)):
        file = own[0]
        if progress is not None:
            progress(f"reading {file.path}", index / len(capture.workers))
        try:
            workers.append((read(), own))
        except PerfAdvisorError as error:
            errors.append(error)
            message = f"{file.path} was left out: {error.message}"
            notes.append(Note("unsupported-file", "warning", message, error.hint))
    if not workers:
        raise _all_unreadable(capture, errors)
    if progress is not None:
        progress("read", 1.0)
    hosts_apart = _with_distinct_hosts([worker.source for worker, _ in workers])
    placed = sorted(zip(hosts_apart, workers, strict=True), key=lambda one: _order(one[0]))
    sources, workers = [source for source, _ in placed], [worker for _, worker in placed]
    return Run(
        id=capture.id,
        name=_name(listing.root, capture),
        session=capture.session,
        traces=_traces(listing.root, capture, sources, workers),
        notes=(*notes, *_notes_on_ranks(sources), *_notes_on_others(capture)),
        summaries=tuple(one.digest for one, _ in workers if one.digest is not None),
    )


def _traces(
    root: str,
    capture: Capture,
    sources: Sequence[Source],
    workers: Sequence[tuple[Worker, tuple[ProfileFile, ...]]],
) -> Sequence[Trace]:
    kept = [
        replace(worker.trace, source=source)
        for (worker, _), source in zip(workers, sources, strict=True)
        if worker.trace is not None
    ]
    if len(kept) == len(workers):
        return tuple(kept)
    return LazyTraces(sources, [partial(load_worker, root, capture, files) for _, files in workers])


def _notes_on_others(capture: Capture) -> tuple[Note, ...]:
    if not capture.beside:
        return ()
    return (
        Note(
            "other-results",
            "info",
            f"Beside the events lie results of TensorFlow's tools ({', '.join(capture.beside)}): "
            "sums of the same recording, which are not read.",
        ),
    )


def _name(root: str, capture: Capture) -> str:
    """The run's name; for the root itself the name of its folder, which says more than a dot."""
    if capture.run != ".":
        return capture.run
    return PurePosixPath(root.replace(os.sep, "/")).name or "."


def read_worker(
    root: str,
    capture: Capture,
    files: tuple[ProfileFile, ...],
    digest: Digest | None,
    keeps_trace: bool,
    reader: Reader | None = None,
) -> Worker:
    """Read what one worker of a capture recorded, and make its digest.

    Raises:
        PerfAdvisorError: When it cannot be read.
    """
    trace = load_worker(root, capture, files, reader)
    made = digest(trace) if digest is not None else None
    return Worker(trace.source, made, trace if keeps_trace else None)


def load_worker(
    root: str, capture: Capture, files: tuple[ProfileFile, ...], reader: Reader | None = None
) -> Trace:
    """Read what one worker of a capture recorded, with a reader of one's own or the format's.

    Raises:
        PerfAdvisorError: When it cannot be read.
    """
    file = files[0]
    source = Source(
        path=file.path,
        format=capture.format,
        run=capture.run,
        session=capture.session,
        host=file.host,
        rank=file.rank,
    )
    if capture.format == "tf-tools":
        from tb_perfadvisor.ingest.tf_tools.reader import read_tf_tools

        return read_tf_tools({one.path: partial(open_profile, root, one) for one in files}, source)
    with open_profile(root, file) as stream:
        return (reader or reader_of(capture.format))(stream, source)


def reader_of(format: Format) -> Reader:
    """The reader of a format, imported when it is needed: all take as long as a small file."""
    if format == "kineto":
        from tb_perfadvisor.ingest.kineto.reader import read_kineto

        return read_kineto
    if format == "chrome":
        from tb_perfadvisor.ingest.chrome.reader import read_chrome

        return read_chrome
    from tb_perfadvisor.ingest.xplane.reader import read_xplane

    return read_xplane


def open_profile(root: str, file: ProfileFile) -> AbstractContextManager[BinaryIO]:
    """A file of a listing, opened."""
    return open_file(root, file.path, version=file.version, size_bytes=file.size_bytes)


def _all_unreadable(capture: Capture, errors: list[PerfAdvisorError]) -> PerfAdvisorError:
    if len(errors) == 1:
        return errors[0]
    reasons = Counter(error.message for error in errors)
    message, count = reasons.most_common(1)[0]
    what = "all" if count == len(errors) else f"{count}"
    return UnreadableProfileError(
        f"none of its {len(errors)} files can be read; of {what}: {message}",
        where=f"{capture.run}/{capture.session}",
        hint=errors[0].hint,
    )


def _order(source: Source) -> tuple[bool, int, str, str]:
    return (source.rank is None, source.rank or 0, source.host, source.path)


def _with_distinct_hosts(sources: Sequence[Source]) -> list[Source]:
    """Name hosts apart where neither name nor rank tells two workers apart.

    Containers often have equal hostnames; the names of the files then differ.
    """
    result = []
    seen: Counter[tuple[int | None, str]] = Counter()
    counts = Counter((source.rank, source.host) for source in sources)
    for source in sources:
        key = (source.rank, source.host)
        if counts[key] > 1:
            stem = stem_of(source.path)
            seen[key] += 1
            host = stem if stem != source.host and source.rank is None else source.host
            if host == source.host or (source.rank, host) in counts:
                host = f"{source.host or 'worker'} ({seen[key]})"
            source = replace(source, host=host)
        result.append(source)
    return result


def _notes_on_ranks(sources: Sequence[Source]) -> tuple[Note, ...]:
    world_size = max((source.world_size or 0 for source in sources), default=0)
    ranks = {source.rank for source in sources if source.rank is not None}
    missing = sorted(set(range(world_size)) - ranks) if world_size <= 10**6 else []
    if not ranks or not missing:
        return ()
    named = ", ".join(map(str, missing[:_MAX_RANKS_NAMED]))
    more = len(missing) - _MAX_RANKS_NAMED
    if more > 0:
        named += f" and {more} more"
    return (
        Note(
            "missing-ranks",
            "warning",
            f"{len(ranks)} of {world_size} ranks are here; missing: {named}. What a rank waits "
            "for the others cannot be told from its transfers.",
            "Record all ranks in the same steps and put their traces into one directory.",
        ),
    )
