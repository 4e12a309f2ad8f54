"""Reads a log into a trace: the compiler's phases as events, and its records as a `CompileLog`."""

from __future__ import annotations

from typing import BinaryIO

from msgspec.structs import replace

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.compile_log.collector import LogCollector
from tb_perfadvisor.ingest.compile_log.records import read_records
from tb_perfadvisor.ingest.files.compression import Inflated
from tb_perfadvisor.note import Note
from tb_perfadvisor.trace import Assembler, EventKind, Source, Trace, TrackKind
from tb_perfadvisor.trace.compile_log import CompileLog

# What a compilation, a graph break or a phase is described by.
_ITEMS_OF_RECORD = 8


def read_compile_log(stream: BinaryIO, source: Source) -> Trace:
    """Read the log of one process.

    The stream may be compressed. `source` has path, run, session and rank; the other fields are
    filled in here.
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

    The stream may be compressed. `source` has path and rank.
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
