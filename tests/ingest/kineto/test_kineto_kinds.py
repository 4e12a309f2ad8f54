"""Kinds of events by name and category."""

from __future__ import annotations

import pytest

from tb_perfadvisor.trace import EventKind, TrackKind
from tests.support.kineto_files import HOST, event, kernel, read, to_bytes


@pytest.mark.parametrize(
    ("name", "category", "kind"),
    [
        ("aten::mm", "cpu_op", EventKind.OPERATOR),
        ("aten::mm", "Operator", EventKind.OPERATOR),
        ("ProfilerStep#7", "user_annotation", EventKind.STEP),
        ("ProfilerStep#7", "Operator", EventKind.STEP),
        ("Optimizer.step#SGD.step", "user_annotation", EventKind.ANNOTATION),
        ("Optimizer.step#SGD.step", "Operator", EventKind.ANNOTATION),
        (
            "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
            "user_annotation",
            EventKind.INPUT_WAIT,
        ),
        ("enumerate(DataPipe)#ShufflerIterDataPipe", "cpu_op", EventKind.INPUT_WAIT),
        ("gloo:all_reduce", "user_annotation", EventKind.HOST_COLLECTIVE),
        ("nccl:all_reduce", "user_annotation", EventKind.ANNOTATION),
        ("train.py(12): step", "python_function", EventKind.PYTHON),
        (
            "torch/_dynamo/convert_frame.py(1207): _compile",
            "python_function",
            EventKind.COMPILE,
        ),
        ("_compile.compile_inner (dynamo_timed)", "cpu_op", EventKind.COMPILE),
        ("Torch-Compiled Region: 0/0", "user_annotation", EventKind.ANNOTATION),
        ("Activity Buffer Request", "overhead", EventKind.OVERHEAD),
        ("cudaLaunchKernel", "cuda_runtime", EventKind.LAUNCH),
        ("cudaLaunchKernelExC", "cuda_runtime", EventKind.LAUNCH),
        ("cuLaunchKernelEx", "cuda_driver", EventKind.LAUNCH),
        ("cudaGraphLaunch", "cuda_runtime", EventKind.LAUNCH),
        ("hipGraphLaunch", "cuda_runtime", EventKind.LAUNCH),
        ("hipExtModuleLaunchKernel", "cuda_runtime", EventKind.LAUNCH),
        ("cudaMemcpyAsync", "Runtime", EventKind.LAUNCH),
        ("hipMemcpyWithStream", "cuda_runtime", EventKind.LAUNCH),
        ("cudaMemsetAsync", "cuda_runtime", EventKind.LAUNCH),
        ("urEnqueueKernelLaunch", "xpu_runtime", EventKind.LAUNCH),
        ("cudaStreamSynchronize", "cuda_runtime", EventKind.SYNCHRONIZE),
        ("hipDeviceSynchronize", "cuda_runtime", EventKind.SYNCHRONIZE),
        ("synchronizeStream", "mtia_runtime", EventKind.SYNCHRONIZE),
        ("cudaStreamWaitEvent", "cuda_runtime", EventKind.RUNTIME),
        ("cudaEventQuery", "cuda_runtime", EventKind.RUNTIME),
        ("cudaLaunchHostFunc", "cuda_runtime", EventKind.RUNTIME),
        ("cudaMalloc", "cuda_runtime", EventKind.ALLOCATE),
        ("cudaFree", "cuda_runtime", EventKind.ALLOCATE),
        ("cudaHostAlloc", "cuda_runtime", EventKind.ALLOCATE),
        ("hipMalloc", "cuda_runtime", EventKind.ALLOCATE),
        ("cuMemCreate", "cuda_driver", EventKind.ALLOCATE),
        ("cudaMemGetInfo", "cuda_runtime", EventKind.RUNTIME),
        ("anything", "privateuse1_runtime", EventKind.RUNTIME),
    ],
)
def test_host_kinds(name: str, category: str, kind: EventKind) -> None:
    trace = read(to_bytes([event(name, 1, 1, category)]))
    assert trace.events.kind.tolist() == [kind]
    assert trace.tracks.kind.tolist() == [TrackKind.HOST_THREAD]


@pytest.mark.parametrize(
    ("name", "category", "kind"),
    [
        ("volta_sgemm_64x64_nt", "kernel", EventKind.KERNEL),
        ("volta_sgemm_64x64_nt", "Kernel", EventKind.KERNEL),
        (
            "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
            "kernel",
            EventKind.COLLECTIVE,
        ),
        ("__amd_rocclr_copyBuffer", "kernel", EventKind.COPY),
        ("__amd_rocclr_fillBufferAligned", "kernel", EventKind.MEMSET),
        ("Memcpy HtoD (Pageable -> Device)", "gpu_memcpy", EventKind.COPY),
        ("Memset (Device)", "Memset", EventKind.MEMSET),
        ("ProfilerStep#2", "gpu_user_annotation", EventKind.DEVICE_ANNOTATION),
        ("Stream Sync", "cuda_sync", EventKind.DEVICE_SYNC),
        ("pe_exe", "mtia_ccp_events", EventKind.KERNEL),
        ("event_wait", "mtia_ccp_events", EventKind.DEVICE_SYNC),
    ],
)
def test_device_kinds(name: str, category: str, kind: EventKind) -> None:
    trace = read(to_bytes([kernel(name, 1, 1, category)]))
    assert trace.events.kind.tolist() == [kind]
    assert trace.events.step.tolist() == [-1]
    assert trace.tracks.kind.tolist() == [TrackKind.DEVICE_STREAM]


def test_steps_carry_their_number() -> None:
    trace = read(to_bytes([event("ProfilerStep#552", 1, 5, "user_annotation")]))
    assert trace.events.step.tolist() == [552]


def test_other_events_are_ignored_and_unknown_ones_counted() -> None:
    trace = read(
        to_bytes(
            [
                event("aten::mm", 1, 1),
                event("PyTorch Profiler (0)", 1, 9, "Trace"),
                event("range", 1, 9, "cuda_profiler_range"),
                event("what", 1, 9, "novel_category"),
                {"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "ts": 1, **HOST},
            ]
        )
    )
    assert len(trace.events) == 1
    (note,) = trace.notes
    assert (note.id, "1 events have unknown categories: novel_category" in note.message) == (
        "unknown-events",
        True,
    )
