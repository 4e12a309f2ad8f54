"""Reads exports of Nsight Systems. An export may hold several ranks, which become traces later."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.format import Opener
from tb_perfadvisor.ingest.nsight.database import (
    METADATA,
    Database,
    metadata_of,
    open_database,
)
from tb_perfadvisor.ingest.nsight.device_work import (
    add_device_work,
    devices_of,
    read_device_work,
)
from tb_perfadvisor.ingest.nsight.host_work import (
    OPERATING_SYSTEM,
    RUNTIME,
    HostCalls,
    Processes,
    process_of,
    processes_of,
    read_host_calls,
)
from tb_perfadvisor.ingest.nsight.notes import notes_of
from tb_perfadvisor.ingest.nsight.ranges import Ranges, forward_links, read_nccl_calls, read_ranges
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import Assembler, EventKind, Framework, Source, Trace
from tb_perfadvisor.trace.integer_groups import distinct

# Tables that only recordings have.
_EVENTS: Final = (
    *("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"),
    *("CUPTI_ACTIVITY_KIND_MEMCPY", "NVTX_EVENTS"),
)


def read_nsight(files: Mapping[str, Opener], source: Source, threads: int = 1) -> Trace:
    """Read an export.

    `files` has what opens the database, and SQLite's log beside it, if there is one. `source` has
    what the path says; the file's own statements are added. `threads` read large tables.
    """
    with open_database(files, threads) as database:
        metadata = metadata_of(database)
        tables = (*_EVENTS, RUNTIME, OPERATING_SYSTEM, *METADATA, "TARGET_INFO_GPU")
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
    # Those that use a device or have named ranges: background threads wait all the time.
    threads = distinct(np.concatenate([distinct(calls[RUNTIME].thread), distinct(ranges.thread)]))
    for table, found in calls.items():
        _add_calls(assembler, found, processes, threads if table == OPERATING_SYSTEM else None)
    _add_ranges(assembler, ranges, processes)
    has_operators = bool((ranges.kind == EventKind.OPERATOR).any())
    has_shapes = bool((ranges.shapes >= 0).any()) if has_operators else None
    runtime = calls[RUNTIME]
    launches = {
        "correlation": processes.correlations(runtime.correlation, process_of(runtime.thread)),
        "start": runtime.start_ns,
        "thread": runtime.thread,
        "is_stream_wait": runtime.is_stream_wait.astype(np.int64),
    }
    # The events are held by the assembler alone, which frees them as it orders them.
    del ranges, calls, runtime, found
    add_device_work(assembler, database, work, processes, nccl, launches)
    del launches
    kernels = len(work.kernels["device"])
    source = replace(
        source,
        framework="pytorch" if has_operators else _framework(assembler.strings, kernels),
        producer="Nsight Systems",
        version=metadata.get("EXPORT_PRODUCT_VERSION", ""),
        host=source.host or metadata.get("EXPORT_HOST", ""),
        backend="nccl" if nccl.operation else source.backend,
        has_shapes=has_shapes,
        is_synthetic="EXPORT_SYNTHETIC" in metadata,
    )
    devices = devices_of(database, work.device)
    may_have_operators = not has_operators and source.framework != "none"
    notes = notes_of(database, work, processes, lacks_operators=may_have_operators)
    clock = _clock(database)
    del work
    return assembler.finish(source, devices=devices, notes=notes, clock_unix_ns=clock)


_PYTORCH: Final = regex(r"at::native|c10::|aten::|triton_(?:poi|red|per)_")
_TENSORFLOW: Final = regex(r"tensorflow::")
_MANY_KERNELS: Final = 20
"""Of so many kernels, a framework would have launched at least one of its own."""
_XLA: Final = regex(r"(?:TSL|XlaModule|Xla|Thunk):|PjitFunction|\bjit_\w+$")


def _framework(names: Sequence[str], kernels: int) -> Framework:
    """The framework, by the names of ranges and kernels; "none" if many kernels show none."""
    signs: tuple[tuple[Framework, re.Pattern[str]], ...] = (
        ("pytorch", _PYTORCH),
        ("tensorflow", _TENSORFLOW),
        ("jax", _XLA),
    )
    unseen: Framework = "none" if kernels >= _MANY_KERNELS else "unknown"
    return next((name for name, sign in signs if any(map(sign.search, names))), unseen)


def _add_calls(
    assembler: Assembler, calls: HostCalls, processes: Processes, threads: NDArray[np.int64] | None
) -> None:
    """Add calls, of all or some threads."""
    chosen = slice(None) if threads is None else np.isin(calls.thread, threads)
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
        (~ranges.may_cross if ranges.may_cross.any() else slice(None), ""),
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
