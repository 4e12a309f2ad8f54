from __future__ import annotations

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.host.buffer_broadcasts import buffer_broadcasts
from tb_perfadvisor.testing import TraceBuilder, ms, run_of
from tb_perfadvisor.trace import EventKind, Trace

# Names from TraceLens' resnet_act_checkpoint, which was recorded with stacks.
SYNC = "torch/nn/parallel/distributed.py(2174): _sync_module_buffers"


def forward(*operators: str, thread: str = "main") -> Trace:
    """Operators of 1 ms each, the first ones inside a Python frame of a forward pass."""
    builder = TraceBuilder(rank=0, world_size=8).step(0, 0, ms(20))
    builder.annotation("DistributedDataParallel.forward", 0, ms(15), thread=thread)
    builder.host(EventKind.PYTHON, SYNC, 1, ms(10), thread=thread)
    for index, name in enumerate(operators):
        start = ms(1 + index)
        builder.operator(name, start, start + ms(1), thread=thread)
    builder.kernel("gemm", ms(len(operators)), ms(18))
    return builder.build()


def test_from_the_first_packing_to_the_last_copy() -> None:
    found = buffer_broadcasts(
        Signals(
            run_of(
                forward(
                    "aten::to",
                    "aten::flatten_dense_tensors",
                    "c10d::broadcast_",
                    "aten::unflatten_dense_tensors",
                    "aten::copy_",
                    "aten::copy_",
                    "aten::conv2d",
                    "aten::copy_",
                )
            )
        )
    )
    assert found.forwards == 1
    assert found.spans.tolist() == [[ms(2), ms(7)]]
    assert len(found.operators) == 5


def test_forward_passes_without_a_broadcast_have_none() -> None:
    found = buffer_broadcasts(Signals(run_of(forward("aten::flatten_dense_tensors", "aten::mm"))))
    assert (found.forwards, len(found.spans), len(found.idle)) == (0, 0, 0)


def test_a_program_without_ddp_has_none() -> None:
    trace = TraceBuilder().step(0, 0, ms(5)).kernel("gemm", ms(1), ms(2)).build()
    assert buffer_broadcasts(Signals(run_of(trace))).forwards == 0
