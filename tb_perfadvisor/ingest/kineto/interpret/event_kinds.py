"""Event kinds of Kineto's categories and names, for all versions of the format."""

from __future__ import annotations

import re
from typing import NamedTuple

from tb_perfadvisor.trace import CopyDirection, EventKind

STEP = re.compile(r"^ProfilerStep#(\d{1,9})$")
_FETCH = re.compile(r"^enumerate\((?:DataLoader|DataPipe|IterableDataset|Dataset)\b[^)]*\)#")
_HOST_COLLECTIVE = re.compile(r"^(?:gloo|mpi|ucc):(?P<operation>\w+)")
# Annotations that older versions recorded as operators.
_OLD_ANNOTATION = re.compile(
    r"^(?:Optimizer\.(?:step|zero_grad)#|DistributedDataParallel\.|nccl:|## )"
)
# Ranges of TorchDynamo and Inductor, from torch/_dynamo/utils.py (dynamo_timed) and its callers.
# Ranges in which compiled code *runs* (`Torch-Compiled Region`) are not included.
_COMPILE = re.compile(
    r"dynamo_timed|compile_inner|_compile\.compile|entire_frame_compile|backend_compile"
    r"|call_user_compiler|compile_fx|create_aot_dispatcher_function|aot_collect_metadata"
    r"|inductor_compile|GraphLowering\.|PyCodeCache\.|async_compile|bytecode_tracing"
    r"|build_guards|Scheduler\.codegen|CachingAutotuner\.(?:benchmark|precompile|coordinate)"
    r"|fx_codegen_and_compile|fx_graph_cache_lookup|compile_file|triton_compile"
)
_COMPILE_FRAME = re.compile(
    r"torch/_dynamo/convert_frame\.py\(\d+\): (?:_compile|compile_inner|_compile_inner)$"
    r"|torch/utils/cpp_extension\.py\(\d+\): (?:load|load_inline|_jit_compile)$"
    r"|triton/compiler/compiler\.py\(\d+\): compile$"
)
"""Frames that trace and compile code, or build and load an extension."""
_SYNCHRONIZE = re.compile(r"[Ss]ynchroni[sz]e|QueueFinish|^urEventWait$")
_ALLOCATE = re.compile(
    r"^(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostMalloc|HostFree|HostRegister|HostUnregister"
    r"|ExtMalloc|MemPool|MallocFromPool)|^cuMem(?:Alloc|Free|Create|Release|Map|Unmap|Address"
    r"|SetAccess|HostAlloc|Pool)|^hipMem(?:Alloc|Create|Release|Map|Unmap|Address|SetAccess|Pool)"
    r"|MemPool|^urUSM(?:Host|Device|Shared)Alloc|^urUSMFree|^zeMem(?:Alloc|Free)"
)
_LAUNCH = re.compile(
    r"^(?:cuda|cu|hip)\w*Launch(?!HostFunc)|Memcpy|^cuMemcpy|[Mm]emset|^hipMemset"
    r"|EnqueueKernelLaunch|AppendLaunchKernel|EnqueueUSMFill|AppendMemory(?:Copy|Fill)"
    r"|memcpy(?:HtoD|DtoH|DtoD)|runFunction|LaunchKernel"
)


def host_kind(category: str, name: str) -> EventKind:
    """The kind of an event on a host thread."""
    if category == "overhead":
        return EventKind.OVERHEAD
    if category == "python_function":
        return EventKind.COMPILE if _COMPILE_FRAME.search(name) else EventKind.PYTHON
    if STEP.match(name):
        return EventKind.STEP
    if _FETCH.match(name):
        return EventKind.INPUT_WAIT
    if _HOST_COLLECTIVE.match(name):
        return EventKind.HOST_COLLECTIVE
    if _COMPILE.search(name):
        return EventKind.COMPILE
    if category == "user_annotation" or _OLD_ANNOTATION.match(name):
        return EventKind.ANNOTATION
    return EventKind.OPERATOR


def runtime_kind(name: str) -> EventKind:
    """The kind of a call of a device's runtime or driver."""
    if _SYNCHRONIZE.search(name):
        return EventKind.SYNCHRONIZE
    if _ALLOCATE.search(name):
        return EventKind.ALLOCATE
    if _LAUNCH.search(name):
        return EventKind.LAUNCH
    return EventKind.RUNTIME


_MTIA_KINDS = {
    "dma_request": EventKind.COPY,
    "event_record": EventKind.DEVICE_SYNC,
    "event_wait": EventKind.DEVICE_SYNC,
}
_DEVICE_KINDS = {
    "gpu_memcpy": EventKind.COPY,
    "Memcpy": EventKind.COPY,
    "gpu_memset": EventKind.MEMSET,
    "Memset": EventKind.MEMSET,
    "gpu_user_annotation": EventKind.DEVICE_ANNOTATION,
    "cuda_sync": EventKind.DEVICE_SYNC,
}


def device_kind(category: str, name: str) -> EventKind:
    """The kind of an event on a device's stream; does not distinguish kernels by name."""
    if category == "mtia_ccp_events":
        return _MTIA_KINDS.get(name, EventKind.KERNEL)
    return _DEVICE_KINDS.get(category, EventKind.KERNEL)


def host_collective_operation(name: str) -> str:
    """The operation in a name such as `gloo:all_reduce`, as `all-reduce`."""
    match = _HOST_COLLECTIVE.match(name)
    return match["operation"].replace("_", "-") if match else "unknown"


class CopyName(NamedTuple):
    """The attributes in the name of a copy."""

    direction: CopyDirection
    pageable: int


_ENDS = re.compile(r"\((?P<source>[^()]*?) *-> *(?P<target>[^()]*)\)")
_SHORT = re.compile(r"([HDPA])[to2]+([HDPA])", re.IGNORECASE)
_DIRECTIONS = {
    "HD": CopyDirection.HOST_TO_DEVICE,
    "DH": CopyDirection.DEVICE_TO_HOST,
    "DD": CopyDirection.DEVICE_TO_DEVICE,
    "PP": CopyDirection.PEER_TO_PEER,
    "HH": CopyDirection.HOST_TO_HOST,
    # CUDA arrays are in device memory.
    "HA": CopyDirection.HOST_TO_DEVICE,
    "AH": CopyDirection.DEVICE_TO_HOST,
    "AD": CopyDirection.DEVICE_TO_DEVICE,
    "DA": CopyDirection.DEVICE_TO_DEVICE,
    "AA": CopyDirection.DEVICE_TO_DEVICE,
}


def parse_copy_name(name: str) -> CopyName:
    """Parse a name such as `Memcpy HtoD (Pageable -> Device)`."""
    ends = _ENDS.search(name)
    pageable = -1
    if ends:
        memories = {ends["source"].strip().lower(), ends["target"].strip().lower()}
        if "pageable" in memories:
            pageable = 1
        elif "pinned" in memories:
            pageable = 0
    short = _SHORT.search(name.removeprefix("Memcpy"))
    letters = "".join(short.groups()).upper() if short else ""
    return CopyName(_DIRECTIONS.get(letters, CopyDirection.UNKNOWN), pageable)
