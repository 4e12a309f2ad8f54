from __future__ import annotations

import pytest

from tb_perfadvisor.testing import TraceBuilder, ms, run_of, us
from tb_perfadvisor.trace import CopyDirection, EventKind, Precision


def test_a_built_trace_has_what_was_given() -> None:
    trace = (
        TraceBuilder(rank=1, world_size=2, has_shapes=True)
        .device("NVIDIA H100 80GB HBM3", memory_bytes=85_899_345_920, multiprocessors=132)
        .step(5, ms(0), ms(10))
        .operator(
            "aten::mm", ms(1), ms(2), shapes=[[8, 128], [128, 64]], dtypes=["float", "float"],
            sequence=17, key="forward",
        )
        .kernel("ampere_sgemm_128x64_nn", ms(2), ms(9), precision=Precision.BITS_32, registers=64)
        .operator(
            "autograd::engine::evaluate_function: MmBackward0", ms(3), ms(4), thread="autograd",
            launches=False, forward="forward",
        )
        .copy(CopyDirection.HOST_TO_DEVICE, ms(9), ms(10), size_bytes=4096, pageable=1)
        .memory(ms(1), 512, allocated_bytes=1024, reserved_bytes=2048, address=7)
        .build()
    )  # fmt: skip
    assert (trace.source.rank, trace.source.world_size, trace.source.has_shapes) == (1, 2, True)
    assert trace.devices[0].multiprocessors == 132
    assert trace.text(trace.operators.shapes[0]) == "[[8,128],[128,64]]"
    assert trace.text(trace.operators.dtypes[0]) == "float;float"
    assert trace.operators.sequence.tolist() == [17]
    assert trace.kernels.registers.tolist() == [64]
    assert trace.copies.size_bytes.tolist() == [4096]
    assert trace.name(trace.copies.row[0]) == "Memcpy HtoD (Pageable -> Device)"
    assert trace.memory.allocated_bytes.tolist() == [1024]
    backward = next(r for r in trace.rows(EventKind.OPERATOR) if "Backward" in trace.name(r))
    assert trace.name(trace.events.forward[backward]) == "aten::mm"
    # Kernel and copy: both by the launch inside aten::mm, the only one there is.
    assert len(trace.rows(EventKind.LAUNCH)) == 1


def test_launches_by_key_and_none_at_all() -> None:
    trace = (
        TraceBuilder()
        .launch(us(0), us(5), key="first")
        .launch(us(10), us(15))
        .kernel("a", us(20), us(30), launched_by="first")
        .kernel("b", us(30), us(40))
        .kernel("c", us(40), us(50), launched_by="")
        .build()
    )
    by = trace.events.launched_by[trace.rows(EventKind.KERNEL)]
    assert trace.events.start_ns[by[:2]].tolist() == [0, 10_000]
    assert by[2] == -1


def test_equal_xla_ops_are_one_row() -> None:
    text = "%dot.1 = f32[8,8]{1,0} dot(f32[8,8]{1,0} %a, f32[8,8]{1,0} %b)"
    builder = TraceBuilder("jax")
    for start in (0, 10, 20):
        builder.xla_op("dot.1", us(start), us(start + 5), text=text, flop=1024.0)
    trace = builder.xla_op("dot.2", us(30), us(35)).build()
    assert trace.hlo_events.op.tolist() == [0, 0, 0, 1]
    assert [trace.text(index) for index in trace.hlo.text] == [text, ""]
    assert trace.hlo.flop.tolist()[0] == 1024.0


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(TypeError, match="no field"):
        TraceBuilder(rnak=1)


def test_a_run_is_in_order_of_rank() -> None:
    traces = [TraceBuilder(rank=rank).annotation("x", 0, 1).build() for rank in (2, 0, 1)]
    run = run_of(*traces)
    assert [trace.source.rank for trace in run.traces] == [0, 1, 2]
