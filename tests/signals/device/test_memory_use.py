from __future__ import annotations

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.operators import Phase
from tb_perfadvisor.signals.device.memory_use import (
    Holder,
    MemoryUse,
    alive_by_operator,
    memory_use,
)
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of
from tb_perfadvisor.trace import EventKind

MIB = 1 << 20


def training(*, totals: bool = True, addresses: bool = True) -> Signals:
    """A step on a device with 100 MiB allocated before the recording."""
    changes = (
        # at, MiB, address, thread
        (1.5, 8, 1, "main"),  # inside the fetch
        (3.5, 20, 2, "main"),  # aten::linear's own aten::empty
        (4.5, 5, 3, "main"),
        (5.0, -5, 3, "main"),
        (6.5, 30, 4, "autograd"),
        (7.0, -20, 2, "autograd"),
        (8.5, 50, 5, "main"),  # optimizer state
        (9.5, 1, 6, "main"),  # no operator
        (9.7, -10, 99, "main"),  # allocated before the recording
    )
    builder = (
        TraceBuilder()
        .step(0, 0, ms(10))
        .host(EventKind.INPUT_WAIT, "enumerate(DataLoader)#x.__next__", ms(1), ms(2))
        .operator("aten::stack", ms(1), ms(2), launches=False)
        .operator("aten::linear", ms(3), ms(4))
        .operator("aten::empty", ms(3.2), ms(3.8), launches=False)
        .operator("aten::relu", ms(4), ms(6))
        .operator(
            "autograd::engine::evaluate_function: ReluBackward0", ms(6), ms(8), thread="autograd"
        )
        .operator("aten::threshold_backward", ms(6), ms(7.5), thread="autograd")
        .annotation("Optimizer.step#Adam.step", ms(8), ms(9))
        .operator("aten::zeros_like", ms(8.2), ms(8.8))
        .kernel("gemm", ms(4), ms(9))
    )
    allocated = 100
    for at, change, address, thread in changes:
        allocated += change
        builder.memory(
            ms(at),
            change * MIB,
            allocated_bytes=allocated * MIB if totals else -1,
            reserved_bytes=400 * MIB,
            address=address if addresses else -1,
            thread=thread,
        )
    return Signals(run_of(builder.build()))


def use_of(signals: Signals) -> MemoryUse:
    use = memory_use(signals)
    assert use is not None
    return use


def test_holders_at_the_peak_add_up_to_it() -> None:
    signals = training()
    use = use_of(signals)
    # 100 + 8 + 20 + 5 - 5 + 30 - 20 + 50 + 1 = 189 at 9.5 ms.
    assert use.at_ns[use.peak] == ms(9.5)
    assert use.allocated_bytes[use.peak] == 189 * MIB
    holders = alive_by_operator(signals, use, use.peak)
    assert holders == (
        Holder("", "", Phase.BEFORE, None, 100 * MIB),
        Holder("aten::zeros_like", "", Phase.OPTIMIZER, 1, 50 * MIB),
        Holder(
            "autograd::engine::evaluate_function: ReluBackward0", "", Phase.BACKWARD, 1, 30 * MIB
        ),
        Holder("aten::stack", "", Phase.INPUT, 1, 8 * MIB),
        Holder("", "", Phase.OTHER, 1, MIB),
    )


def test_allocations_of_a_gradient_tape_belong_to_the_backward_pass() -> None:
    # Names that TensorFlow 2.21 records in a Keras step.
    names = (
        "StatefulPartitionedCall/sequential_1/conv2d_1/Relu:_MklNativeFusedConv2D",
        "StatefulPartitionedCall/gradient_tape/sequential_1/conv2d_1/convolution:Conv2D",
    )
    builder = TraceBuilder(framework="tensorflow").step(0, 0, ms(10))
    for number, name in enumerate(names):
        builder.operator(name, ms(2 * number), ms(2 * number + 2), launches=False)
        builder.memory(
            ms(2 * number + 1),
            MIB,
            allocated_bytes=(number + 1) * MIB,
            device=-1,
            address=number,
            thread="main",
        )
    signals = Signals(run_of(builder.build()))
    use = use_of(signals)
    held = {holder.operator: holder.phase for holder in alive_by_operator(signals, use, use.peak)}
    assert held == dict(zip(names, (Phase.FORWARD, Phase.BACKWARD), strict=True))


def test_allocations_are_split_by_module() -> None:
    builder = TraceBuilder().step(0, 0, ms(10))
    for number in range(2):
        start = 4 * number
        name = f"nn.Module: Linear_{number}"
        builder.host(EventKind.PYTHON, name, ms(start), ms(start + 3))
        builder.operator("aten::linear", ms(start + 1), ms(start + 2))
        builder.kernel("gemm", ms(start + 2), ms(start + 3))
        builder.memory(
            ms(start + 1.5), MIB, allocated_bytes=(number + 1) * MIB, address=number, thread="main"
        )
    signals = Signals(run_of(builder.build()))
    use = use_of(signals)
    holders = alive_by_operator(signals, use, use.peak)
    held = {(holder.operator, holder.module) for holder in holders}
    assert held == {("aten::linear", "Linear_0"), ("aten::linear", "Linear_1")}


def test_allocations_belong_to_the_outermost_operator() -> None:
    signals = training()
    use = use_of(signals)
    during_relu = next(change for change, at in enumerate(use.at_ns.tolist()) if at == ms(4.5))
    holders = alive_by_operator(signals, use, during_relu)
    held = {holder.operator: holder.bytes for holder in holders}
    assert held == {
        "": 100 * MIB,
        "aten::linear": 20 * MIB,
        "aten::stack": 8 * MIB,
        "aten::relu": 5 * MIB,
    }


def test_preexisting_memory_no_longer_counts_once_freed() -> None:
    use = use_of(training())
    assert use.preexisting_bytes(use.peak) == 100 * MIB
    assert use.preexisting_bytes(len(use.at_ns) - 1) == 90 * MIB


def test_without_totals_memory_starts_at_zero() -> None:
    use = use_of(training(totals=False))
    assert not use.has_totals
    assert use.allocated_bytes[use.peak] == 89 * MIB
    assert use.preexisting_bytes(use.peak) is None


def test_without_addresses_live_allocations_are_unknown() -> None:
    signals = training(addresses=False)
    use = use_of(signals)
    assert use.alive_at(ms(5)) is None
    assert alive_by_operator(signals, use, use.peak) == ()


def test_without_a_device_memory_is_that_of_the_host() -> None:
    builder = TraceBuilder().step(0, 0, ms(2)).operator("aten::mm", 0, ms(2), launches=False)
    builder.memory(ms(1), 4 * MIB, allocated_bytes=4 * MIB, address=1, device=-1, thread="main")
    use = use_of(Signals(run_of(builder.build())))
    assert use.device is None
    assert use.allocated_at(use.at_ns + 1).tolist() == [4 * MIB]


def test_memory_use_is_none_if_no_change_was_recorded() -> None:
    trace = draw("cell 1ms\nstep |..|\nmain |oo|\ngpu 7 |.K|")
    assert memory_use(Signals(run_of(trace))) is None
