"""Small exports of Nsight Systems, with the tables that a test needs."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from tb_perfadvisor.ingest.nsight.reader import read_nsight
from tb_perfadvisor.trace import Source, Trace
from tests.support.writers.nsight import write_tables

PROCESS = (1 << 48) | (500 << 24)
"""`globalPid` of process 500: the upper bits are the machine's."""
OTHER_PROCESS = (1 << 48) | (501 << 24)
THREAD = PROCESS | 500
SOURCE = Source(path="run/report.sqlite", format="nsight")

TABLES = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT NOT NULL",
    "META_DATA_EXPORT": "name TEXT, value TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER, end INTEGER, deviceId INTEGER, "
    "streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, "
    "shortName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, "
    "blockY INTEGER, blockZ INTEGER, registersPerThread INTEGER, staticSharedMemory INTEGER, "
    "dynamicSharedMemory INTEGER, graphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER, end INTEGER, eventClass INTEGER, "
    "globalTid INTEGER, correlationId INTEGER, nameId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER, end INTEGER, deviceId INTEGER, "
    "streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER, "
    "copyKind INTEGER, srcKind INTEGER, dstKind INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start INTEGER, end INTEGER, deviceId INTEGER, "
    "streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start INTEGER, end INTEGER, deviceId INTEGER, "
    "streamId INTEGER, correlationId INTEGER, globalPid INTEGER, graphId INTEGER",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start INTEGER, end INTEGER, deviceId INTEGER, "
    "streamId INTEGER, correlationId INTEGER, globalPid INTEGER, syncType INTEGER",
    "NVTX_EVENTS": "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, "
    "globalTid INTEGER, textId INTEGER, domainId INTEGER, binaryData BLOB",
    "OSRT_API": "start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, nameId INTEGER",
    "ThreadNames": "nameId INTEGER, globalTid INTEGER",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "TARGET_INFO_GPU": "id INTEGER, name TEXT, totalMemory INTEGER, smCount INTEGER, "
    "computeMajor INTEGER, computeMinor INTEGER, clockRate INTEGER, memoryBandwidth INTEGER",
    "TARGET_INFO_GPU_METRICS": "typeId INTEGER, metricId INTEGER, metricName TEXT",
    "GPU_METRICS": "timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId INTEGER, schemaId INTEGER, idx INTEGER, "
    "type INTEGER, name TEXT, offset INTEGER",
    "COMPOSITE_EVENTS": "id INTEGER PRIMARY KEY, start INTEGER, cpu INTEGER, threadState INTEGER, "
    "globalTid INTEGER, cpuCycles INTEGER",
    "SAMPLING_CALLCHAINS": "id INTEGER, symbol INTEGER, module INTEGER, unresolved INTEGER, "
    "stackDepth INTEGER",
    "DIAGNOSTIC_EVENT": "severity INTEGER, text TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER",
}

Rows = list[tuple[Any, ...]]


def write(path: Path, strings: dict[int, str], /, **rows: Rows) -> Path:
    """Write an export with some tables."""
    content = {**rows, "StringIds": [*strings.items()]}
    write_tables(path, {name: TABLES[name] for name in content}, content)
    return path


def read(path: Path) -> Trace:
    """Read it."""
    return read_nsight({SOURCE.path: lambda: io.BytesIO(path.read_bytes())}, SOURCE)


def kernel(start: int, end: int, name: int = 1, correlation: int = 0, **at: int) -> tuple[Any, ...]:
    """A row of the kernels: 8 blocks of 128 threads."""
    where = (at.get("device", 0), at.get("stream", 7), correlation, at.get("process", PROCESS))
    return (start, end, *where, name, -1, 2, 2, 2, 64, 2, 1, 40, 1024, 512, None)


def call(
    start: int, end: int, name: int, correlation: int, thread: int = THREAD
) -> tuple[Any, ...]:
    """A row of the runtime's calls."""
    return (start, end, 1, thread, correlation, name)


def a_range(
    start: int,
    end: int | None,
    text: str | int,
    thread: int = THREAD,
    kind: int = 59,
    data: bytes | None = None,
) -> tuple[Any, ...]:
    """A row of the NVTX events, by its text or the text's id."""
    spelled = (text, thread, None) if isinstance(text, str) else (None, thread, text)
    return (start, end, kind, *spelled, 0, data)
