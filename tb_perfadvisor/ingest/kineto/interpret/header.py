"""What the top level of a Kineto file says: the source, the clock and the devices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from tb_perfadvisor.ingest.kineto.decode.columns import Collected
from tb_perfadvisor.ingest.kineto.decode.numbers import to_integers
from tb_perfadvisor.ingest.kineto.decode.schema import Envelope, decoded, is_present
from tb_perfadvisor.ingest.trace_names import rank_of_name
from tb_perfadvisor.trace import Device, Source
from tb_perfadvisor.trace.integer_groups import distinct

# Of this or any later wall clock in ns; anything smaller counts from boot or from the start.
_EARLIEST_UNIX_NS = 1_400_000_000 * 10**9


def has_marks(envelope: Envelope) -> bool:
    """Whether the header is one that only Kineto writes."""
    return envelope.schemaVersion is not None or is_present(envelope.deviceProperties)


def source_of(envelope: Envelope, source: Source) -> Source:
    """Complete what is known from the path with what the file says of itself."""
    info = decoded(envelope.distributedInfo)
    info = info if isinstance(info, dict) else {}
    rank = _whole(info.get("rank"))
    if rank is None:
        rank = source.rank
    if rank is None:
        rank = rank_of_name(source.path.rsplit("/", 1)[-1])
    host = envelope.host_name if isinstance(envelope.host_name, str) else ""
    backend = info.get("backend")
    return replace(
        source,
        format="kineto",
        framework="pytorch",
        producer="torch.profiler",
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


def with_contents(source: Source, collected: Collected, envelope: Envelope) -> Source:
    """Settle what the header leaves open by what is in the file.

    Versions that write a trace id write the recording's options too, and only those that are
    on: a missing key is a no then, and unknown in older files.
    """
    is_new = envelope.trace_id is not None
    has_python = "python_function" in collected.categories
    operators = collected.operators
    otherwise = False if is_new else None
    return replace(
        source,
        has_shapes=bool((operators["shapes"] >= 0).any()) or (source.has_shapes or otherwise),
        has_stacks=has_python
        or bool((operators["frame"] >= 0).any())
        or (source.has_stacks or otherwise),
        has_memory=bool(collected.memory["at_ns"].size) or (source.has_memory or otherwise),
    )


def group_size_of(envelope: Envelope) -> int:
    """The size of the only process group; -1 when there are several or it is not said."""
    info = decoded(envelope.distributedInfo)
    groups = info.get("pg_config") if isinstance(info, dict) else None
    if not isinstance(groups, list) or len(groups) != 1 or not isinstance(groups[0], dict):
        return -1
    return _whole(groups[0].get("pg_size")) or -1


def clock_of(envelope: Envelope, start_ns: NDArray[np.int64]) -> int | None:
    """The wall clock at time 0 of the file's own clock; None when it is not the wall's."""
    base = int(to_integers([envelope.baseTimeNanoseconds], missing=0)[0])
    if base > 0:
        return base
    if start_ns.size and int(start_ns.min()) > _EARLIEST_UNIX_NS:
        return 0
    return None


def devices_of(envelope: Envelope, collected: Collected) -> tuple[Device, ...]:
    """All devices that the file lists, and those that have events without being listed."""
    listed = decoded(envelope.deviceProperties) or decoded(envelope.computeProperties)
    devices = {}
    for row in listed if isinstance(listed, list) else ():
        device = _device(row)
        if device is not None:
            devices[device.index] = device
    for index in distinct(collected.device["device"]).tolist():
        if index >= 0 and index not in devices:
            devices[index] = _unlisted(index, tuple(devices.values()), collected)
    return tuple(devices[index] for index in sorted(devices))


def _device(row: Any) -> Device | None:
    index = _whole(row.get("id")) if isinstance(row, dict) else None
    if index is None:
        return None
    name = row.get("name")
    multiprocessors = _whole(row.get("numSms", row.get("multiProcessorCount")))
    return Device(
        index=index,
        name=name if isinstance(name, str) else "",
        # Only GPUs have multiprocessors: MTIA and its like describe a grid instead.
        kind="other" if multiprocessors is None and "maxGridHeight" in row else "gpu",
        memory_bytes=_whole(row.get("totalGlobalMem")) or None,
        multiprocessors=multiprocessors or None,
    )


def _unlisted(index: int, listed: tuple[Device, ...], collected: Collected) -> Device:
    """A device with events that the header does not describe.

    Where all listed devices are of one make, this one is too: runtimes that hide devices
    from the process number the visible one 0 in the header and by its place in the events.
    """
    if len({replace(device, index=index) for device in listed}) == 1:
        return replace(listed[0], index=index)
    # torch_npu lists no devices: it names the process that stands for one, and nothing else.
    if collected.process_names.get(index) == "NPU":
        return Device(index=index, name="Ascend NPU", kind="other")
    is_gpu = any(
        category.startswith(("cuda", "xpu", "gpu")) or category in ("Runtime", "Kernel", "kernel")
        for category in collected.categories
    )
    return Device(index=index, name="", kind="gpu" if is_gpu else "other")


def _versions(envelope: Envelope, info: dict[str, Any]) -> str:
    """`CUDA 12.4, NCCL 2.27.7`: what the file says of the software beneath PyTorch."""
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
    """A number that is a count or an index; None for what is none."""
    if isinstance(value, str) and value.strip().isdigit():
        value = int(value)
    if isinstance(value, float) and math.isfinite(value):
        value = int(value)
    is_count = isinstance(value, int) and not isinstance(value, bool)
    return value if is_count and 0 <= value < 2**62 else None
