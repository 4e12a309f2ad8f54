"""What the letters of a drawing stand for, and how a test gives them other meanings.

Every default name occurs in recorded profiles. The comment next to it says in which: *K0* is the
PyTorch plugin's resnet50 sample (2021), *HTA* the test data of HolisticTraceAnalysis, *TL* the
H100 recordings of TraceLens, *T213* PyTorch 2.13, *TF* TensorFlow 2.21 and *JAX* JAX 0.10 (all
three on a CPU), and *XP* XProf's TPU test profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from tb_perfadvisor.ingest.kernels.collective_names import collective_dtype
from tb_perfadvisor.trace import CopyDirection, EventKind, Framework, KernelFamily, Precision

Attributes = Mapping[str, Any]
_NONE: Attributes = MappingProxyType({})


def _none() -> Attributes:
    return _NONE


class Symbol(Struct, frozen=True):
    """The meaning of a letter: a kind, a name and columns of the tables."""

    kind: EventKind
    name: str
    launches: bool = False
    """Whether device events may be launched by it; a launch call then appears at its start."""
    kernel: Attributes = field(default_factory=_none)
    """Columns of `KernelTable`."""
    copy: Attributes = field(default_factory=_none)
    collective: Attributes = field(default_factory=_none)
    operator: Attributes = field(default_factory=_none)
    iterator: Attributes = field(default_factory=_none)
    """Columns of `IteratorTable`."""
    hlo: Attributes = field(default_factory=_none)
    """Columns of `HloTable` beside the name."""

    def named(self, name: str) -> Symbol:
        """The same symbol with another name."""
        return replace(self, name=name)


def host(name: str, kind: EventKind = EventKind.ANNOTATION) -> Symbol:
    """An event on a host thread that has no attributes but its name."""
    return Symbol(kind, name)


def iterator(chain: str, **columns: Any) -> Symbol:
    """A call of a tf.data iterator, `Root::Prefetch::Map`; columns are those of `IteratorTable`."""
    return Symbol(EventKind.INPUT_WORK, f"Iterator::{chain}", iterator=columns)


def function_run(number: int, name: str = "InstantiatedCapturedFunction::RunAsync") -> Symbol:
    """A part of a call of a user's function in tf.data: its start, or the executor's work."""
    is_start = name.startswith("InstantiatedCapturedFunction::")
    kind = EventKind.INPUT_WORK if is_start else EventKind.ANNOTATION
    return Symbol(kind, name, iterator={"run": number})


def operator(name: str, *, launches: bool = True, **columns: Any) -> Symbol:
    """A framework operator; columns are those of `OperatorTable` (shapes, dtypes, …)."""
    return Symbol(EventKind.OPERATOR, name, launches, operator=columns)


def kernel(
    name: str,
    *,
    family: KernelFamily = KernelFamily.OTHER,
    precision: Precision = Precision.UNKNOWN,
    **columns: Any,
) -> Symbol:
    """A kernel; further columns are those of `KernelTable`."""
    return Symbol(
        EventKind.KERNEL, name, kernel={"family": family, "precision": precision, **columns}
    )


def collective(
    name: str, operation: str = "all-reduce", *, on_host: bool = False, **columns: Any
) -> Symbol:
    """A collective; columns are those of `CollectiveTable` (size_bytes, dtype, group_size, …).

    By default, the type comes from the name, and each rank sends all of its bytes.
    """
    kind = EventKind.HOST_COLLECTIVE if on_host else EventKind.COLLECTIVE
    # On a GPU a collective is a kernel, so readers add it to the kernel table as well.
    kernel_columns = _NONE if on_host else {"family": KernelFamily.COLLECTIVE}
    if not on_host and (dtype := collective_dtype(name)):
        columns.setdefault("dtype", dtype)
    if "size_bytes" in columns:
        columns.setdefault("sent_bytes", columns["size_bytes"])
    return Symbol(kind, name, kernel=kernel_columns, collective={"operation": operation, **columns})


def copy(name: str, direction: CopyDirection, **columns: Any) -> Symbol:
    """A copy; columns are those of `CopyTable` (size_bytes, pageable)."""
    return Symbol(EventKind.COPY, name, copy={"direction": direction, **columns})


def xla_op(
    name: str,
    text: str = "",
    *,
    kind: EventKind = EventKind.KERNEL,
    family: KernelFamily = KernelFamily.OTHER,
    precision: Precision = Precision.UNKNOWN,
    **columns: Any,
) -> Symbol:
    """An XLA op on a TPU core; columns are those of `HloTable` (category, module, flop, …)."""
    kernel_columns = {"family": family, "precision": precision}
    return Symbol(
        kind,
        name,
        kernel=kernel_columns if kind == EventKind.KERNEL else _NONE,
        hlo={"text": text, **columns} if text else columns,
    )


_STEP_NAMES: Mapping[Framework, str] = {
    "pytorch": "ProfilerStep#{number}",  # T213
    "jax": "train",  # JAX: StepTraceAnnotation("train", step_num=…)
    "tensorflow": "Profiled batch",  # TF: Keras
}


def step_name(framework: Framework, number: int) -> str:
    """What a framework calls its step markers."""
    return _STEP_NAMES.get(framework, "train").format(number=number)


_PYTORCH_HOST: Mapping[str, Symbol] = {
    # T213; K0 has the single-process variant.
    "D": host(
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", EventKind.INPUT_WAIT
    ),
    # TF. Kineto files have no such events: PyTorch's loader works in other processes.
    "d": host("Iterator::Root::MapAndBatch::Range", EventKind.INPUT_WORK),
    "o": operator("aten::mm"),
    "O": operator("aten::embedding_bag", launches=False),
    "L": host("cudaLaunchKernel", EventKind.LAUNCH),
    "S": host("cudaStreamSynchronize", EventKind.SYNCHRONIZE),
    "A": host("cudaMalloc", EventKind.ALLOCATE),
    "R": host("cudaGetDeviceProperties_v2", EventKind.RUNTIME),
    "C": collective("gloo:all_reduce", on_host=True),  # T213
    # torch/_dynamo/utils.py (dynamo_timed) names its ranges like this.
    "c": host("_compile.compile_inner (dynamo_timed)", EventKind.COMPILE),
    "p": host("torch/nn/modules/module.py(1751): _wrapped_call_impl", EventKind.PYTHON),
    "u": host("## RecMetricModule:update ##"),  # HTA
    "B": operator("autograd::engine::evaluate_function: MmBackward0"),  # HTA
    "z": host("Optimizer.step#SGD.step"),  # K0
    "Z": host("Optimizer.zero_grad#SGD.zero_grad"),  # K0
    "v": host("Activity Buffer Request", EventKind.OVERHEAD),  # TL
}
_XLA_HOST: Mapping[str, Symbol] = {
    **_PYTORCH_HOST,
    "D": host("IteratorGetNextOp::DoCompute", EventKind.INPUT_WAIT),  # TF
    "o": Symbol(EventKind.ANNOTATION, "PjitFunction(step)", launches=True),  # JAX
    "L": host("DoEnqueueProgram", EventKind.LAUNCH),
    "S": host("np.asarray(jax.Array)", EventKind.SYNCHRONIZE),
    "C": collective("InvokeRendezvous", on_host=True),
    "c": host("backend_compile", EventKind.COMPILE),  # JAX
    "p": host("$callbacks.py:60 on_step_end", EventKind.PYTHON),  # Python's tracer: $file:line
    "u": host("callbacks"),
}
_TENSORFLOW_HOST: Mapping[str, Symbol] = {
    **_XLA_HOST,
    "o": operator("model/dense/MatMul:MatMul"),
    "O": operator("StringToHashBucketFast:StringToHashBucketFast", launches=False),
    "c": host("tf.function-graph_building", EventKind.COMPILE),
    "L": host("cuLaunchKernel", EventKind.LAUNCH),
    "S": host("cuStreamSynchronize", EventKind.SYNCHRONIZE),
    "A": host("cuMemAlloc_v2", EventKind.ALLOCATE),
}
_ALLREDUCE = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"  # HTA
_HOPPER_GEMM = (  # TL
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1"
    "_execute_segment_k_off_kernel__5x_cublas"
)
_GPU: Mapping[str, Symbol] = {
    "K": kernel(  # HTA
        "ampere_sgemm_128x64_nn",
        family=KernelFamily.MATMUL,
        precision=Precision.BITS_32,
        tensor_cores=0,
    ),
    "H": kernel(
        _HOPPER_GEMM, family=KernelFamily.MATMUL, precision=Precision.BITS_16, tensor_cores=1
    ),
    # TL (vLLM). The name shows that Inductor made it, but not its precision.
    "k": kernel("triton_poi_fused_0", family=KernelFamily.ELEMENTWISE),
    "N": collective(_ALLREDUCE),
    "h": copy("Memcpy HtoD (Pinned -> Device)", CopyDirection.HOST_TO_DEVICE, pageable=0),  # HTA
    "q": copy("Memcpy HtoD (Pageable -> Device)", CopyDirection.HOST_TO_DEVICE, pageable=1),  # K0
    "g": copy("Memcpy DtoH (Device -> Pageable)", CopyDirection.DEVICE_TO_HOST, pageable=1),  # HTA
    "b": copy("Memcpy DtoD (Device -> Device)", CopyDirection.DEVICE_TO_DEVICE),  # HTA
    "m": host("Memset (Device)", EventKind.MEMSET),  # K0
    "u": host("nccl:all_reduce", EventKind.DEVICE_ANNOTATION),  # HTA
    "s": host("Context Sync", EventKind.DEVICE_SYNC),  # HTA
}
_TPU: Mapping[str, Symbol] = {
    "X": xla_op(
        "fusion.1",
        "%fusion.1 = bf16[1024,1024]{1,0:T(8,128)(2,1)} fusion("
        "bf16[1024,1024]{1,0:T(8,128)(2,1)} %p0, bf16[1024,1024]{1,0:T(8,128)(2,1)} %p1), "
        "kind=kOutput, calls=%fused_computation.1",
        family=KernelFamily.MATMUL,
        precision=Precision.BITS_16,
        category="convolution fusion",
    ),
    "Y": xla_op(
        "fusion.2",
        "%fusion.2 = f32[1024,1024]{1,0:T(8,128)} fusion("
        "f32[1024,1024]{1,0:T(8,128)} %p0), kind=kLoop, calls=%fused_computation.2",
        family=KernelFamily.ELEMENTWISE,
        precision=Precision.BITS_32,
        category="loop fusion",
    ),
    "N": replace(
        xla_op(  # XP has `%all-reduce` under this category
            "all-reduce.1",
            "%all-reduce.1 = f32[1024,1024]{1,0:T(8,128)} all-reduce("
            "f32[1024,1024]{1,0:T(8,128)} %p0), channel_id=1, replica_groups=[1,8]<=[8]",
            kind=EventKind.COLLECTIVE,
            category="all-reduce",
        ),
        collective={
            "operation": "all-reduce",
            "size_bytes": 1024 * 1024 * 4,
            "dtype": "f32",
            "group_size": 8,
        },
    ),
    "I": xla_op(
        "infeed.1",
        "%infeed.1 = (f32[8,128]{1,0:T(8,128)}, token[]) infeed(token[] %after-all)",
        kind=EventKind.INFEED_WAIT,
        category="infeed",
    ),
}
# Lines that repeat or cover real work, named as in XProf.
DERIVED_LINES: Mapping[str, tuple[str, Symbol]] = {
    "modules": ("XLA Modules", host("jit_step(12190760917235803885)", EventKind.DEVICE_MODULE)),
    "steps": ("Steps", host("", EventKind.DEVICE_STEP)),
    "async": ("Async XLA Ops", host("async-copy", EventKind.DEVICE_ASYNC)),  # XP
    "barriers": ("XLA TraceMe", host("barrier-cores", EventKind.DEVICE_ANNOTATION)),  # XP
    "scope": ("Framework Name Scope", host("jit(step)/dense", EventKind.DEVICE_ANNOTATION)),
}


def host_alphabet(framework: Framework) -> Mapping[str, Symbol]:
    """The letters of host threads."""
    if framework == "tensorflow":
        return _TENSORFLOW_HOST
    return _XLA_HOST if framework == "jax" else _PYTORCH_HOST


def device_alphabet(kind: str) -> Mapping[str, Symbol]:
    """The letters of a device's lanes: `gpu` or `tpu`."""
    return _TPU if kind == "tpu" else _GPU
