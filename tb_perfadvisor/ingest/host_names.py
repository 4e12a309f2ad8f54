"""The kinds of host events by their names, whichever tool recorded them."""

from __future__ import annotations

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace import EventKind

STEP = regex(r"^ProfilerStep#(\d{1,9})$")
_FETCH = regex(r"^enumerate\((?:DataLoader|DataPipe|IterableDataset|Dataset)\b[^)]*\)#")
_HOST_COLLECTIVE = regex(r"^(?:gloo|mpi|ucc):(?P<operation>\w+)")
# Annotations that older versions recorded as operators.
_OLD_ANNOTATION = regex(r"^(?:Optimizer\.(?:step|zero_grad)#|DistributedDataParallel\.|nccl:|## )")
# Ranges of TorchDynamo and Inductor, from torch/_dynamo/utils.py (dynamo_timed) and its callers.
# Ranges in which compiled code *runs* (`Torch-Compiled Region`) are not included.
_COMPILE = regex(
    r"dynamo_timed|compile_inner|_compile\.compile|entire_frame_compile|backend_compile"
    r"|call_user_compiler|compile_fx|create_aot_dispatcher_function|aot_collect_metadata"
    r"|inductor_compile|GraphLowering\.|PyCodeCache\.|async_compile|bytecode_tracing"
    r"|build_guards|Scheduler\.codegen|CachingAutotuner\.(?:benchmark|precompile|coordinate)"
    r"|fx_codegen_and_compile|fx_graph_cache_lookup|compile_file|triton_compile"
)
_SYNCHRONIZE = regex(r"[Ss]ynchroni[sz]e|QueueFinish|^urEventWait$")
_ALLOCATE = regex(
    r"^(?:cuda|hip)(?:Malloc|Free|HostAlloc|HostMalloc|HostFree|HostRegister|HostUnregister"
    r"|ExtMalloc|MemPool|MallocFromPool)|^cuMem(?:Alloc|Free|Create|Release|Map|Unmap|Address"
    r"|SetAccess|HostAlloc|Pool)|^hipMem(?:Alloc|Create|Release|Map|Unmap|Address|SetAccess|Pool)"
    r"|MemPool|^urUSM(?:Host|Device|Shared)Alloc|^urUSMFree|^zeMem(?:Alloc|Free)"
)
_LAUNCH = regex(
    r"^(?:cuda|cu|hip)\w*Launch(?!HostFunc)|Memcpy|^cuMemcpy|[Mm]emset|^hipMemset"
    r"|EnqueueKernelLaunch|AppendLaunchKernel|EnqueueUSMFill|AppendMemory(?:Copy|Fill)"
    r"|memcpy(?:HtoD|DtoH|DtoD)|runFunction|LaunchKernel"
)


def range_kind(name: str, *, is_annotation: bool) -> EventKind:
    """The kind of a named range on a host thread.

    `is_annotation` holds if the recorder says that the user or a library named the range.
    Otherwise, it is an operator unless its name says more.
    """
    if STEP.match(name):
        return EventKind.STEP
    if _FETCH.match(name):
        return EventKind.INPUT_WAIT
    if _HOST_COLLECTIVE.match(name):
        return EventKind.HOST_COLLECTIVE
    if _COMPILE.search(name):
        return EventKind.COMPILE
    if is_annotation or _OLD_ANNOTATION.match(name):
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


def host_collective_operation(name: str) -> str:
    """The operation in a name such as `gloo:all_reduce`, as `all-reduce`."""
    match = _HOST_COLLECTIVE.match(name)
    return match["operation"].replace("_", "-") if match else "unknown"
