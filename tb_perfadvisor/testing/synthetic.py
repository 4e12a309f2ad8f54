"""Made-up profiles of machines that nobody lent us: the demo's TPU and its eight GPUs.

Each comes twice, slow and with its fix. Times follow from sizes and from rates of the devices'
data sheets, so that what an advisor should say can be worked out by hand; nothing is random.
The files are marked as made up, and so are their labels.
"""

from __future__ import annotations

import gzip
import json
from math import ceil
from pathlib import Path
from typing import Any

from msgspec import Struct

from tb_perfadvisor.testing.builder import TraceBuilder, ms, us
from tb_perfadvisor.testing.symbols import kernel
from tb_perfadvisor.testing.writers import write_kineto, write_xplane
from tb_perfadvisor.trace import EventKind, KernelFamily, Precision, Trace

_ORIGIN_UNIX_NS = 1_767_225_600_000_000_000  # 2026-01-01
_SESSION = "2026_01_01_00_00_00"
_SCRIPT = "demo_logs/record/synthetic.py"
_STEPS = 6

# Google Cloud documentation, "TPU v5e": dense bf16, HBM; reached shares as matrix products of
# this size and streaming operations commonly do.
_TPU_FLOP_PER_S = 197e12
_TPU_BYTES_PER_S = 819e9
_TPU_REACHED = 0.7
_TPU_MODULE = "jit_train_step(4711)"


class Sizes(Struct, frozen=True):
    """Of one feed-forward block, on one core."""

    rows: int
    features: int
    hidden: int


PADDED = Sizes(rows=1024, features=520, hidden=2100)
"""520 and 2100 are no multiples of 128: they take the room of 640 and 2176."""
FITTING = Sizes(rows=1024, features=512, hidden=2176)
"""No smaller a model: 512 x 2176 is 2 % more than 520 x 2100."""
_LAYERS = 12


def tpu_training(sizes: Sizes) -> Trace:
    """A JAX training step of feed-forward blocks on one core of a TPU v5e."""
    builder = TraceBuilder(
        "jax", version="0.10.2", host="host0", path="host0", origin_unix_ns=_ORIGIN_UNIX_NS
    )
    builder.device(
        "TPU v5 lite",
        kind="tpu",
        memory_bytes=16 * 2**30,
        reported_flop_per_s=_TPU_FLOP_PER_S,
        reported_bandwidth_bytes_per_s=_TPU_BYTES_PER_S,
    )
    operations = _operations(sizes)
    # The host runs one step ahead: it dispatches, then waits for the loss of the step before.
    lag_ns = us(60)
    step_ns = sum(operation.duration_ns for operation in operations) + us(4)
    for step in range(_STEPS):
        start = step * step_ns
        builder.step(step, start, start + step_ns, thread="python")
        builder.annotation(
            "PjitFunction(train_step)", start + us(2), start + us(50), thread="python"
        )
        key = f"launch {step}"
        builder.launch(
            start + us(20), start + us(40), name="DoEnqueueProgram", thread="python", key=key
        )
        builder.host(
            EventKind.SYNCHRONIZE,
            "np.asarray(jax.Array)",
            start + us(55),
            start + step_ns - us(5),
            thread="python",
        )
        at = start + lag_ns
        first = at
        for operation in operations:
            builder.xla_op(
                operation.name,
                at,
                at + operation.duration_ns,
                text=operation.text,
                family=operation.family,
                precision=Precision.BITS_16,
                launched_by=key,
                category=operation.category,
                module=_TPU_MODULE,
                flop=operation.flop,
                traffic_bytes=operation.traffic_bytes,
                source_line=operation.source_line,
            )
            at += operation.duration_ns
        builder.derived("modules", _TPU_MODULE, first, at, launched_by=key)
        builder.derived("steps", str(step), first, at, step=step)
    return builder.build()


class _Operation(Struct, frozen=True):
    name: str
    text: str
    category: str
    family: KernelFamily
    duration_ns: int
    flop: float
    traffic_bytes: float
    source_line: str


def _operations(sizes: Sizes) -> list[_Operation]:
    """Forward and backward of all layers, then the update."""
    rows, features, hidden = sizes.rows, sizes.features, sizes.hidden
    found: list[_Operation] = []
    for _ in range(_LAYERS):
        found.append(_dot(len(found), (rows, features), (features, hidden), 31))
        found.append(_elementwise(len(found), (rows, hidden), 32))
        found.append(_dot(len(found), (rows, hidden), (hidden, features), 33))
    for _ in range(_LAYERS):
        found.append(_dot(len(found), (rows, features), (features, hidden), 47))
        found.append(_dot(len(found), (hidden, rows), (rows, features), 47))
        found.append(_elementwise(len(found), (rows, hidden), 47))
        found.append(_dot(len(found), (rows, hidden), (hidden, features), 47))
        found.append(_dot(len(found), (features, rows), (rows, hidden), 47))
    for _ in range(_LAYERS):
        found.append(_elementwise(len(found), (features, hidden), 52))
        found.append(_elementwise(len(found), (hidden, features), 52))
    return found


def _dot(number: int, left: tuple[int, int], right: tuple[int, int], line: int) -> _Operation:
    name = f"dot.{number}"
    result = (left[0], right[1])
    text = (
        f"%{name} = {_shape(result)} dot({_shape(left)} %lhs.{number}, {_shape(right)} "
        f"%rhs.{number}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
    )
    # The matrix unit works on whole tiles: 8 rows of results, 128 columns, 128 contracted.
    done = _up(result[0], 8) * _up(result[1], 128) * _up(left[1], 128)
    seconds = 2 * done / (_TPU_FLOP_PER_S * _TPU_REACHED)
    useful = 2 * result[0] * result[1] * left[1]
    return _Operation(
        name,
        text,
        "convolution",
        KernelFamily.MATMUL,
        round(seconds * 1e9),
        float(useful),
        float(2 * sum(_stored(shape) for shape in (left, right, result))),
        f"train.py:{line}",
    )


def _elementwise(number: int, shape: tuple[int, int], line: int) -> _Operation:
    name = f"fusion.{number}"
    text = (
        f"%{name} = {_shape(shape)} fusion({_shape(shape)} %param.{number}), kind=kLoop, "
        f"calls=%fused_computation.{number}"
    )
    moved = 2 * 2 * _stored(shape)  # read and written, two bytes each
    seconds = moved / (_TPU_BYTES_PER_S * _TPU_REACHED)
    return _Operation(
        name,
        text,
        "loop fusion",
        KernelFamily.ELEMENTWISE,
        round(seconds * 1e9),
        float(shape[0] * shape[1]),
        float(moved),
        f"train.py:{line}",
    )


def _shape(dims: tuple[int, int]) -> str:
    return f"bf16[{dims[0]},{dims[1]}]{{1,0:T(8,128)(2,1)}}"


def _stored(dims: tuple[int, int]) -> int:
    return _up(dims[0], 8) * _up(dims[1], 128)


def _up(size: int, multiple: int) -> int:
    return ceil(size / multiple) * multiple


_RANKS = 8
_BUCKETS = 16
_BLOCKS = 16


class Wire(Struct, frozen=True):
    """How gradients travel: 100 million parameters in 16 buckets."""

    item_bytes: int
    dtype: str
    kernel: str
    bytes_per_s: float
    """Reached by each rank in each direction."""

    @property
    def bucket_bytes(self) -> int:
        """Of one bucket."""
        return 100_000_000 * self.item_bytes // _BUCKETS

    @property
    def transfer_ns(self) -> int:
        """Of one bucket: a ring moves 2 (n-1)/n of it, after the launch's latency."""
        wire = 2 * (_RANKS - 1) / _RANKS * self.bucket_bytes / self.bytes_per_s
        return round(wire * 1e9) + us(20)


# 12 GB/s is what PCIe 3.0 x16 gives: peer access is off, and gradients are fp32.
OVER_PCIE = Wire(
    4,
    "Float",
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
    12e9,
)
# NVLink reaches about 360 of its 450 GB/s; gradients are compressed to bf16.
OVER_NVLINK = Wire(
    2,
    "BFloat16",
    "ncclKernel_AllReduce_RING_LL_Sum___nv_bfloat16(ncclDevComm*, unsigned long, ncclWork*)",
    360e9,
)
_GEMM = kernel(
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1"
    "_execute_segment_k_off_kernel__5x_cublas",
    family=KernelFamily.MATMUL,
    precision=Precision.BITS_16,
    tensor_cores=1,
    grid_blocks=528,
    block_threads=384,
    registers=168,
)
_UPDATE = kernel(
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<"
    "at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>>",
    family=KernelFamily.OPTIMIZER,
    grid_blocks=1320,
    block_threads=512,
)
_FORWARD_NS = ms(10) // _BLOCKS
_BACKWARD_NS = ms(20) // _BLOCKS
_UPDATE_NS = ms(2)
_LEAD_NS = us(40)
"""From a launch to its kernel, at the least."""


def gpu_data_parallel(wire: Wire) -> tuple[Trace, ...]:
    """Eight ranks of PyTorch's DistributedDataParallel on H100s, four steps each."""
    builders = [_rank_builder(rank) for rank in range(_RANKS)]
    begin = [0] * _RANKS
    for step in range(4):
        # Ranks differ by a few microseconds in compute: who comes first waits for the others.
        slower = [us(5) * ((3 * rank + step) % _RANKS) for rank in range(_RANKS)]
        ends = _buckets(begin, slower, wire)
        finish = ends[-1][1] + _UPDATE_NS
        for rank, builder in enumerate(builders):
            starts = [
                (_ready(begin[rank], bucket, slower[rank]), *ends[bucket])
                for bucket in range(_BUCKETS)
            ]
            _add_step(builder, step, begin[rank], finish, slower[rank], starts, wire)
        begin = [finish + us(60)] * _RANKS
    return tuple(builder.build() for builder in builders)


def _rank_builder(rank: int) -> TraceBuilder:
    builder = TraceBuilder(
        rank=rank,
        world_size=_RANKS,
        backend="nccl",
        host="host0",
        path=f"rank{rank}",
        has_shapes=True,
        has_stacks=False,
        has_memory=False,
        origin_unix_ns=_ORIGIN_UNIX_NS,
    )
    # Every rank sees its own GPU as device 0.
    return builder.device("NVIDIA H100 80GB HBM3", memory_bytes=85_018_279_936, multiprocessors=132)


def _ready(begin: int, bucket: int, slower: int) -> int:
    """When backward has produced a bucket."""
    blocks = (bucket + 1) * _BLOCKS // _BUCKETS
    return begin + _LEAD_NS + _BLOCKS * _FORWARD_NS + blocks * _BACKWARD_NS + slower


def _buckets(begin: list[int], slower: list[int], wire: Wire) -> list[tuple[int, int]]:
    """(earliest start, end) of each bucket: all ranks leave an all-reduce together."""
    found: list[tuple[int, int]] = []
    free = 0
    for bucket in range(_BUCKETS):
        last = max(_ready(begin[rank], bucket, slower[rank]) for rank in range(_RANKS))
        end = max(last, free) + wire.transfer_ns
        found.append((free, end))
        free = end
    return found


def _add_step(
    builder: TraceBuilder,
    step: int,
    begin: int,
    finish: int,
    slower: int,
    buckets: list[tuple[int, int, int]],
    wire: Wire,
) -> None:
    """One step of one rank: kernels as they run, and the host ahead of them, then waiting."""
    builder.step(step, begin, finish + us(60))
    at = begin + _LEAD_NS
    call = us(12)
    shapes = [[4096], [8192, 4096], [4096, 4096]]
    types = ["c10::BFloat16"] * 3
    for block in range(_BLOCKS):
        start = begin + block * call
        builder.operator(
            "aten::addmm", start, start + us(10), shapes=shapes, dtypes=types,
            key=f"{step} forward {block}", sequence=block,
        )  # fmt: skip
        builder.add(_GEMM, at, at + _FORWARD_NS, launched_by=f"{step} forward {block}")
        at += _FORWARD_NS
    at += slower
    enqueued = begin + _BLOCKS * call
    for block in range(_BLOCKS):
        start = enqueued + block * us(30)
        builder.operator(
            "autograd::engine::evaluate_function: AddmmBackward0", start, start + us(14),
            thread="pt_autograd_0", key=f"{step} backward {block}", sequence=_BLOCKS - 1 - block,
            forward=f"{step} forward {_BLOCKS - 1 - block}",
        )  # fmt: skip
        builder.add(_GEMM, at, at + _BACKWARD_NS, launched_by=f"{step} backward {block}")
        at += _BACKWARD_NS
        key = f"{step} bucket {block}"
        builder.annotation(
            "nccl:all_reduce", start + us(15), start + us(29), thread="pt_autograd_0"
        )
        builder.launch(
            start + us(18), start + us(26), name="cudaLaunchKernelExC", thread="pt_autograd_0",
            key=key,
        )  # fmt: skip
        ready, free, end = buckets[block]
        builder.collective(
            wire.kernel, max(ready, free), end, launched_by=key, size_bytes=wire.bucket_bytes,
            dtype=wire.dtype, group_size=_RANKS, group="0", sequence=step * _BUCKETS + block,
        )  # fmt: skip
    after = enqueued + _BLOCKS * us(30) + us(10)
    builder.annotation("Optimizer.step#AdamW.step", after, after + us(40))
    builder.operator("aten::_fused_adamw_", after + us(5), after + us(35), key=f"{step} update")
    builder.add(_UPDATE, finish - _UPDATE_NS, finish, launched_by=f"{step} update")
    # loss.item() for the progress bar.
    builder.operator("aten::item", after + us(50), finish + us(10), launches=False)
    builder.synchronize(after + us(52), finish + us(5))


def write_synthetic(directory: Path) -> None:
    """Write all made-up profiles and their labels below a directory."""
    for name, files, label in _profiles():
        for path, data in files.items():
            target = directory / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(gzip.compress(data, mtime=0) if path.endswith(".gz") else data)
        text = json.dumps(label, indent=2, ensure_ascii=False)
        (directory / name / "label.json").write_text(text + "\n", encoding="utf-8")


def _profiles() -> list[tuple[str, dict[str, bytes], dict[str, Any]]]:
    tpu = "synthetic_tpu_padded"
    gpu = "synthetic_gpu_allreduce_8rank"
    return [
        _tpu(tpu, f"{tpu}_fixed", "slow", PADDED),
        _tpu(f"{tpu}_fixed", tpu, "fixed", FITTING),
        _gpu(gpu, f"{gpu}_fixed", "slow", OVER_PCIE),
        _gpu(f"{gpu}_fixed", gpu, "fixed", OVER_NVLINK),
    ]


def _tpu(
    name: str, pair: str, role: str, sizes: Sizes
) -> tuple[str, dict[str, bytes], dict[str, Any]]:
    trace = tpu_training(sizes)
    files = {f"plugins/profile/{_SESSION}/host0.xplane.pb": write_xplane(trace)}
    label = _label(
        name, pair, role, trace,
        framework="jax",
        device="TPU v5 lite",
        cause=(
            "feature sizes 520 and 2100 are no multiples of 128, so that the matrix unit works "
            "on 640 and 2176; the fixed one has 512 and 2176"
        ),
        findings=["padded-shapes"],
        absent=["input-stall", "full-precision-compute", "memory-near-capacity"],
        notes="Durations are padded work over 70 % of the data sheet's peaks.",
    )  # fmt: skip
    return name, files, label


def _gpu(
    name: str, pair: str, role: str, wire: Wire
) -> tuple[str, dict[str, bytes], dict[str, Any]]:
    traces = gpu_data_parallel(wire)
    files = {
        f"rank{rank}.{_ORIGIN_UNIX_NS}.pt.trace.json.gz": write_kineto(trace)
        for rank, trace in enumerate(traces)
    }
    label = _label(
        name, pair, role, traces[0],
        framework="pytorch",
        device="8x NVIDIA H100 80GB HBM3",
        cause=(
            "400 MB of fp32 gradients per step go over PCIe at 12 GB/s, although NVLink is "
            "there; the fixed one sends bf16 at 360 GB/s"
        ),
        findings=["exposed-communication", "long-all-reduce"],
        absent=["input-stall", "full-precision-compute", "memory-near-capacity", "step-gap"],
        notes="A bucket takes 2 (n-1)/n of its bytes over the rate; backward takes 20 ms.",
    )  # fmt: skip
    return name, files, label


def _label(
    name: str,
    pair: str,
    role: str,
    trace: Trace,
    *,
    framework: str,
    device: str,
    cause: str,
    findings: list[str],
    absent: list[str],
    notes: str,
) -> dict[str, Any]:
    steps = trace.rows(EventKind.STEP)
    begin, end = trace.events.start_ns[steps[0]], trace.events.end_ns[steps[-1]]
    step_ns = round(int(end - begin) / len(steps))
    is_slow = role == "slow"
    return {
        "schema": 1,
        "id": name,
        "pair": pair,
        "role": role,
        "synthetic": True,
        "framework": framework,
        "producer": {"tb_perfadvisor": "testing.synthetic"},
        "device": device,
        "cause": cause,
        "acceptable_first_findings": findings if is_slow else [],
        "must_not_find": absent if is_slow else sorted({*absent, *findings}),
        "true_step_ns": {
            "median": step_ns,
            "repetitions": [step_ns],
            "definition": "as made up: from the first step's start to the last one's end, by step",
        },
        "profiled_step_ns": step_ns,
        "recorded_with": _SCRIPT,
        "notes": notes,
    }
