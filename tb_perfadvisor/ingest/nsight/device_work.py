"""Kernels, copies and devices of an export of Nsight Systems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tb_perfadvisor.ingest.kernels.collective_names import (
    collective_dtype,
    collective_operation,
    is_collective,
)
from tb_perfadvisor.ingest.kernels.kernel_names import classify_kernels, is_copy, is_fill
from tb_perfadvisor.ingest.nsight.database import FINISHED, Database, of_type
from tb_perfadvisor.ingest.nsight.host_work import Processes
from tb_perfadvisor.ingest.nsight.ranges import NcclCalls
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import Assembler, CopyDirection, Device, EventKind
from tb_perfadvisor.trace.integer_groups import distinct, group_rows, unique_inverse

Int64 = NDArray[np.int64]
Columns = Mapping[str, Int64]

_PREFIX: Final = "CUPTI_ACTIVITY_KIND_"
_WHERE: Final = {"device": "deviceId", "stream": "streamId", "process": "globalPid"}
_DURING: Final = {"start": "start", "end": "end"}
# CUpti_ActivityMemcpyKind: source and target of a copy, as Kineto names them.
HOST_TO_DEVICE: Final = 1
_COPY_KINDS: Final = {
    HOST_TO_DEVICE: ("HtoD", CopyDirection.HOST_TO_DEVICE),
    2: ("DtoH", CopyDirection.DEVICE_TO_HOST),
    3: ("HtoA", CopyDirection.HOST_TO_DEVICE),
    4: ("AtoH", CopyDirection.DEVICE_TO_HOST),
    5: ("AtoA", CopyDirection.DEVICE_TO_DEVICE),
    6: ("AtoD", CopyDirection.DEVICE_TO_DEVICE),
    7: ("DtoA", CopyDirection.DEVICE_TO_DEVICE),
    8: ("DtoD", CopyDirection.DEVICE_TO_DEVICE),
    9: ("HtoH", CopyDirection.HOST_TO_HOST),
    10: ("PtoP", CopyDirection.PEER_TO_PEER),
    11: ("HtoD (unified memory)", CopyDirection.HOST_TO_DEVICE),
    12: ("DtoH (unified memory)", CopyDirection.DEVICE_TO_HOST),
    13: ("DtoD (unified memory)", CopyDirection.DEVICE_TO_DEVICE),
}
# CUpti_ActivityMemoryKind less one, as the table ENUM_CUDA_MEM_KIND of an export says.
_PAGEABLE, _PINNED = 0, 1
_MEMORIES: Final = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed"}
# Nsight Systems spells what c++filt leaves out: `(int)4` for `4`, `(bool)0` for `false`.
_TYPED: Final = regex(r"\((?:unsigned |signed )?(?:int|long|short|char|long long)\)(?=-?\d)")


class DeviceWork(Struct, frozen=True):
    """Events of streams, in the order of the tables; columns of shape (n,)."""

    kernels: Columns
    copies: Columns
    fills: Columns
    graphs: Columns
    stream_waits: Columns

    @property
    def process(self) -> Int64:
        """`globalPid` of all events that use a device."""
        parts = (self.kernels, self.copies, self.fills, self.graphs)
        return np.concatenate([part["process"] for part in parts])

    @property
    def device(self) -> Int64:
        """The device of all these events."""
        parts = (self.kernels, self.copies, self.fills, self.graphs)
        return np.concatenate([part["device"] for part in parts])


def read_device_work(database: Database) -> DeviceWork:
    """Everything that ran on a device."""

    def table(name: str, needed: Mapping[str, str], optional: Mapping[str, str]) -> Columns:
        table = _PREFIX + name
        needed = {**_DURING, **needed}
        if not database.has(table, *needed.values()):
            table = ""  # no such events, or of a version that nothing is known about
        columns = {**needed, **_WHERE, "correlation": "correlationId", **optional}
        return database.integers(table, columns, FINISHED)

    return DeviceWork(
        kernels=table(
            "KERNEL",
            {},
            {
                "name": "demangledName",
                "short_name": "shortName",
                "grid_blocks": "gridX * gridY * gridZ",
                "block_threads": "blockX * blockY * blockZ",
                "registers": "registersPerThread",
                "shared_memory": "staticSharedMemory + dynamicSharedMemory",
            },
        ),
        copies=table(
            "MEMCPY",
            {"kind": "copyKind"},
            {"bytes": "bytes", "source": "srcKind", "target": "dstKind"},
        ),
        fills=table("MEMSET", {}, {"bytes": "bytes"}),
        graphs=table("GRAPH_TRACE", {}, {"graph": "graphId"}),
        stream_waits=table("SYNCHRONIZATION", {}, {}),
    )


def add_device_work(
    assembler: Assembler,
    database: Database,
    work: DeviceWork,
    processes: Processes,
    calls: NcclCalls,
    launches: Columns,
) -> None:
    """Add all events of streams with their attributes.

    `launches` has columns of the runtime calls: `correlation`, `start`, `thread`, and whether each
    makes a stream wait (`is_stream_wait`). `processes` launched the events.
    """
    _add_kernels(assembler, database, work.kernels, processes, calls, launches)
    _add_copies(assembler, work.copies, processes)
    for part, kind in ((work.fills, EventKind.MEMSET), (work.graphs, EventKind.KERNEL)):
        names = [
            f"CUDA graph {graph}" if kind is EventKind.KERNEL else "Memset (Device)"
            for graph in part.get("graph", part["start"] * 0).tolist()
        ]
        rows = _add_events(assembler, part, processes, kind, assembler.intern_all(names))
        if kind is EventKind.KERNEL:
            assembler.add_kernels(rows)
    _add_stream_waits(assembler, work.stream_waits, processes, launches)


def _add_events(
    assembler: Assembler,
    columns: Columns,
    processes: Processes,
    kind: EventKind | NDArray[np.uint8],
    name: NDArray[np.int32],
) -> NDArray[np.int32]:
    return assembler.add_events(
        columns["start"],
        columns["end"] - columns["start"],
        kind=kind,
        name=name,
        track=processes.device_tracks(
            assembler, columns["process"], columns["device"], columns["stream"]
        ),
        correlation=processes.correlations(columns["correlation"], columns["process"]),
    )


def _add_kernels(
    assembler: Assembler,
    database: Database,
    kernels: Columns,
    processes: Processes,
    calls: NcclCalls,
    launches: Columns,
) -> None:
    spelled = np.where(kernels["name"] >= 0, kernels["name"], kernels["short_name"])
    ids, of_kernel = unique_inverse(spelled)
    texts = [
        kernel_name(database.strings.get(each, "")) or "unnamed kernel" for each in ids.tolist()
    ]
    kinds = np.array([_kernel_kind(text) for text in texts], dtype=np.uint8)[of_kernel]
    rows = _add_events(assembler, kernels, processes, kinds, assembler.intern_all(texts)[of_kernel])
    is_kernel = np.isin(kinds, (EventKind.KERNEL, EventKind.COLLECTIVE))
    classified = classify_kernels(texts)
    of_kernel = of_kernel[is_kernel]
    assembler.add_kernels(
        rows[is_kernel],
        family=classified.family[of_kernel],
        precision=classified.precision[of_kernel],
        tensor_cores=classified.tensor_cores[of_kernel],
        grid_blocks=kernels["grid_blocks"][is_kernel],
        block_threads=np.clip(kernels["block_threads"][is_kernel], -1, 2**31 - 1),
        registers=np.clip(kernels["registers"][is_kernel], -1, 2**31 - 1),
        shared_memory_bytes=kernels["shared_memory"][is_kernel],
    )
    is_collective = kinds == EventKind.COLLECTIVE
    chosen = {key: column[is_collective] for key, column in kernels.items()}
    names = [texts[place] for place in unique_inverse(spelled)[1][is_collective].tolist()]
    _add_collectives(assembler, rows[is_collective], chosen, names, processes, calls, launches)


def kernel_name(text: str) -> str:
    """A kernel's name as other recorders spell it."""
    text = _TYPED.sub("", text.replace("(bool)1", "true").replace("(bool)0", "false"))
    return text.replace("<unnamed>", "(anonymous namespace)")


def _kernel_kind(name: str) -> EventKind:
    if is_collective(name):
        return EventKind.COLLECTIVE
    if is_copy(name):
        return EventKind.COPY
    return EventKind.MEMSET if is_fill(name) else EventKind.KERNEL


def _add_collectives(
    assembler: Assembler,
    rows: NDArray[np.int32],
    kernels: Columns,
    names: list[str],
    processes: Processes,
    calls: NcclCalls,
    launches: Columns,
) -> None:
    """Describe communication kernels by their names, and by NCCL's calls since the last launch.

    A launch carries out all calls of its thread since the launch before: one, or those of a group
    (`ncclGroupStart` to `ncclGroupEnd`).
    """
    if not rows.size:
        return
    operations = [collective_operation(name) for name in names]
    sizes, groups = np.full(rows.size, -1, np.int64), np.zeros(rows.size, np.uint64)
    keys = processes.correlations(kernels["correlation"], kernels["process"])
    order = np.argsort(launches["correlation"], kind="stable")
    place = np.searchsorted(launches["correlation"][order], keys)
    launch = order[np.minimum(place, max(order.size - 1, 0))] if order.size else place
    is_known = (keys >= 0) & (place < order.size)
    if order.size:
        is_known &= launches["correlation"][launch] == keys
    by_thread: dict[int, list[int]] = {}
    for at in np.flatnonzero(is_known).tolist():
        by_thread.setdefault(int(launches["thread"][launch[at]]), []).append(at)
    for thread, ats in by_thread.items():
        first, last = np.searchsorted(calls.thread, (thread, thread + 1))
        starts = calls.start_ns[first:last]
        ats.sort(key=lambda at: int(launches["start"][launch[at]]))
        done = 0
        for at in ats:
            reached = int(np.searchsorted(starts, launches["start"][launch[at]], side="right"))
            made = range(int(first) + done, int(first) + reached)
            done = reached
            if not made:
                continue
            made_sizes = calls.size_bytes[made.start : made.stop]
            if (made_sizes >= 0).all():
                sizes[at] = int(made_sizes.clip(0, 2**56).sum())
            groups[at] = calls.group[made.start]
            called = {calls.operation[each] for each in made}
            if len(called) == 1:
                operations[at] = called.pop()
    members = [calls.members.get(group, -1) for group in groups.tolist()]
    dtypes = [collective_dtype(name) for name in names]
    assembler.add_collectives(
        rows,
        operation=assembler.intern_all(operations),
        size_bytes=sizes,
        sent_bytes=sizes,
        dtype=np.where([*map(bool, dtypes)], assembler.intern_all(dtypes), -1),
        group_size=np.clip(members, -1, 2**31 - 1),
        group=np.where(
            groups != 0,
            assembler.intern_all([f"{group:#x}" for group in groups.tolist()]),
            -1,
        ),
    )


def _add_copies(assembler: Assembler, copies: Columns, processes: Processes) -> None:
    triples = [copies["kind"], copies["source"], copies["target"]]
    first, of_copy = group_rows(*triples)
    names, directions, pageable = [], [], []
    for kind, source, target in np.stack(triples, axis=1)[first].tolist():
        short, direction = _COPY_KINDS.get(kind, ("", CopyDirection.UNKNOWN))
        ends = [_MEMORIES.get(memory, "") for memory in (source, target)]
        named = f" ({ends[0]} -> {ends[1]})" if all(ends) else ""
        names.append(f"Memcpy {short}{named}".rstrip())
        directions.append(direction)
        memories = {source, target}
        pageable.append(1 if _PAGEABLE in memories else 0 if _PINNED in memories else -1)
    rows = _add_events(
        assembler, copies, processes, EventKind.COPY, assembler.intern_all(names)[of_copy]
    )
    assembler.add_copies(
        rows,
        direction=np.array(directions, dtype=np.uint8)[of_copy],
        size_bytes=copies["bytes"],
        pageable=np.array(pageable, dtype=np.int8)[of_copy],
    )


def _add_stream_waits(
    assembler: Assembler, waits: Columns, processes: Processes, launches: Columns
) -> None:
    """Add what streams waited for. The host's own waits are runtime calls already."""
    keys = processes.correlations(waits["correlation"], waits["process"])
    of_streams = launches["correlation"][launches["is_stream_wait"].astype(bool)]
    chosen = np.isin(keys, of_streams) & (keys >= 0) & (waits["stream"] >= 0)
    part = {key: column[chosen] for key, column in waits.items()}
    name = assembler.intern_all(["Stream Wait Event"] * int(chosen.sum()))
    _add_events(assembler, part, processes, EventKind.DEVICE_SYNC, name)


_DEVICE_TABLES: tuple[tuple[str, str, dict[str, tuple[str, int]]], ...] = (
    (
        "TARGET_INFO_GPU",
        "id",
        {
            "memory_bytes": ("totalMemory", 1),
            "multiprocessors": ("smCount", 1),
            "major": ("computeMajor", 1),
            "minor": ("computeMinor", 1),
            "clock_hz": ("clockRate", 1),
            "bandwidth_bytes_per_s": ("memoryBandwidth", 1),
        },
    ),
    (
        "TARGET_INFO_CUDA_GPU",
        "deviceId",
        {
            "memory_bytes": ("globalMemorySize", 1),
            "multiprocessors": ("numMultiprocessors", 1),
            "major": ("computeCapabilityMajor", 1),
            "minor": ("computeCapabilityMinor", 1),
            "clock_hz": ("coreClockRate", 1000),
            "bandwidth_bytes_per_s": ("globalMemoryBandwidth", 1000),
        },
    ),
)
"""Where exports describe GPUs: the table, the column of the index, and for each figure its column
and its unit. Older exports have the second table."""
_METRICS, _METRIC_NAMES = "GPU_METRICS", "TARGET_INFO_GPU_METRICS"
_TENSOR_METRICS = ("Tensor Active [Throughput %]", "Tensor Active / FP16 Active [Throughput %]")
_GPU_BITS = 0xFF
"""Of the type of a metric's sample: which GPU it is of."""


def devices_of(database: Database, used: NDArray[np.int64]) -> tuple[Device, ...]:
    """The GPUs that ran anything; all of the machine if none did.

    `used` has the device of each event.
    """
    indices = _indices(used)
    described = [layout for layout in _DEVICE_TABLES if database.has(layout[0], layout[1], "name")]
    if not described:
        return tuple(Device(index=index, name="", kind="gpu") for index in indices)
    table, number, figures = described[0]
    present = {figure: place for figure, place in figures.items() if database.has(table, place[0])}
    columns = dict.fromkeys((column for column, _ in present.values()), int)
    active = _matrix_unit_use(database)
    devices = []
    for index, name, *values in database.rows(table, {number: int, "name": str, **columns}):
        if index is None or (indices and index not in indices):
            continue
        # The exporter writes 0 for what it does not know.
        stated = {
            figure: value * unit
            for (figure, (_, unit)), value in zip(present.items(), values, strict=True)
            if value is not None and value > 0
        }
        major = stated.get("major")
        devices.append(
            Device(
                index=index,
                name=name or "",
                kind="gpu",
                memory_bytes=stated.get("memory_bytes"),
                multiprocessors=stated.get("multiprocessors"),
                vendor="nvidia",
                compute_capability=f"{major}.{stated.get('minor', 0)}" if major else "",
                clock_hz=stated.get("clock_hz"),
                reported_bandwidth_bytes_per_s=stated.get("bandwidth_bytes_per_s"),
                matrix_unit_use=active.get(index),
            )
        )
    return tuple(devices)


def _indices(used: NDArray[np.int64]) -> list[int]:
    found: list[int] = distinct(used[used >= 0]).tolist()
    return found


def _matrix_unit_use(database: Database) -> dict[int, float]:
    """The mean share (0-1) of time in which the tensor cores of each GPU were active."""
    columns = {"typeId": int, "metricId": int, "metricName": str}
    chosen = [
        (kind, metric)
        for kind, metric, name in database.rows(_METRIC_NAMES, columns)
        if name in _TENSOR_METRICS and None not in (kind, metric)
    ]
    if not chosen or not database.has(_METRICS, "typeId", "metricId", "value"):
        return {}
    ids = ", ".join({str(metric) for _, metric in chosen})
    samples = database.integers(
        _METRICS,
        {"kind": "typeId", "metric": "metricId", "value": "value"},
        f"{of_type('metricId', int)} IN ({ids})",
    )
    first, of_sample = group_rows(samples["kind"], samples["metric"])
    sums = np.bincount(of_sample, np.clip(samples["value"], 0, 100))
    means = (sums / np.bincount(of_sample)).tolist()
    kinds, metrics = samples["kind"][first].tolist(), samples["metric"][first].tolist()
    mean_of = dict(zip(zip(kinds, metrics, strict=True), means, strict=True))
    return {
        kind & _GPU_BITS: mean_of[kind, metric] / 100
        for kind, metric in chosen
        if (kind, metric) in mean_of
    }
