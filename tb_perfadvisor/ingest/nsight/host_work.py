"""Calls on host threads: of the device's runtime, of the operating system, of libraries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.ingest.host_names import runtime_kind
from tb_perfadvisor.ingest.nsight.database import FINISHED, Database
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import unique_inverse

Int64 = NDArray[np.int64]

_VERSION: Final = re.compile(r"_v\d{4,5}$")
"""`cudaLaunchKernel_v7000`: the release that the call is from."""
_STREAM_WAIT: Final = re.compile(r"^(?:cuda|cu)StreamWait")
# Tables of calls, and what they are if their names say nothing else. Nsight Systems records a call
# of the operating system if it takes at least a microsecond, so nearly all of them are waits.
_TABLES: Final = {
    "CUPTI_ACTIVITY_KIND_RUNTIME": None,
    "OSRT_API": EventKind.PYTHON,
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
    """The calls of each table that the export has.

    Raises:
        UnreadableProfileError: If the database is damaged.
    """
    return {
        table: _read(database, table, kind)
        for table, kind in _TABLES.items()
        if database.has(table, "start", "end", "globalTid")
    }


def _read(database: Database, table: str, kind: EventKind | None) -> HostCalls:
    columns = database.integers(
        table,
        {
            "start": "start",
            "end": "end",
            "thread": "globalTid",
            "correlation": "correlationId" if kind is None else None,
            "name": "nameId" if database.has(table, "nameId") else "textId",
        },
        FINISHED,
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
