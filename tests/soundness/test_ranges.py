"""An optimizer's range means its update, whatever else runs inside it."""

from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.device.memory_use import memory_categories
from tb_perfadvisor.signals.host.optimizer_loops import optimizer_loop
from tb_perfadvisor.signals.snapshots.sites import site_of
from tb_perfadvisor.soundness import examined
from tb_perfadvisor.testing import TraceBuilder, ms, run_of
from tb_perfadvisor.trace import Trace
from tb_perfadvisor.trace.memory_snapshot import Frame

NODE = "autograd::engine::evaluate_function: MmBackward0"
MIB = 1 << 20


UPDATE = "Optimizer.step#AdamW.step"


def trained(*, closure: bool, backward: str = "autograd", name: str = UPDATE) -> Trace:
    """Two steps of 10 ms: forward until 4 ms, backward until 7 ms, the update from 8 to 9 ms.

    With a closure, the optimizer's range lasts from 0.5 ms on. A gradient of 1 MiB is allocated in
    the backward pass and freed at 9.5 ms, an activation of 2 MiB in the forward pass and freed in
    the backward pass.
    """
    builder = TraceBuilder().device("NVIDIA H100 80GB HBM3")
    for step in range(2):
        at = 10 * step
        builder.step(step, ms(at), ms(at + 10))
        builder.annotation(name, ms(at + (0.5 if closure else 8)), ms(at + 9))
        builder.operator("aten::mm", ms(at + 1), ms(at + 4))
        builder.operator(NODE, ms(at + 4), ms(at + 6), thread=backward)
        builder.operator(NODE, ms(at + 6), ms(at + 7), thread=backward)
        for k in range(20):
            begin = ms(at + 8 + 0.05 * k)
            builder.operator("aten::addcmul_", begin, begin + ms(0.04), key=f"{step}.{k}")
            builder.kernel("update", begin + ms(0.04), begin + ms(0.045), launched_by=f"{step}.{k}")
        for offset, change, address in ((2, 2, 1), (5, 1, 2), (6.5, -2, 1), (9.5, -1, 2)):
            builder.memory(
                ms(at + offset),
                change * MIB,
                allocated_bytes=8 * MIB,
                reserved_bytes=16 * MIB,
                address=address,
                thread=backward if address == 2 or change < 0 else "main",
            )
    return builder.build()


def updates(trace: Trace) -> list[tuple[int, int]]:
    return [
        (int(trace.events.start_ns[row]), int(trace.events.end_ns[row]))
        for row in range(len(trace.events))
        if "optim" in trace.name(row).lower()
    ]


@pytest.mark.parametrize("backward", ["autograd", "main"])
@pytest.mark.parametrize("name", ["Optimizer.step#AdamW.step", "optimizer_step"])
def test_an_update_begins_after_the_backward_pass_in_it(backward: str, name: str) -> None:
    trace = examined(trained(closure=True, backward=backward, name=name))
    # The first operator after the last backward operator begins at 8 ms.
    assert updates(trace) == [(ms(8), ms(9)), (ms(18), ms(19))]


def test_what_a_closure_runs_is_no_update() -> None:
    split, closure = (Signals(run_of(examined(trained(closure=c)))) for c in (False, True))
    for signals in (split, closure):
        loop = optimizer_loop(signals)
        assert len(loop.operators) == 2 * 20  # none of the forward pass
        assert loop.steps.tolist() == [[ms(8), ms(9)], [ms(18), ms(19)]]
    found = [memory_categories(signals) for signals in (split, closure)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].of_each.tolist() == found[1].of_each.tolist()
    assert (found[0].at_peak, found[0].fixed_bytes) == (found[1].at_peak, found[1].fixed_bytes)


def test_a_range_without_a_backward_pass_stays() -> None:
    trace = trained(closure=False)
    assert examined(trace).events is trace.events


def test_an_update_inside_of_the_backward_pass_stays() -> None:
    builder = TraceBuilder()
    builder.operator("torch::autograd::AccumulateGrad", ms(1), ms(3))
    builder.annotation("Optimizer.step#SGD.step", ms(1.5), ms(2.5))
    builder.operator("torch::autograd::AccumulateGrad", ms(2), ms(4), thread="autograd")
    trace = builder.build()
    assert examined(trace).events is trace.events


STEP = Frame("/venv/torch/optim/adamw.py", 220, "step")
CLOSURE = Frame("train.py", 10, "closure")
MODULE = Frame("/venv/torch/nn/modules/module.py", 1775, "_call_impl")
ENGINE = Frame("/venv/torch/autograd/graph.py", 825, "_engine_run_backward")


@pytest.mark.parametrize(
    ("inner", "is_optimizer"),
    [
        ((), True),
        ((Frame("my_optimizer.py", 8, "update"),), True),  # an optimizer of the program
        ((MODULE, CLOSURE), False),
        ((MODULE, Frame("train.py", 10, "<lambda>")), False),
        ((ENGINE, Frame("train.py", 10, "<lambda>")), False),
        ((Frame("losses.py", 3, "loss"), CLOSURE), False),
    ],
)
def test_the_stack_of_an_update_has_no_closure(
    inner: tuple[Frame, ...], is_optimizer: bool
) -> None:
    site = site_of((*inner, STEP, Frame("train.py", 20, "main")))
    assert site.is_optimizer is is_optimizer
