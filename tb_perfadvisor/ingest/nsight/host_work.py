"""Calls, processes and samples of an export.

The processes of a recording: their ids, their names, and the rank of each.

Nsight Systems records all processes of a machine, so an export may hold several ranks. Ids of
threads hold those of their processes: `globalTid` is the process in the upper bits, and the
thread's number in the lower 24.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.ingest.files.budget import Budget
from tb_perfadvisor.ingest.host_names import runtime_kind
from tb_perfadvisor.ingest.nsight.database import FINISHED, Database
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import Assembler, EventKind, TrackKind
from tb_perfadvisor.trace.integer_groups import group_rows, unique_inverse

Int64 = NDArray[np.int64]

_VERSION: Final = regex(r"_v\d{4,5}$")
"""`cudaLaunchKernel_v7000`: the release that the call is from."""
_STREAM_WAIT: Final = regex(r"^(?:cuda|cu)StreamWait")
RUNTIME: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
OPERATING_SYSTEM: Final = "OSRT_API"
_LONG: Final = f'"end" - "start" >= 1000 AND {FINISHED}'
"""Calls of the operating system that take at least a microsecond: nearly all of them are waits.
Nsight Systems leaves shorter ones out by default. Recordings that have them have millions, which
together take a thousandth of the time."""
# Tables of calls, and what they are if their names say nothing else.
_TABLES: Final = {
    RUNTIME: None,
    OPERATING_SYSTEM: EventKind.PYTHON,
    "CUBLAS_EVENTS": EventKind.OPERATOR,
    "CUDNN_EVENTS": EventKind.OPERATOR,
    "MPI_COLLECTIVES_EVENTS": EventKind.HOST_COLLECTIVE,
    "MPI_P2P_EVENTS": EventKind.HOST_COLLECTIVE,
    "CUPTI_ACTIVITY_KIND_OVERHEAD": EventKind.OVERHEAD,
    "PROFILER_OVERHEAD": EventKind.OVERHEAD,
}


class HostCalls(Struct, frozen=True):
    """Calls of one table, in its order; columns of shape (n,)."""

    start_ns: Int64
    end_ns: Int64
    thread: Int64
    """`globalTid`."""
    correlation: Int64
    """Of the process; -1 or 0 if unknown."""
    kind: NDArray[np.uint8]
    name: NDArray[np.intp]
    """Place in `names`."""
    names: tuple[str, ...]

    @property
    def is_stream_wait(self) -> NDArray[np.bool_]:
        """Calls that make a stream wait for an event."""
        flags = np.array([bool(_STREAM_WAIT.match(name)) for name in self.names], dtype=bool)
        return flags[self.name]


def read_host_calls(database: Database) -> Mapping[str, HostCalls]:
    """The calls of each table; none of those that the export lacks."""
    return {table: _read(database, table, kind) for table, kind in _TABLES.items()}


def _read(database: Database, table: str, kind: EventKind | None) -> HostCalls:
    columns = database.integers(
        table if database.has(table, "start", "end", "globalTid") else "",
        {
            "start": "start",
            "end": "end",
            "thread": "globalTid",
            "correlation": "correlationId" if kind is None else None,
            "name": "nameId" if database.has(table, "nameId") else "textId",
        },
        _LONG if table == OPERATING_SYSTEM else FINISHED,
    )
    ids, of_call = unique_inverse(columns["name"])
    names = tuple(
        _VERSION.sub("", database.strings.get(each, "")) or "unnamed call" for each in ids.tolist()
    )
    kinds = [runtime_kind(each) if kind is None else kind for each in names]
    return HostCalls(
        start_ns=columns["start"],
        end_ns=columns["end"],
        thread=columns["thread"],
        correlation=columns["correlation"],
        kind=np.array(kinds, dtype=np.uint8)[of_call],
        name=of_call,
        names=names,
    )


_THREAD_BITS = 24
_THREAD_MASK = (1 << _THREAD_BITS) - 1
_ITEMS_OF_TRACK = 8
"""Its labels, and its entries in tables."""
_OFFSET = 2**40
"""Correlation ids have at most 32 bits. Each process counts its own."""


def process_of(thread: Int64) -> Int64:
    """The `globalPid` of each `globalTid`."""
    found: Int64 = thread & ~np.int64(_THREAD_MASK)
    return found


class Processes(Struct, frozen=True):
    """The processes of an export."""

    ids: Int64
    """`globalPid` of those that use a device, in order of rank."""
    ranks: Mapping[int, int]
    """The rank of each of them, if there are several."""
    names: Mapping[int, str]
    """By `globalPid`."""
    threads: Mapping[int, str]
    """Names by `globalTid`."""
    are_ranks_stated: bool
    """Whether the ranks are NCCL's. Otherwise, they are numbered by device."""
    budget: Budget
    """What may be kept of the export."""

    def correlations(self, ids: Int64, process: Int64) -> Int64:
        """Ids that differ between processes; -1 where there is none."""
        place = np.searchsorted(self._sorted, process)
        return np.where(ids > 0, ids + _OFFSET * place, -1)

    @property
    def _sorted(self) -> Int64:
        return np.sort(self.ids)

    def label(self, process: int) -> str:
        """What the tracks of a process are called."""
        name = self.names.get(process, "process")
        number = (process >> _THREAD_BITS) & _THREAD_MASK
        rank = f"rank {self.ranks[process]} " if process in self.ranks else ""
        return f"{rank}{name} ({number})"

    def host_tracks(self, assembler: Assembler, thread: Int64, what: str = "") -> NDArray[np.int32]:
        """The track of each event of a thread; shape (n,).

        `thread` has the `globalTid` of each event. `what` is what the tracks hold, if they are not
        the threads' own.
        """
        threads, of_event = unique_inverse(thread)
        self.budget.keep(_ITEMS_OF_TRACK * threads.size)
        rows = [
            assembler.add_track(
                TrackKind.HOST_THREAD,
                process=self.label(each & ~_THREAD_MASK),
                thread=each & _THREAD_MASK,
                label=what + self.threads.get(each, f"thread {each & _THREAD_MASK}"),
            )
            for each in threads.tolist()
        ]
        return np.array(rows, dtype=np.int32)[of_event]

    def device_tracks(
        self, assembler: Assembler, process: Int64, device: Int64, stream: Int64
    ) -> NDArray[np.int32]:
        """The track of each event of a stream; shape (n,)."""
        first, of_event = group_rows(process, device, stream)
        self.budget.keep(_ITEMS_OF_TRACK * first.size)
        rows = [
            assembler.add_track(
                TrackKind.DEVICE_STREAM,
                process=f"rank {self.ranks[owner]}" if owner in self.ranks else "",
                thread=number,
                device=index,
                label=f"stream {number}",
            )
            for owner, index, number in zip(
                process[first].tolist(), device[first].tolist(), stream[first].tolist(), strict=True
            )
        ]
        return np.array(rows, dtype=np.int32)[of_event]


def processes_of(
    database: Database, process: Int64, device: Int64, nccl_ranks: Mapping[int, int]
) -> Processes:
    """The processes of an export.

    `process` has the `globalPid` of each event on a device, and `device` its device. `nccl_ranks`
    has the rank that NCCL states for each process, as far as known.
    """
    by_device = np.lexsort((device, process))
    ids, first = np.unique(process[by_device], return_index=True)
    users = ids.tolist()
    first_device = dict(zip(users, device[by_device][first].tolist(), strict=True))
    are_stated = bool(users) and sorted(nccl_ranks.get(user, -1) for user in users) == list(
        range(len(users))
    )
    numbers = nccl_ranks if are_stated else first_device
    users.sort(key=lambda user: (numbers[user], user))
    ranks = {user: rank for rank, user in enumerate(users)} if len(users) > 1 else {}
    names = {
        key: name
        for key, name in database.rows("PROCESSES", {"globalPid": int, "name": str})
        if None not in (key, name)
    }
    threads = {
        key: database.strings[name]
        for key, name in database.rows("ThreadNames", {"globalTid": int, "nameId": int})
        if key is not None and name in database.strings
    }
    ids = np.array(users, dtype=np.int64)
    return Processes(ids, ranks, names, threads, are_stated, database.budget)
