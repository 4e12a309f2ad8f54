"""Logs of torch.compile, as a format."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import BinaryIO

from msgspec.structs import replace

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.captures import (
    COMPILE_LOG_FORMAT,
    Capture,
    directory_of,
    make_capture,
    profile_file,
)
from tb_perfadvisor.ingest.compile_log.collector import LogCollector, read_records, starts_a_log
from tb_perfadvisor.ingest.files.compression import Inflated
from tb_perfadvisor.ingest.format import (
    Format,
    FoundFile,
    Grouped,
    Reader,
    Sniffed,
    reader_of_one_file,
)
from tb_perfadvisor.ingest.trace_names import rank_of_name, stem_of
from tb_perfadvisor.note import Note
from tb_perfadvisor.trace import Assembler, EventKind, Source, Trace, TrackKind
from tb_perfadvisor.trace.compile_log import CompileLog

# What a compilation, a graph break or a phase is described by.
_ITEMS_OF_RECORD = 8


def read_compile_log(stream: BinaryIO, source: Source) -> Trace:
    """Read the log of one process.

    Args:
        stream: The file, which may be compressed.
        source: Path, run, session and rank; the other fields are filled in here.

    Raises:
        UnreadableProfileError: If the file has no record of torch.compile.
    """
    collected, is_truncated = _collect(stream, source)
    assembler = Assembler()
    name = "torch.compile"
    track = assembler.add_track(TrackKind.HOST_THREAD, process=name, label=name)
    spans = collected.spans
    assembler.add_events(
        spans.start_ns,
        spans.duration_ns,
        kind=EventKind.COMPILE,
        name=assembler.intern_all(spans.names)[spans.name],
        track=track,
    )
    log = collected.finish(source)
    notes = (_CUT,) if is_truncated else ()
    filled = replace(
        source,
        framework="pytorch",
        producer="torch.compile",
        version=log.version,
        rank=log.rank,
    )
    trace = assembler.finish(filled, notes=notes, clock_unix_ns=spans.clock_unix_ns)
    return replace(trace, compile_log=log)


def read_records_only(stream: BinaryIO, source: Source) -> CompileLog:
    """Read the log of one process that lies beside a profile.

    Args:
        stream: The file, which may be compressed.
        source: Path and rank.

    Raises:
        UnreadableProfileError: If the file has no record of torch.compile.
    """
    return _collect(stream, source)[0].finish(source)


def _collect(stream: BinaryIO, source: Source) -> tuple[LogCollector, bool]:
    inflated = Inflated(stream, source.path)
    collector = LogCollector()
    for record in read_records(inflated):
        inflated.budget.expect_json(record.header)
        collector.add(record)
        inflated.budget.keep(_ITEMS_OF_RECORD)
    if not collector.count:
        raise UnreadableProfileError(
            "this log has no record of torch.compile.",
            where=source.path,
            hint="Set TORCH_TRACE=DIR before the program starts; it writes one file per process.",
        )
    return collector, inflated.is_truncated


_CUT = Note(
    "truncated-file",
    "warning",
    "The log ends early: its last records are missing.",
    "Copy the file again.",
)


_CLAIMED = re.compile(r"(?:^|/)dedicated_log_torch_trace_[^/]*\.log(?:\.gz)?$")
_RANK = re.compile(rb'"rank": (\d{1,7})[,}]')
_HASH_OF_NAME = re.compile(r"_(?:rank_\d+_)?[a-z0-9_]{8}$")


def _sniff(head: bytes, is_claimed: bool) -> Sniffed | None:
    if not starts_a_log(head):
        return None
    rank = _RANK.search(head)
    return Sniffed(COMPILE_LOG_FORMAT, rank=int(rank[1]) if rank else None)


def _group(files: Sequence[FoundFile], earlier: Grouped) -> Grouped:
    """Attach logs to the profiles of their directory, or of the one above; others stand alone."""
    by_directory: dict[str, list[FoundFile]] = defaultdict(list)
    for file in files:
        by_directory[directory_of(file.entry.path)].append(file)
    with_profiles = earlier.directories
    beside: dict[str, list[FoundFile]] = defaultdict(list)
    alone: list[Capture] = []
    for directory, logs in by_directory.items():
        owner = next(
            (place for place in (directory, directory_of(directory)) if place in with_profiles),
            None,
        )
        if owner is None:
            alone += _captures(directory, logs)
        else:
            beside[owner] += logs
    captures = (
        replace(
            capture,
            compile_logs=tuple(
                profile_file(log.entry, _rank(log))
                for log in beside[directory_of(capture.files[0].path)]
            ),
        )
        if directory_of(capture.files[0].path) in beside
        else capture
        for capture in earlier.captures
    )
    return Grouped((*captures, *alone), earlier.rejected)


def _captures(directory: str, logs: Sequence[FoundFile]) -> list[Capture]:
    """All ranks of a directory together, if each is there once; otherwise each log by itself."""
    ranks = {_rank(log) for log in logs}
    groups = [list(logs)] if None not in ranks and len(ranks) == len(logs) else [[x] for x in logs]
    return [
        make_capture(
            directory,
            _HASH_OF_NAME.sub("", stem) if len(group) > 1 else stem,
            COMPILE_LOG_FORMAT,
            [profile_file(log.entry, _rank(log)) for log in group],
        )
        for group in groups
        if (stem := stem_of(group[0].entry.path).removesuffix(".log"))
    ]


def _rank(log: FoundFile) -> int | None:
    named = rank_of_name(log.entry.path.rsplit("/", 1)[-1])
    return named if named is not None else log.rank


def _reader() -> Reader:
    from tb_perfadvisor.ingest.compile_log.format import read_compile_log

    return reader_of_one_file(read_compile_log)


COMPILE_LOG = Format(
    name=COMPILE_LOG_FORMAT,
    label="log of torch.compile",
    claims=lambda path: _CLAIMED.search(path) is not None,
    sniff=_sniff,
    group=_group,
    reader=_reader,
    framework="pytorch",
)
