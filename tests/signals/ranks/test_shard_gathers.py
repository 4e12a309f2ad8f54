"""All-gathers of FSDP2, with the annotations of its recordings (PyTorch 2.13)."""

from __future__ import annotations

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.ranks.exposed_communication import (
    gathered_once,
)
from tb_perfadvisor.signals.workload.workload import Part, workload
from tb_perfadvisor.testing import TraceBuilder, ms, run_of, us

NODE = "autograd::engine::evaluate_function: AddBackward0"


def layers(*, prefetches: bool = False, again: bool = True, begins: float = 0.0) -> Signals:
    """Two layers of 4 ms forward and 4 ms backward; each gather takes 2 ms.

    Args:
        prefetches: Whether the hook of the first layer also gathers the second.
        again: Whether the backward pass gathers the first layer again.
        begins: How long before the end of the first layer's compute the second gather begins, ms.
    """
    builder = TraceBuilder(rank=0, world_size=2, backend="nccl").step(0, 0, ms(20))
    gathers = [("0", "0", 0.0), ("1", "0" if prefetches else "1", 6.0 - begins)]
    for number, (module, hook, at) in enumerate(gathers):
        start = us(100 * number)
        builder.annotation(f"FSDP::pre_forward ({hook})", start, start + us(90))
        builder.annotation(f"FSDP::all_gather ({module})", start + us(10), start + us(80))
        builder.launch(start + us(20), start + us(30), key=module)
        builder.collective(
            "ncclDevKernel_AllGather_RING_LL(x)", ms(at), ms(at + 2), operation="all-gather",
            launched_by=module,
        )  # fmt: skip
    builder.kernel("gemm", ms(2), ms(6))
    builder.kernel("gemm", ms(8), ms(12))
    builder.operator(NODE, us(300), us(400), key="backward")
    if again:
        builder.annotation("FSDP::pre_backward (1)", us(310), us(390))
        builder.annotation("FSDP::backward_prefetch for 0", us(320), us(380))
        builder.annotation("FSDP::all_gather (0)", us(330), us(370))
        builder.launch(us(340), us(350), key="again")
        builder.collective(
            "ncclDevKernel_AllGather_RING_LL(x)", ms(12), ms(14), operation="all-gather",
            launched_by="again",
        )  # fmt: skip
    builder.kernel("gemm", ms(14), ms(18), launched_by="backward")
    return Signals(run_of(builder.build()))


def test_programs_that_keep_whole_parameters_gather_once() -> None:
    signals = layers(again=False)
    assert gathered_once(signals) == 2
    assert workload(signals).has(Part.GATHERED_ONCE)
    assert gathered_once(layers()) is None
    assert not workload(layers()).has(Part.GATHERED_ONCE)
