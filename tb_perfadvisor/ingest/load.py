"""Loads a capture: all its files, into one run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.errors import (
    InvalidTraceError,
    OutOfMemoryError,
    PerfAdvisorError,
    UnreadableProfileError,
    contained,
    log_bug,
)
from tb_perfadvisor.ingest.captured_graphs import joined_with_captures
from tb_perfadvisor.ingest.captures import Capture, Listing, ProfileFile, WorkerFiles
from tb_perfadvisor.ingest.files.access import ShareRead, open_file
from tb_perfadvisor.ingest.files.tree import first_names, is_url
from tb_perfadvisor.ingest.format import Slicing
from tb_perfadvisor.ingest.formats import format_of
from tb_perfadvisor.ingest.memory_snapshots.format import MEMORY_SNAPSHOT, NAME
from tb_perfadvisor.ingest.merged_ranks import (
    documents_note,
    recorded_together,
    split_by_rank,
    with_merge_note,
)
from tb_perfadvisor.ingest.recorded_facts import read_facts, read_timers
from tb_perfadvisor.ingest.rich_recordings import named_by
from tb_perfadvisor.ingest.trace_names import stem_of
from tb_perfadvisor.note import Note
from tb_perfadvisor.plain_text import printable_name
from tb_perfadvisor.soundness import examined
from tb_perfadvisor.trace import LazyTraces, Run, Source, Trace
from tb_perfadvisor.trace.compile_log import CompileLog
from tb_perfadvisor.trace.rank_summary import RankSummary

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future


Progress = Callable[[str, float], None]
Summarize = Callable[[Trace], RankSummary]
"""Sums up a trace where it is read; must be picklable."""

_MAX_RANKS_NAMED = 8
_MAX_CAPTURES = 64
"""A server captures graphs for some fifty batch sizes, and replays few of them at a time."""
_INFLATED_RATIO = 10
"""JSON traces compress 10 to 40 times."""
MAX_TRACES_IN_MEMORY = 4
"""If a capture has more workers, only their summaries stay in memory. A trace that is wanted again
is read again."""


class Worker(Struct, frozen=True):
    """What was read of one worker of a capture."""

    source: Source
    summary: RankSummary | None
    """None if none was asked for."""
    trace: Trace | None
    """None if it is read again when it is wanted."""
    document: int = 0
    """Which document of its file it is."""
    notes: tuple[Note, ...] = ()
    """On its file."""


Read = Callable[[ShareRead | None], tuple[Worker, ...]]
"""Reads the files of a worker, and meanwhile tells how much was read, if that is known here.
Returns a worker for each document of a file."""


def start_reading(
    listing: Listing,
    capture: Capture,
    executor: Executor | None = None,
    summarize: Summarize | None = None,
    slicing: Slicing | None = None,
) -> tuple[Read, ...]:
    """Start to read a capture.

    Returns one call per worker that returns what was read. With an executor, reading starts at
    once; without one, each call reads when it is made. `summarize` sums up each trace where it is
    read; without it, all traces stay in memory. `slicing` says which processes decode large files,
    if there is no executor.
    """
    keeps_traces = summarize is None or len(capture.workers) <= MAX_TRACES_IN_MEMORY
    jobs = [
        partial(read_worker, listing.root, worker, summarize, keeps_traces)
        for worker in capture.workers
    ]
    if executor is None:
        return tuple(partial(job, slicing=slicing) for job in jobs)
    return tuple(
        _submit(executor, job, worker.files[0].path)
        for job, worker in zip(jobs, capture.workers, strict=True)
    )


def _submit(executor: Executor, job: Callable[[], tuple[Worker, ...]], path: str) -> Read:
    from concurrent.futures import BrokenExecutor, Future

    def read_here(tell: ShareRead | None) -> tuple[Worker, ...]:
        return job()

    try:
        future: Future[tuple[Worker, ...]] = executor.submit(job)
    except OSError:  # no process more can be started
        return read_here
    except BrokenExecutor as error:
        future = Future()
        future.set_exception(error)

    def read(tell: ShareRead | None) -> tuple[Worker, ...]:
        try:
            return future.result()
        except BrokenExecutor as error:
            raise _ended_early(path) from error

    return read


def _ended_early(path: str) -> UnreadableProfileError:
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

    `progress` is called with a stage and a share of it (0-1). `reads` is what `start_reading`
    returned, if it was called before. The traces are in order of rank, then host. A file that
    cannot be read becomes a note if others can.
    """
    if reads is None:
        reads = start_reading(listing, capture)
    workers: list[tuple[Worker, WorkerFiles]] = []
    notes: list[Note] = []
    errors: list[PerfAdvisorError] = []
    for index, (recorded, read) in enumerate(zip(capture.workers, reads, strict=True)):
        file = recorded.files[0]
        tell = _share_of(progress, file.path, index, len(capture.workers))
        if tell is not None:
            tell(0.0)
        try:
            found = [(worker, recorded) for worker in _by_rank(read(tell), recorded)]
        except Exception as raised:
            error = contained(raised, file.path)
            log_bug(error)
            errors.append(error)
            message = f"{file.path} was left out: {error.message}"
            notes.append(Note("unsupported-file", "warning", message, error.hint))
        else:
            workers += found
            notes += found[0][0].notes
    if not workers:
        raise _all_unreadable(capture, errors)
    if progress is not None:
        progress("read", 1.0)
    sources = _with_distinct_hosts([worker.source for worker, _ in workers])
    ordered = sorted(zip(sources, workers, strict=True), key=lambda pair: _order(pair[0]))
    sources, workers = [source for source, _ in ordered], [worker for _, worker in ordered]
    compile_logs, notes_on_logs = read_compile_logs(listing.root, capture)
    return Run(
        id=capture.id,
        name=name_of_run(listing.root, capture.run),
        session=capture.session,
        traces=_traces(listing.root, sources, workers),
        notes=(
            *notes,
            *_claimed_ranks(sources),
            *_missing_ranks(sources),
            *notes_on_logs,
            *_changed(listing.root, capture),
        ),
        summaries=tuple(worker.summary for worker, _ in workers if worker.summary is not None),
        compile_logs=compile_logs,
        timers=read_timers(listing.root, capture, [each.origin_unix_ns for each in sources]),
    )


def _share_of(progress: Progress | None, path: str, index: int, count: int) -> ShareRead | None:
    """Turns the share of one worker that was read into the share of all."""
    if progress is None:
        return None
    return lambda share: progress(f"reading {path}", (index + share) / count)


def _changed(root: str, capture: Capture) -> tuple[Note, ...]:
    """A note if local files are not as they were listed: they were written while they were read."""
    if is_url(root):
        return ()  # the store sends one version of a file
    changed = []
    for file in (*capture.files, *capture.attached):
        with suppress(OSError, ValueError):  # one that is gone was read before
            status = Path(root, file.system_path).stat()
            if (status.st_size, status.st_mtime_ns) != (file.size_bytes, file.mtime_ns):
                changed.append(file.path)
    if not changed:
        return ()
    return (
        Note(
            "file-changed",
            "warning",
            f"{first_names(changed)} changed while it was read, so the report may be incomplete.",
            "Analyze it again when the recording has finished.",
        ),
    )


def _by_rank(workers: Sequence[Worker], recorded: WorkerFiles) -> list[Worker]:
    """The ranks of a trace that holds several; only if it is the only one of its capture."""
    if len(workers) > 1 or workers[0].trace is None or not recorded.is_only:
        return [*workers]
    trace, worker = workers[0].trace, replace(workers[0], summary=None, trace=None)
    del workers  # the whole trace is freed before its parts are examined
    parts = split_by_rank(trace)
    del trace
    if len(parts) > 1:  # what one rank lacks is no matter of another one
        parts = tuple(examined(part) for part in parts)
    return [replace(worker, source=part.source, trace=part) for part in parts]


def _traces(
    root: str,
    sources: Sequence[Source],
    workers: Sequence[tuple[Worker, WorkerFiles]],
) -> Sequence[Trace]:
    traces = [
        replace(worker.trace, source=source)
        for (worker, _), source in zip(workers, sources, strict=True)
        if worker.trace is not None
    ]
    if len(traces) == len(workers):
        return tuple(traces)
    reads = [
        partial(_load_document, root, recorded, worker.document) for worker, recorded in workers
    ]
    return LazyTraces(sources, reads)


def _load_document(root: str, recorded: WorkerFiles, document: int) -> Trace:
    return next(islice(load_worker(root, recorded), document, None))


def name_of_run(root: str, run: str) -> str:
    """The run's name; for the root itself the name of its folder, which says more than a dot."""
    if run != ".":
        return run
    return printable_name(PurePosixPath(root.replace(os.sep, "/")).name) or "."


def read_worker(
    root: str,
    recorded: WorkerFiles,
    summarize: Summarize | None,
    keeps_trace: bool,
    tell: ShareRead | None = None,
    slicing: Slicing | None = None,
) -> tuple[Worker, ...]:
    """Read what one worker of a capture recorded, and sum it up.

    Returns a worker for each document that was recorded with the first. If a further document
    cannot be read, those before it are returned, with a note.
    """
    workers: list[Worker] = []
    documents: list[tuple[Source, int]] = []
    notes: list[Note] = []
    path = recorded.files[0].path
    try:
        for place, trace in enumerate(load_worker(root, recorded, tell, slicing)):
            summary = summarize(trace) if summarize is not None else None
            workers.append(Worker(trace.source, summary, trace if keeps_trace else None, place))
            documents.append((trace.source, trace.duration_ns))
    except Exception as raised:
        # Contain it here, as another process may not be able to unpickle it.
        error = contained(raised, path)
        if not workers or isinstance(error, OutOfMemoryError):
            raise error from (None if error is raised else raised)
        log_bug(error)
        message = f"What follows document {len(workers)} of {path} was left out: {error.message}"
        notes.append(Note("several-documents", "warning", message, error.hint))
    together = recorded_together(documents)
    if len(documents) > 1:
        notes.append(documents_note(path, len(documents), len(together)))
    return tuple(replace(workers[place], notes=tuple(notes)) for place in together)


def load_worker(
    root: str,
    recorded: WorkerFiles,
    tell: ShareRead | None = None,
    slicing: Slicing | None = None,
) -> Iterator[Trace]:
    """Read what one worker of a capture recorded: a trace for each document of its file.

    `tell` is called with the share (0-1) of these files that was read. `slicing` says which
    processes decode a large file.
    """
    files = recorded.files
    source = Source(
        path=files[0].path,
        format=recorded.format,
        run=recorded.run,
        session=recorded.session,
        host=files[0].host,
        rank=files[0].rank,
    )
    format = format_of(recorded.format)
    is_large = _inflated_bytes(files[0]) >= format.least_sliced_bytes
    if format.slicing_reader and slicing and is_large:
        read = format.slicing_reader(slicing)
    else:
        read = format.reader()
    openers, before_bytes = {}, 0
    total_bytes = sum(file.size_bytes for file in files)
    for file in files:
        openers[file.path] = partial(
            open_file, root, file, _share_of_bytes(tell, before_bytes, file.size_bytes, total_bytes)
        )
        before_bytes += file.size_bytes
    try:
        for trace in read(openers, source):
            yield _completed(examined(trace), root, recorded)
    except InvalidTraceError as error:
        error.where = error.where or source.path
        raise


def _inflated_bytes(file: ProfileFile) -> int:
    """About how large a file is when it is inflated."""
    return file.size_bytes * (_INFLATED_RATIO if file.path.endswith(".gz") else 1)


def _completed(trace: Trace, root: str, recorded: WorkerFiles) -> Trace:
    """A trace with what lies beside it."""
    if recorded.snapshot is not None:
        trace = _with_snapshot(trace, root, recorded.snapshot)
    if recorded.rich is not None:
        trace = _with_names(trace, root, recorded, recorded.rich)
    trace = _with_captured(trace, root, recorded)
    if recorded.facts is not None:
        facts, notes = read_facts(root, recorded.facts)
        trace = replace(trace, facts=facts, notes=(*trace.notes, *notes))
    return trace if recorded.is_only else with_merge_note(trace)


def _share_of_bytes(
    tell: ShareRead | None, before_bytes: int, size_bytes: int, total_bytes: int
) -> ShareRead | None:
    """Turns the share of one file that was read into the share of all files of a worker."""
    if tell is None or not total_bytes:
        return None
    return lambda share: tell((before_bytes + share * size_bytes) / total_bytes)


def _with_snapshot(trace: Trace, root: str, file: ProfileFile) -> Trace:
    """A trace with the memory snapshot beside it; one that cannot be read becomes a note."""
    read = MEMORY_SNAPSHOT.reader()
    try:
        found = next(read({file.path: partial(open_file, root, file)}, Source(file.path, NAME)))
    except Exception as raised:
        error = contained(raised, file.path)
        log_bug(error)
        message = f"{file.path} was left out: {error.message}"
        note = Note("unsupported-file", "warning", message, error.hint)
        return replace(trace, notes=(*trace.notes, note))
    return replace(trace, snapshot=found.snapshot, notes=(*trace.notes, *found.notes))


def _with_captured(trace: Trace, root: str, recorded: WorkerFiles) -> Trace:
    """A trace whose replayed kernels know their operators; unreadable recordings become notes."""
    notes: list[Note] = []

    def captures() -> Iterator[Trace]:
        read = format_of(recorded.format).reader()
        for file in recorded.graphs[:_MAX_CAPTURES]:
            source = Source(file.path, recorded.format)
            try:
                yield from read({file.path: partial(open_file, root, file)}, source)
            except Exception as raised:
                error = contained(raised, file.path)
                log_bug(error)
                message = f"{file.path} was left out: {error.message}"
                notes.append(Note("unsupported-file", "warning", message, error.hint))

    joined = joined_with_captures(trace, captures())
    return replace(joined, notes=(*joined.notes, *notes)) if notes else joined


def _with_names(trace: Trace, root: str, recorded: WorkerFiles, file: ProfileFile) -> Trace:
    """A trace with the names of a rich recording; one that cannot be read becomes a note."""
    read = format_of(recorded.format).reader()
    try:
        source = Source(file.path, recorded.format)
        rich = next(read({file.path: partial(open_file, root, file)}, source))
    except Exception as raised:
        error = contained(raised, file.path)
        log_bug(error)
        message = f"{file.path} was left out: {error.message}"
        note = Note("unsupported-file", "warning", message, error.hint)
        return replace(trace, notes=(*trace.notes, note))
    return named_by(trace, rich)


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
    """Rename hosts that have the same name and no ranks, as containers often do.

    They are named after their files, and numbered where a file holds several.
    """
    result = []
    paths = Counter((source.rank, source.path) for source in sources)
    seen: Counter[tuple[int | None, str]] = Counter()
    counts = Counter((source.rank, source.host) for source in sources)
    for source in sources:
        key = (source.rank, source.host)
        if counts[key] > 1:
            stem = stem_of(source.path)
            seen[key] += 1
            host = stem if stem != source.host and source.rank is None else source.host
            is_shared = paths[source.rank, source.path] > 1
            if host == source.host or (source.rank, host) in counts or is_shared:
                host = f"{source.host or 'worker'} ({seen[key]})"
            source = replace(source, host=host)
        result.append(source)
    return result


def _claimed_ranks(sources: Sequence[Source]) -> tuple[Note, ...]:
    """Notes on ranks that several files claim to be, although they were recorded together."""
    by_rank: dict[int, list[str]] = {}
    for source in sources:
        if source.rank is not None:
            by_rank.setdefault(source.rank, []).append(source.path)
    return tuple(
        Note(
            "claimed-rank",
            "warning",
            f"{len(paths)} {'files' if len({*paths}) > 1 else 'documents'} claim to be rank "
            f"{rank}, and were recorded at the same time: {first_names([*dict.fromkeys(paths)])}. "
            "They are shown as workers of their own; what ranks have in common may be wrong.",
            "Check what sets the rank of each process (RANK, init_process_group), and what writes "
            "`distributedInfo` into the files.",
        )
        for rank, paths in by_rank.items()
        if len(paths) > 1
    )


def _missing_ranks(sources: Sequence[Source]) -> tuple[Note, ...]:
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
            f"The files hold {len(ranks)} of {world_size} ranks; missing: {named}. So waiting for "
            "other ranks cannot be told from transfers.",
            "Record all ranks in the same steps and put their traces into one directory.",
        ),
    )


_MOST_LOGS = 16
"""Ranks compile the same code, and a log of a long run has some hundred megabytes."""


def read_compile_logs(
    root: str, capture: Capture
) -> tuple[tuple[CompileLog, ...], tuple[Note, ...]]:
    """The logs beside a capture, and notes on those that were not read."""
    if not capture.compile_logs:
        return (), ()
    from tb_perfadvisor.ingest.compile_log.reader import read_records_only

    logs: list[CompileLog] = []
    notes: list[Note] = []
    for file in capture.compile_logs[:_MOST_LOGS]:
        source = Source(path=file.path, format="", rank=file.rank)
        try:
            with open_file(root, file) as stream:
                logs.append(read_records_only(stream, source))
        except PerfAdvisorError as error:
            message = f"{file.path} was left out: {error.message}"
            notes.append(Note("unsupported-file", "warning", message, error.hint))
    more = len(capture.compile_logs) - _MOST_LOGS
    if more > 0:
        notes.append(
            Note(
                "compile-log",
                "info",
                f"Of {len(capture.compile_logs):,} logs of torch.compile, the first {_MOST_LOGS} "
                "were read.",
            )
        )
    return tuple(logs), tuple(notes)
