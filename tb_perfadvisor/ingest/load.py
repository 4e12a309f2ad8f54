"""Loads a capture: all its files, into one run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import BinaryIO

from tb_perfadvisor.errors import PerfAdvisorError, UnreadableProfileError
from tb_perfadvisor.ingest.discovery import Capture, Format, Listing, ProfileFile
from tb_perfadvisor.ingest.files import open_file
from tb_perfadvisor.ingest.naming import stem_of
from tb_perfadvisor.trace import Note, Run, Source, Trace

Progress = Callable[[str, float], None]
Read = Callable[[], Trace]

_MAX_RANKS_NAMED = 8


def start_reading(
    listing: Listing, capture: Capture, executor: Executor | None = None
) -> tuple[Read, ...]:
    """One call per worker of a capture that returns its trace.

    Args:
        listing: The listing that the capture is of.
        capture: What to read.
        executor: Where reading starts at once; without one each call reads when it is made.
    """
    if executor is None:
        return tuple(partial(load_worker, listing.root, capture, own) for own in capture.workers)
    return tuple(_elsewhere(executor, listing.root, capture, own) for own in capture.workers)


def _elsewhere(
    executor: Executor, root: str, capture: Capture, files: tuple[ProfileFile, ...]
) -> Read:
    try:
        future: Future[Trace] = executor.submit(load_worker, root, capture, files)
    except BrokenExecutor as error:
        future = Future()
        future.set_exception(error)

    def read() -> Trace:
        try:
            return future.result()
        except BrokenExecutor as error:
            raise UnreadableProfileError(
                "a process that read files was ended, most likely for lack of memory.",
                where=files[0].path,
                hint="Try with fewer workers.",
            ) from error

    return read


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
    traces: list[Trace] = []
    notes: list[Note] = []
    errors: list[PerfAdvisorError] = []
    for index, (own, read) in enumerate(zip(capture.workers, reads, strict=True)):
        file = own[0]
        if progress is not None:
            progress(f"reading {file.path}", index / len(capture.workers))
        try:
            traces.append(read())
        except PerfAdvisorError as error:
            errors.append(error)
            message = f"{file.path} was left out: {error.message}"
            notes.append(Note("unsupported-file", "warning", message, error.hint))
    if not traces:
        raise _all_unreadable(capture, errors)
    if progress is not None:
        progress("read", 1.0)
    traces = _with_distinct_hosts(traces)
    traces.sort(key=_order)
    return Run(
        id=capture.id,
        name=_name(listing.root, capture),
        session=capture.session,
        traces=tuple(traces),
        notes=(*notes, *_notes_on_ranks(traces), *_notes_on_others(capture)),
    )


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


def load_worker(root: str, capture: Capture, files: tuple[ProfileFile, ...]) -> Trace:
    """Read what one worker of a capture recorded.

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
        from tb_perfadvisor.ingest.tftools.reader import read_tf_tools

        return read_tf_tools({one.path: partial(_open, root, one) for one in files}, source)
    with _open(root, file) as stream:
        return _reader(capture.format)(stream, source)


def _reader(format: Format) -> Callable[[BinaryIO, Source], Trace]:
    """The reader of a format, imported when it is needed: all take as long as a small file."""
    if format == "kineto":
        from tb_perfadvisor.ingest.kineto.reader import read_kineto

        return read_kineto
    if format == "chrome":
        from tb_perfadvisor.ingest.chrome.reader import read_chrome

        return read_chrome
    from tb_perfadvisor.ingest.xplane.reader import read_xplane

    return read_xplane


def _open(root: str, file: ProfileFile) -> AbstractContextManager[BinaryIO]:
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


def _order(trace: Trace) -> tuple[bool, int, str, str]:
    source = trace.source
    return (source.rank is None, source.rank or 0, source.host, source.path)


def _with_distinct_hosts(traces: list[Trace]) -> list[Trace]:
    """Name hosts apart where neither name nor rank tells two workers apart.

    Containers often have equal hostnames; the names of the files then differ.
    """
    result = []
    seen: Counter[tuple[int | None, str]] = Counter()
    counts = Counter((trace.source.rank, trace.source.host) for trace in traces)
    for trace in traces:
        source = trace.source
        key = (source.rank, source.host)
        if counts[key] > 1:
            stem = stem_of(source.path)
            seen[key] += 1
            host = stem if stem != source.host and source.rank is None else source.host
            if host == source.host or (source.rank, host) in counts:
                host = f"{source.host or 'worker'} ({seen[key]})"
            trace = replace(trace, source=replace(source, host=host))
        result.append(trace)
    return result


def _notes_on_ranks(traces: list[Trace]) -> tuple[Note, ...]:
    world_size = max((trace.source.world_size or 0 for trace in traces), default=0)
    ranks = {trace.source.rank for trace in traces if trace.source.rank is not None}
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
