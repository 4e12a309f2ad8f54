"""Eight GPUs that reduce gradients over PCIe, and the same over NVLink."""

from __future__ import annotations

from msgspec import Struct

from demo_logs.record.synthetic_clock import ORIGIN_UNIX_NS
from tb_perfadvisor.testing.builder import TraceBuilder, ms, us
from tb_perfadvisor.testing.symbols import kernel
from tb_perfadvisor.trace import KernelFamily, Precision, Trace

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
        """Bytes of one bucket."""
        return 100_000_000 * self.item_bytes // _BUCKETS

    @property
    def transfer_ns(self) -> int:
        """Duration for one bucket: a ring moves 2 (n-1)/n of it, after the launch's latency."""
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
        # Ranks differ by a few microseconds in compute: early ranks wait for the others.
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
        origin_unix_ns=ORIGIN_UNIX_NS,
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
    """One step of one rank: the kernels, and the host, which runs ahead and then waits."""
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
