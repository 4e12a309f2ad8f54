from __future__ import annotations

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, ms, run_of

GIB = 2**30


def builder_with_a_kernel() -> TraceBuilder:
    return TraceBuilder().device("NVIDIA A100-SXM4-80GB", memory_bytes=80 * GIB).kernel("a", 0, 1)


def test_peaks_of_the_device() -> None:
    builder = builder_with_a_kernel()
    for at, allocated, reserved in ((1, 10, 20), (2, 60, 70), (3, 30, 72)):
        builder.memory(ms(at), 1, allocated_bytes=allocated * GIB, reserved_bytes=reserved * GIB)
    builder.memory(ms(4), 1, allocated_bytes=200 * GIB, device=-1)  # the host's own
    memory = Signals(run_of(builder.build())).memory
    assert memory is not None
    assert memory.peak_allocated_bytes == 60 * GIB
    assert (memory.peak_reserved_bytes, memory.capacity_bytes) == (72 * GIB, 80 * GIB)


def test_changes_without_totals_have_no_peak() -> None:
    memory = Signals(run_of(builder_with_a_kernel().memory(ms(1), 512).build())).memory
    assert memory is not None
    assert (memory.peak_allocated_bytes, memory.peak_reserved_bytes) == (None, None)


def test_host_memory_is_not_device_memory() -> None:
    builder = builder_with_a_kernel().memory(ms(1), 512, allocated_bytes=512, device=-1)
    assert Signals(run_of(builder.build())).memory is None
    cpu = TraceBuilder().operator("aten::mm", 0, 1).memory(ms(1), 512, device=-1)
    assert Signals(run_of(cpu.build())).memory is None
