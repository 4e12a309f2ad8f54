"""What the header of a trace says, and what its notes are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.ingest.json_trace.document import (
    Document,
    Envelope,
    damage_notes,
    decoded,
    is_present,
)
from tb_perfadvisor.ingest.json_trace.numbers import to_integers
from tb_perfadvisor.ingest.kineto.decode.columns import KinetoColumns
from tb_perfadvisor.ingest.merged_ranks import is_merged, rank_in
from tb_perfadvisor.ingest.trace_names import rank_of_name
from tb_perfadvisor.note import Note
from tb_perfadvisor.trace import Device, Source
from tb_perfadvisor.trace.integer_groups import distinct, is_in, places_by_value

_WARP_THREADS = 32
_ROUNDING = 0.005
_AGREEING_SHARE = 0.9
# Smaller times are not wall-clock times: they count from boot or from the start.
_EARLIEST_UNIX_NS = 1_400_000_000 * 10**9


def has_kineto_header(envelope: Envelope) -> bool:
    """Whether the header has keys that only Kineto writes."""
    return envelope.schemaVersion is not None or is_present(envelope.deviceProperties)


def source_of(envelope: Envelope, source: Source) -> Source:
    """Add the file's statements to what the path says."""
    info = decoded(envelope.distributedInfo)
    info = info if isinstance(info, dict) else {}
    rank = _whole(info.get("rank"))
    if rank is None:
        rank = source.rank
    if rank is None:
        rank = rank_of_name(source.path.rsplit("/", 1)[-1])
    host = envelope.host_name if isinstance(envelope.host_name, str) else ""
    backend = info.get("backend")
    is_of_python = envelope.perfadvisor_recorder == "python"
    return replace(
        source,
        format="kineto",
        framework="none" if is_of_python else "pytorch",
        producer="tb_perfadvisor" if is_of_python else "torch.profiler",
        version=_versions(envelope, info),
        host=host or source.host,
        rank=rank,
        world_size=_whole(info.get("world_size")) or source.world_size,
        backend=backend if isinstance(backend, str) else "",
        has_shapes=_flag(envelope.record_shapes),
        has_stacks=_flag(envelope.with_stack),
        has_memory=_flag(envelope.profile_memory),
        is_synthetic=envelope.perfadvisor_synthetic is True,
    )


def with_contents(source: Source, collected: KinetoColumns, envelope: Envelope) -> Source:
    """Complete the recording options from the content of the file.

    Versions that write a trace id also write the enabled options. So a missing option is off in
    new files, and unknown in older ones.
    """
    is_new = envelope.trace_id is not None
    has_python = "python_function" in collected.categories
    operators = collected.operators
    default = False if is_new else None
    return replace(
        source,
        has_shapes=bool((operators["shapes"] >= 0).any()) or (source.has_shapes or default),
        has_stacks=has_python
        or bool((operators["frame"] >= 0).any())
        or (source.has_stacks or default),
        has_memory=bool(collected.memory["at_ns"].size) or (source.has_memory or default),
        recorded_calls_share=_recorded_calls_share(collected),
    )


_CUDA = ("cuda_runtime", "cuda_driver")
_FEWEST_CALLS = 50
_RARE_JUMPS = 0.01
"""The numbers of two recordings in one file, or of calls around a pause, may be far apart."""


def _recorded_calls_share(collected: KinetoColumns) -> float | None:
    """The part of the runtime's calls that a file has.

    CUPTI numbers all calls, those of which Kineto keeps no event included: a complete recording
    has 1 in 4 to 1 in 18 of them. ROCm's tracer, whose events have the same category, only numbers
    what it records. How others number calls is unknown.
    """
    calls = collected.runtime
    known = [collected.categories.index(name) for name in _CUDA if name in collected.categories]
    is_cuda = is_in(collected.events["category"][calls["row"]], known)
    numbers = distinct(calls["correlation"][is_cuda & (calls["correlation"] > 0)])
    if len(numbers) < _FEWEST_CALLS:
        return None
    steps = np.sort(np.diff(numbers))
    usual = steps[: max(round((1 - _RARE_JUMPS) * len(steps)), 1)]
    return float(1 / usual.mean())


class ProcessGroups(Struct, frozen=True):
    """What the header says about the process groups."""

    only_size: int
    """The size of the only group; -1 if there are several or the size is unknown."""
    descriptions: dict[str, str]
    """What the program calls each group, by the group's name."""
    ranks: dict[str, str]
    """The ranks of each group, by the group's name: `[0, 1]`."""


def process_groups_of(envelope: Envelope) -> ProcessGroups:
    """The process groups that the header lists."""
    info = decoded(envelope.distributedInfo)
    listed = info.get("pg_config") if isinstance(info, dict) else None
    listed = listed if isinstance(listed, list) else []
    groups = [group for group in listed if isinstance(group, dict)]
    only_size = _whole(groups[0].get("pg_size")) if len(groups) == len(listed) == 1 else None
    named = {str(group["pg_name"]): group for group in groups if "pg_name" in group}
    return ProcessGroups(
        only_size or -1,
        {
            name: text
            for name, group in named.items()
            if isinstance(text := group.get("pg_desc"), str)
        },
        {
            name: str(ranks)
            for name, group in named.items()
            if isinstance(ranks := group.get("ranks"), list)
            and all(isinstance(rank, int) for rank in ranks)
        },
    )


def clock_of(envelope: Envelope, start_ns: NDArray[np.int64]) -> int | None:
    """The wall-clock time at time 0 of the file's clock; None if unknown."""
    base = int(to_integers([envelope.baseTimeNanoseconds], missing=0)[0])
    if base > 0:
        return base
    if start_ns.size and int(start_ns.min()) > _EARLIEST_UNIX_NS:
        return 0
    return None


def devices_of(envelope: Envelope, collected: KinetoColumns) -> tuple[Device, ...]:
    """All devices that the file lists or that have events."""
    listed = decoded(envelope.deviceProperties) or decoded(envelope.computeProperties)
    is_hip = bool(_whole(envelope.hip_runtime_version))
    devices = {}
    for row in listed if isinstance(listed, list) else ():
        device = _device(row, is_hip=is_hip)
        if device is not None:
            devices[device.index] = device
    kinds = {replace(device, index=0) for device in devices.values()}
    alike = kinds.pop() if len(kinds) == 1 else None
    for index in distinct(collected.device["device"]).tolist():
        if index >= 0 and index not in devices:
            device = _unlisted(index, alike, collected)
            # Without a list, all devices are like the first one.
            alike = alike if devices else device
            devices[index] = device
    return tuple(devices[index] for index in sorted(devices))


def _device(row: Any, *, is_hip: bool) -> Device | None:
    index = _whole(row.get("id")) if isinstance(row, dict) else None
    if index is None:
        return None
    name = row.get("name")
    multiprocessors = _whole(row.get("numSms", row.get("multiProcessorCount")))
    major, minor = _whole(row.get("computeMajor")), _whole(row.get("computeMinor"))
    # AMD's wavefronts have 64 threads, or 32 on GPUs for graphics.
    is_amd = is_hip or row.get("warpSize") == 64
    return Device(
        index=index,
        name=name if isinstance(name, str) else "",
        # Only GPUs have multiprocessors; devices such as MTIA describe a grid instead.
        kind="other" if multiprocessors is None and "maxGridHeight" in row else "gpu",
        memory_bytes=_whole(row.get("totalGlobalMem")) or None,
        multiprocessors=multiprocessors or None,
        vendor="" if major is None else "amd" if is_amd else "nvidia",
        compute_capability="" if major is None or minor is None else f"{major}.{minor}",
    )


def _unlisted(index: int, alike: Device | None, collected: KinetoColumns) -> Device:
    """A device that has events but is not in the header.

    If all listed devices are equal, this one is equal too: if some devices are hidden from the
    process, the header numbers the visible ones from 0, but the events use the physical numbers.
    """
    if alike is not None:
        return replace(alike, index=index)
    # torch_npu lists no devices; it only names the process of the device.
    if collected.process_names.get(index) == "NPU":
        return Device(index=index, name="Ascend NPU", kind="other")
    is_gpu = any(
        category.startswith(("cuda", "xpu", "gpu")) or category in ("Runtime", "Kernel", "kernel")
        for category in collected.categories
    )
    return Device(
        index=index,
        name="",
        kind="gpu" if is_gpu else "other",
        multiprocessors=_multiprocessors(collected, index) if is_gpu else None,
    )


def _multiprocessors(collected: KinetoColumns, index: int) -> int | None:
    """The number of multiprocessors that follows from the recorded warps of each; else None.

    CUPTI divides the warps of a kernel by the number of multiprocessors.
    """
    device = collected.device
    is_on = (device["device"] == index) & (device["warps_per_multiprocessor"] > 0)
    is_on &= (device["grid_blocks"] > 0) & (device["block_threads"] > 0)
    if not is_on.any():
        return None
    warps = device["grid_blocks"][is_on] * device["block_threads"][is_on] / _WARP_THREADS
    counts = warps / device["warps_per_multiprocessor"][is_on]
    count = round(float(np.median(counts)))
    # The ratios are rounded to a few digits.
    is_equal = np.abs(counts - count) <= _ROUNDING * count
    return count if count > 0 and is_equal.mean() >= _AGREEING_SHARE else None


def _versions(envelope: Envelope, info: dict[str, Any]) -> str:
    """The versions of the libraries below PyTorch, such as `CUDA 12.4, NCCL 2.27.7`."""
    parts = []
    cuda, hip = _whole(envelope.cuda_runtime_version), _whole(envelope.hip_runtime_version)
    if cuda:
        parts.append(f"CUDA {cuda // 1000}.{cuda % 1000 // 10}")
    if hip:
        parts.append(f"HIP {hip // 10_000_000}.{hip // 100_000 % 100}.{hip % 100_000}")
    nccl = info.get("nccl_version")
    if isinstance(nccl, str) and nccl:
        parts.append(f"NCCL {nccl}")
    return ", ".join(parts)


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value) and value != "0"


def _whole(value: Any) -> int | None:
    """A count or an index; None if the value is not one."""
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:  # no number, or one of thousands of digits
            return None
    if isinstance(value, float) and math.isfinite(value):
        value = int(value)
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return value if is_count and 0 <= value < 2**62 else None


_OFFSET = 2**40
"""Correlation ids have at most 32 bits, and some tools add more."""


def ranks_of_events(collected: KinetoColumns) -> NDArray[np.int64]:
    """The rank of each event in a merged file, -1 if unknown; all 0 in any other file."""
    thread = collected.events["thread"]
    names = collected.process_names
    if not is_merged(names.values()):
        return np.zeros(len(thread), dtype=np.int64)
    ranks = (rank_in(names.get(pid, "")) for pid, _ in collected.threads)
    rank_of_thread = np.array([-1 if rank is None else rank for rank in ranks], dtype=np.int64)
    found: NDArray[np.int64] = rank_of_thread[thread]
    return found


def by_rank(ids: NDArray[np.int64], rank: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ids that differ between ranks, from ids that each rank counts by itself."""
    distinct_ids: NDArray[np.int64] = ids + _OFFSET * np.maximum(rank, 0)
    return distinct_ids


def rows_by_rank(rank: NDArray[np.int64]) -> Iterator[NDArray[np.intp]]:
    """The rows of each rank."""
    for _, rows in places_by_value(rank):
        yield rows


def notes_of(document: Document[Any], collected: KinetoColumns, unended: int) -> tuple[Note, ...]:
    """All notes, in descending order of severity.

    `unended` counts the calls of Python functions that outlasted their callers.
    """
    notes = damage_notes(document, document.malformed + collected.malformed)
    if not collected.events["name"].size:
        notes.append(
            Note(
                "empty-profile",
                "error",
                "The profiler recorded no events.",
                "With a schedule, the program must run long enough to reach an active step: "
                "prof.step() ends a step. Without a schedule, call the code inside the profiler's "
                "`with` block.",
            )
        )
    if unended:
        calls = "1 call of a Python function outlasts its caller"
        if unended > 1:
            calls = f"{unended:,} calls of Python functions outlast their callers"
        notes.append(
            Note(
                "calls-without-end",
                "info",
                f"{calls}, because the profiler missed the end. They end with their callers now.",
            )
        )
    if collected.unknown_categories:
        count = sum(collected.unknown_categories.values())
        shown = ", ".join(sorted(collected.unknown_categories)[:5])
        notes.append(
            Note(
                "unknown-events", "info", f"{count} events have unknown categories: {shown[:200]}."
            )
        )
    return tuple(notes)
