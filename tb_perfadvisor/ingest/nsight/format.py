"""Exports of Nsight Systems, as a format."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.captures import (
    ProfileFile,
    directory_of,
    make_capture,
    profile_file,
)
from tb_perfadvisor.ingest.files.tree import FileEntry
from tb_perfadvisor.ingest.format import Format, FoundFile, Grouped, Opener, Reader, Sniffed
from tb_perfadvisor.ingest.kernels.collective_names import with_probable_collectives
from tb_perfadvisor.ingest.nsight.database import (
    METADATA,
    Database,
    metadata_of,
    open_database,
)
from tb_perfadvisor.ingest.nsight.device_work import (
    DeviceWork,
    add_device_work,
    devices_of,
    read_device_work,
)
from tb_perfadvisor.ingest.nsight.host_work import (
    HostCalls,
    Processes,
    add_samples,
    process_of,
    processes_of,
    read_host_calls,
)
from tb_perfadvisor.ingest.nsight.ranges import Ranges, forward_links, read_nccl_calls, read_ranges
from tb_perfadvisor.ingest.trace_names import TraceName, parse_trace_name
from tb_perfadvisor.note import Note
from tb_perfadvisor.trace import Assembler, EventKind, Framework, Source, Trace
from tb_perfadvisor.trace.integer_groups import distinct

RECORD: Final = (
    "nsys profile --trace=cuda,nvtx,osrt --pytorch=autograd-shapes-nvtx --cuda-graph-trace=node"
)
"""The command that records what the analysis can use."""
_WARNINGS: Final = (2, 3)
"""Warnings and errors."""
_MOST_WARNINGS: Final = 3
_MOST_LETTERS: Final = 300


def notes_of(
    database: Database, work: DeviceWork, processes: Processes, *, has_operators: bool
) -> tuple[Note, ...]:
    """All notes, in descending order of severity."""
    notes = []
    if not work.process.size:
        notes.append(
            Note(
                "empty-profile",
                "error",
                "Nsight Systems recorded no work of a GPU.",
                f"Record with `{RECORD}`.",
            )
        )
    elif not work.kernels["start"].size and not work.graphs["start"].size:
        notes.append(
            Note(
                "no-kernels",
                "warning",
                "Nsight Systems recorded copies and fills, but no kernel: the program had not begun"
                " its work, or the recording ended before.",
                "Record longer, and after the start of the program.",
            )
        )
    if work.graphs["start"].size:
        notes.append(
            Note(
                "whole-graphs",
                "warning",
                f"{work.graphs['start'].size:,} launches of CUDA graphs were recorded as a whole, "
                "so the kernels inside of them are unknown.",
                "Record with `--cuda-graph-trace=node`.",
            )
        )
    elif work.process.size and not has_operators:
        notes.append(
            Note(
                "no-operators",
                "info",
                "The recording has no operators, so kernels are known by their names only.",
                "For a PyTorch program, record with `--pytorch=autograd-shapes-nvtx`.",
            )
        )
    if processes.ranks and not processes.are_ranks_stated:
        notes.append(
            Note(
                "numbered-ranks",
                "info",
                f"{len(processes.ranks)} processes use GPUs. Their ranks are not recorded: they "
                "are numbered in the order of their GPUs.",
            )
        )
    return (*notes, *_warnings(database))


def _warnings(database: Database) -> list[Note]:
    """What Nsight Systems itself says is missing."""
    rows = database.rows("DIAGNOSTIC_EVENT", {"severity": int, "text": str})
    texts = [*dict.fromkeys(text for severity, text in rows if severity in _WARNINGS and text)]
    return [
        Note("recorder-warning", "info", f"Nsight Systems: {text[:_MOST_LETTERS]}")
        for text in texts[:_MOST_WARNINGS]
    ]


_RUNTIME: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_OPERATING_SYSTEM: Final = "OSRT_API"
# Tables that only recordings have.
_EVENTS: Final = (
    *("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"),
    *("CUPTI_ACTIVITY_KIND_MEMCPY", "NVTX_EVENTS"),
)


def read_nsight(files: Mapping[str, Opener], source: Source) -> Trace:
    """Read an export.

    Args:
        files: What opens the database, and SQLite's log beside it, if there is one.
        source: What the path says; the file's own statements are added.

    Raises:
        UnreadableProfileError: If it is no export, or a damaged one.
    """
    with open_database(files) as database:
        metadata = metadata_of(database)
        tables = (*_EVENTS, _RUNTIME, _OPERATING_SYSTEM, *METADATA, "TARGET_INFO_GPU")
        if not any(map(database.has, tables)):
            raise UnreadableProfileError(
                "the database has no table of Nsight Systems.",
                where=source.path,
                hint="Export a recording with `nsys export --type sqlite FILE.nsys-rep`.",
            )
        return _assemble(database, metadata, source)


def _assemble(database: Database, metadata: Mapping[str, str], source: Source) -> Trace:
    assembler = Assembler()
    work, ranges = read_device_work(database), read_ranges(database, assembler)
    calls, nccl = read_host_calls(database), read_nccl_calls(database)
    processes = processes_of(database, work.process, work.device, nccl.ranks)
    threads = _threads_of_interest(calls, ranges)
    for table, found in calls.items():
        chosen = np.ones(found.start_ns.size, dtype=bool)
        if table == _OPERATING_SYSTEM:
            # Background threads wait all the time.
            chosen = np.isin(found.thread, threads)
        _add_calls(assembler, found, processes, chosen)
    _add_ranges(assembler, ranges, processes)
    add_samples(assembler, database, processes, threads)
    runtime = calls.get(_RUNTIME)
    launches = {
        "correlation": np.empty(0, np.int64),
        "start": np.empty(0, np.int64),
        "thread": np.empty(0, np.int64),
        "is_stream_wait": np.empty(0, bool),
    }
    if runtime is not None:
        owner = process_of(runtime.thread)
        launches = {
            "correlation": processes.correlations(runtime.correlation, owner),
            "start": runtime.start_ns,
            "thread": runtime.thread,
            "is_stream_wait": runtime.is_stream_wait,
        }
    add_device_work(assembler, database, work, processes, nccl, launches)
    has_operators = bool((ranges.kind == EventKind.OPERATOR).any())
    source = replace(
        source,
        framework=_framework(ranges, assembler.strings),
        producer="Nsight Systems",
        version=metadata.get("EXPORT_PRODUCT_VERSION", ""),
        host=source.host or metadata.get("EXPORT_HOST", ""),
        backend="nccl" if nccl.operation else source.backend,
        has_shapes=bool((ranges.shapes >= 0).any()) if has_operators else None,
        is_synthetic="EXPORT_SYNTHETIC" in metadata,
    )
    devices = devices_of(database, work.device)
    notes = notes_of(database, work, processes, has_operators=has_operators)
    clock_unix_ns = _clock(database)
    del work, ranges, calls
    trace = assembler.finish(source, devices=devices, notes=notes, clock_unix_ns=clock_unix_ns)
    return with_probable_collectives(trace)


_PYTORCH: Final = re.compile(r"at::native|c10::|aten::|triton_(?:poi|red|per)_")
_TENSORFLOW: Final = re.compile(r"tensorflow::")
_XLA: Final = re.compile(r"(?:TSL|XlaModule|Xla|Thunk):|PjitFunction|jit_\w+$")


def _framework(ranges: Ranges, names: Sequence[str]) -> Framework:
    """The framework, by the names of operators, ranges and kernels."""
    if (ranges.kind == EventKind.OPERATOR).any():
        return "pytorch"
    signs: tuple[tuple[Framework, re.Pattern[str]], ...] = (
        ("pytorch", _PYTORCH),
        ("tensorflow", _TENSORFLOW),
        ("jax", _XLA),
    )
    return next(
        (name for name, sign in signs if any(map(sign.search, names))),
        "unknown",
    )


def _threads_of_interest(calls: Mapping[str, HostCalls], ranges: Ranges) -> NDArray[np.int64]:
    """Threads that use a device or have named ranges."""
    runtime = [calls[_RUNTIME].thread] if _RUNTIME in calls else []
    return distinct(np.concatenate([*map(distinct, runtime), distinct(ranges.thread)]))


def _add_calls(
    assembler: Assembler, calls: HostCalls, processes: Processes, chosen: NDArray[np.bool_]
) -> None:
    thread = calls.thread[chosen]
    assembler.add_events(
        calls.start_ns[chosen],
        (calls.end_ns - calls.start_ns)[chosen],
        kind=calls.kind[chosen],
        name=assembler.intern_all([*calls.names])[calls.name[chosen]],
        track=processes.host_tracks(assembler, thread),
        correlation=processes.correlations(calls.correlation[chosen], process_of(thread)),
    )


def _add_ranges(assembler: Assembler, ranges: Ranges, processes: Processes) -> None:
    row_of = np.empty(ranges.name.size, dtype=np.int32)
    for chosen, what in (
        (~ranges.may_cross, ""),
        # They get tracks of their own, so that all others stay nested.
        (ranges.may_cross, "ranges of "),
    ):
        rows = assembler.add_events(
            ranges.start_ns[chosen],
            ranges.duration_ns[chosen],
            kind=ranges.kind[chosen],
            name=ranges.name[chosen],
            track=processes.host_tracks(assembler, ranges.thread[chosen], what),
            step=ranges.step[chosen],
        )
        row_of[chosen] = rows
        shapes, sequence = ranges.shapes[chosen], ranges.sequence[chosen]
        has_any = (shapes >= 0) | (sequence >= 0)
        assembler.add_operators(rows[has_any], shapes=shapes[has_any], sequence=sequence[has_any])
    backward, forward = forward_links(ranges, assembler.strings)
    assembler.link_forward(row_of[backward], row_of[forward])


def _clock(database: Database) -> int | None:
    """Wall-clock time at 0 of the export's clock, which counts from the start of the session."""
    table = "TARGET_INFO_SESSION_START_TIME"
    if not database.has(table, "utcEpochNs"):
        return None
    found = database.integers(table, {"at": "utcEpochNs"})["at"]
    return int(found[0]) if found.size == 1 and found[0] > 0 else None


_ENDING = re.compile(r"\.sqlite(?:\.gz)?$")
_LOG_ENDING = "-wal"
"""SQLite's write-ahead log beside a database: changes that are not in the database yet."""
_LOG = re.compile(rf"\.sqlite{_LOG_ENDING}$")
# Tables that only Nsight Systems writes. The definitions of those that it fills first stand at the
# beginning of the file; its texts may lie between them and the others.
_TABLES = re.compile(
    rb"\ASQLite format 3\0.*?(?:CUPTI_ACTIVITY_KIND_(?:KERNEL|RUNTIME|MEMCPY|GRAPH_TRACE)"
    rb"|ENUM_NSYS_|TABLE ['\"]?(?:NVTX_EVENTS|OSRT_API|META_DATA_EXPORT|EXPORT_META_DATA"
    rb"|ProcessStreams|TARGET_INFO_(?:GPU|SYSTEM_ENV|SESSION_START_TIME))\b)",
    re.DOTALL,
)
# Nvidia's older profilers have databases with other tables of similar names.
_OLDER = re.compile(rb"CUPTI_ACTIVITY_KIND_(?:MARKER|DEVICE|DRIVER)\b|StringTable")
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


def _reader() -> Reader:
    from tb_perfadvisor.ingest.nsight.format import read_nsight

    return read_nsight


NSIGHT = Format(
    name="nsight",
    label="Nsight Systems export",
    claims=lambda path: _LOG.search(path) is not None,
    sniff=_sniff,
    group=_group,
    reader=_reader,
)
