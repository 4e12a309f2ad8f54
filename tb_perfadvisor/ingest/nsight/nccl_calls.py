"""NCCL's calls as NVTX ranges, with the sizes and groups that their payloads state.

NCCL names each call (`ncclAllReduce`) and describes its arguments as a payload, whose layout is a
table of the export. `nsys export --include-blobs true` writes the payloads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.ingest.nsight.database import Database, Kind, of_type
from tb_perfadvisor.ingest.nsight.processes import process_of

Int64 = NDArray[np.int64]

_CALLS: Final = {
    "AllReduce": "all-reduce",
    "AllGather": "all-gather",
    "ReduceScatter": "reduce-scatter",
    "AlltoAll": "all-to-all",
    "AllToAll": "all-to-all",
    "Broadcast": "broadcast",
    "Bcast": "broadcast",
    "Reduce": "reduce",
    "Gather": "gather",
    "Scatter": "scatter",
    "Send": "send",
    "Recv": "recv",
}
NCCL_NAME: Final = re.compile(rf"p?nccl(?:(?P<call>{'|'.join(_CALLS)})|CommInit\w+)$")
# nvToolsExtPayload.h: bytes of the types of payload entries that NCCL uses.
_ENTRY_BYTES: Final = {5: 4, 18: 8, 22: 8}
# Domain, schema, size of the payload, and where it ends: 8 bytes each.
_HEADER_BYTES: Final = 32
_GROUP, _SIZE, _MEMBERS, _RANK = (
    *("NCCL communicator ID", "Message size [bytes]"),
    *("No. of ranks", "Rank"),
)

Schemas = Mapping[int, tuple[tuple[str, int, int], ...]]
"""Name, place and size of the entries of each schema."""


class NcclCalls(Struct, frozen=True):
    """Calls that communicate, in order of thread and start; columns of shape (n,)."""

    thread: Int64
    """`globalTid`."""
    start_ns: Int64
    operation: tuple[str, ...]
    size_bytes: Int64
    """Of the message; -1 if unknown."""
    group: NDArray[np.uint64]
    """The communicator's id; 0 if unknown."""
    members: Mapping[int, int]
    """Number of ranks of each communicator."""
    ranks: Mapping[int, int]
    """The rank of each `globalPid` in its largest communicator."""


def read_nccl_calls(database: Database) -> NcclCalls:
    """NCCL's calls.

    Raises:
        UnreadableProfileError: If the database is damaged.
    """
    table = "NVTX_EVENTS"
    names = {
        key: match for key, text in database.strings.items() if (match := NCCL_NAME.match(text))
    }
    calls: list[tuple[int, int, str, int, int]] = []
    members: dict[int, int] = {}
    largest: dict[int, tuple[int, int]] = {}
    if names and database.has(table, "start", "globalTid", "textId"):
        schemas = _schemas(database)
        columns: dict[str, Kind] = {"globalTid": int, "start": int, "textId": int}
        if database.has(table, "binaryData"):
            columns["binaryData"] = bytes
        chosen = f"{of_type('textId', int)} IN ({', '.join(map(str, names))})"
        for rows in database.slices(table, columns, chosen):
            for thread, start, text, *data in rows:
                if thread is None or start is None:
                    continue
                values = _payload(data[0], schemas) if data else {}
                group = values.get(_GROUP, 0)
                if _MEMBERS in values:
                    members[group] = values[_MEMBERS]
                    process = int(process_of(np.int64(thread)))
                    found = (values[_MEMBERS], values.get(_RANK, 0))
                    largest[process] = max(largest.get(process, found), found)
                operation = names[text]["call"]
                if operation:
                    size = values.get(_SIZE, -1)
                    calls.append((thread, start, _CALLS[operation], size, group))
    calls.sort(key=lambda call: call[:2])
    return NcclCalls(
        thread=np.array([call[0] for call in calls], dtype=np.int64),
        start_ns=np.array([call[1] for call in calls], dtype=np.int64),
        operation=tuple(call[2] for call in calls),
        size_bytes=np.array([min(call[3], 2**56) for call in calls], dtype=np.int64),
        group=np.array([call[4] for call in calls], dtype=np.uint64),
        members=members,
        ranks={process: rank for process, (_, rank) in largest.items()},
    )


def _schemas(database: Database) -> Schemas:
    """The entries of each payload schema; of several with one id, the last."""
    found: dict[int, dict[int, tuple[str, int, int]]] = {}
    table = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    columns = {"schemaId": int, "idx": int, "type": int, "name": str, "offset": int}
    for schema, index, kind, name, offset in database.rows(table, columns):
        if kind in _ENTRY_BYTES and name is not None:
            found.setdefault(schema, {})[index] = (name, offset or 0, _ENTRY_BYTES[kind])
    return {schema: tuple(entries.values()) for schema, entries in found.items()}


def _payload(data: Any, schemas: Schemas) -> dict[str, int]:
    """The values of a payload by name; none if it has another form."""
    if isinstance(data, str):  # some versions write hexadecimal digits
        try:
            data = bytes.fromhex(data)
        except ValueError:
            return {}
    if not isinstance(data, bytes) or len(data) < _HEADER_BYTES:
        return {}
    schema, size = (int.from_bytes(data[at : at + 8], "little") for at in (8, 16))
    payload = data[_HEADER_BYTES:][:size]
    return {
        name: int.from_bytes(payload[at : at + width], "little")
        for name, at, width in schemas.get(schema, ())
        if at >= 0 and at + width <= len(payload)
    }
