"""Anonymizes exports of Nsight Systems: writes the tables and columns that are read."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Final

from tb_perfadvisor.ingest.anonymize.names import Names
from tb_perfadvisor.ingest.nsight.database import (
    METADATA,
    Database,
    Kind,
    metadata_of,
    open_database,
)
from tb_perfadvisor.ingest.nsight.ranges import NCCL_NAME, is_operator, spelled

Rename = Callable[[str], str]

_DURING: Final = ("start", "end")
_WHERE: Final = ("deviceId", "streamId", "correlationId", "globalPid")
_CALL: Final = (*_DURING, "globalTid", "nameId")
_NUMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        *(*_DURING, *_WHERE, "demangledName", "shortName", "graphNodeId", "registersPerThread"),
        *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
        *("staticSharedMemory", "dynamicSharedMemory"),
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (*_DURING, *_WHERE, "bytes", "copyKind", "srcKind", "dstKind"),
    "CUPTI_ACTIVITY_KIND_MEMSET": (*_DURING, *_WHERE, "bytes"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (*_DURING, *_WHERE, "graphId"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (*_DURING, *_WHERE),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (*_DURING, "globalTid", "correlationId", "nameId"),
    "OSRT_API": _CALL,
    "CUBLAS_EVENTS": _CALL,
    "CUDNN_EVENTS": _CALL,
    "PROFILER_OVERHEAD": _CALL,
    "CUPTI_ACTIVITY_KIND_OVERHEAD": _CALL,
    "MPI_COLLECTIVES_EVENTS": (*_DURING, "globalTid", "textId"),
    "MPI_P2P_EVENTS": (*_DURING, "globalTid", "textId"),
    "ThreadNames": ("globalTid", "nameId"),
    "GPU_METRICS": ("timestamp", "typeId", "metricId", "value"),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs",),
}
"""Columns of numbers by table."""
_NAME_COLUMNS: Final = ("demangledName", "shortName", "nameId", "textId")
_TYPES: Final[Mapping[str, Kind]] = {"text": str, "binaryData": bytes}
"""Columns of the ranges that are no numbers."""
_METADATA: Final = ("EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")


def anonymize_export(stream: BinaryIO, names: Names, *, where: str) -> bytes:
    """The export without names of the user."""
    with (
        open_database({where: lambda: nullcontext(stream)}) as database,
        tempfile.TemporaryDirectory() as folder,
    ):
        path = Path(folder, "export.sqlite")
        with closing(sqlite3.connect(path)) as target, target:
            _write(database, target, names)
        return path.read_bytes()


def _write(database: Database, target: sqlite3.Connection, names: Names) -> None:
    renames: dict[int, Rename] = {}
    for table, known in _NUMBERS.items():
        columns = [column for column in known if database.has(table, column)]
        if columns:
            rename = _renamer(table, names)
            found = database.integers(table, {column: column for column in columns})
            for column in set(columns) & set(_NAME_COLUMNS):
                used = set(found[column].tolist())
                renames.update(dict.fromkeys(used, rename))
            rows = zip(*(found[column].tolist() for column in columns), strict=True)
            _insert(target, table, columns, [*rows])
    _write_ranges(database, target, names, renames)
    _write_texts(database, target, names)
    strings = [
        (key, renames[key](text)) for key, text in database.strings.items() if key in renames
    ]
    _insert(target, "StringIds", ["id", "value"], strings)


def _write_ranges(
    database: Database, target: sqlite3.Connection, names: Names, renames: dict[int, Rename]
) -> None:
    table = "NVTX_EVENTS"
    known = ("start", "end", "eventType", "globalTid", "textId", "text", "binaryData")
    columns = [column for column in known if database.has(table, column)]
    rows = []
    for row in database.rows(table, {column: _TYPES.get(column, int) for column in columns}):
        values: dict[str, Any] = dict(zip(columns, row, strict=True))
        if values.get("text") is not None:
            values["text"] = _range(values["text"], names)
        key = values.get("textId")
        called = NCCL_NAME.match(database.strings.get(key, "")) if key is not None else None
        if key is not None:
            renames[key] = names.as_written if called else lambda text: _range(text, names)
        if called is None:  # only NCCL's payloads are known to hold numbers alone
            values["binaryData"] = None
        rows.append(tuple(values[column] for column in columns))
    _insert(target, table, columns, rows)


def _range(text: str, names: Names) -> str:
    """A range's name replaced; what PyTorch adds to it stays: numbers and shapes."""
    parts = spelled(text)
    rename = names.operator if is_operator(parts.name, parts.added) else names.marker
    return f"{rename(parts.name)}{parts.added}"


def _renamer(table: str, names: Names) -> Rename:
    if table == "ThreadNames":
        return names.marker
    return names.kernel if table.endswith("_KERNEL") else names.runtime_call


def _write_texts(database: Database, target: sqlite3.Connection, names: Names) -> None:
    """Write the small tables whose texts are those of NVIDIA, or of the machine."""
    for table, known, text, rename in (
        (
            "TARGET_INFO_GPU",
            (
                *("id", "totalMemory", "smCount", "computeMajor", "computeMinor"),
                *("clockRate", "memoryBandwidth"),
            ),
            "name",
            names.as_written,
        ),
        ("TARGET_INFO_GPU_METRICS", ("typeId", "metricId"), "metricName", names.as_written),
        (
            "NVTX_PAYLOAD_SCHEMA_ENTRIES",
            ("schemaId", "idx", "type", "offset"),
            "name",
            names.as_written,
        ),
        ("PROCESSES", ("globalPid", "pid"), "name", names.marker),
    ):
        columns = [column for column in (*known, text) if database.has(table, column)]
        if text not in columns:
            continue
        types = {column: str if column == text else int for column in columns}
        rows = [
            (*row[:-1], None if row[-1] is None else rename(row[-1]))
            for row in database.rows(table, types)
        ]
        _insert(target, table, columns, rows)
    _insert(
        target,
        METADATA[0],
        ["name", "value"],
        [(key, value) for key, value in metadata_of(database).items() if key in _METADATA],
    )


def _insert(
    target: sqlite3.Connection, table: str, columns: list[str], rows: list[tuple[Any, ...]]
) -> None:
    if columns:
        quoted = ", ".join(f'"{column}"' for column in columns)
        target.execute(f"CREATE TABLE {table} ({quoted})")
        places = ", ".join("?" * len(columns))
        target.executemany(f"INSERT INTO {table} VALUES ({places})", rows)
