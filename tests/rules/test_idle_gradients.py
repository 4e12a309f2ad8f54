from __future__ import annotations

from tb_perfadvisor.rules.registry import find_rule
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.trace import Trace
from tests.support.memory_snapshots import Frame, Heap

IdleGradients = find_rule("idle-gradients")

MIB = 1 << 20
FORWARD: Frame = ("/p/model.py", 5, "forward")
NODE: Frame = ("Functions.cpp", 0, "torch::autograd::generated::MmBackward0::apply(list&&)")
OPTIMIZER: Frame = ("/v/torch/optim/adamw.py", 400, "step")
LAYERS = 8


def steps(*, frees: bool, accumulates: bool = False, count: int = 3) -> Trace:
    """Per layer, 30 MiB of parameters, 60 MiB of activations and 30 MiB of gradients."""
    heap = Heap(*[30 * MIB] * LAYERS)
    gradients: list[int] = []
    for _ in range(count):
        activations = [heap.make(60 * MIB, FORWARD) for _ in range(LAYERS)]
        fresh = []
        for activation in reversed(activations):
            if len(gradients) < LAYERS:
                fresh.append(heap.make(30 * MIB, NODE))
            heap.drop(heap.make(MIB, NODE), activation)
        gradients += fresh
        if not accumulates:
            heap.drop(heap.make(MIB, OPTIMIZER))
        if frees:
            heap.drop(*gradients)
            gradients = []
    return heap.trace()


def test_frees_them_in_the_forward_pass() -> None:
    checked = check_rule(IdleGradients, slow=steps(frees=False), fixed=steps(frees=True))
    (finding,) = checked.findings
    assert finding.memory is not None
    # 8 · (30 + 60 + 30), and a temporary tensor of 1 MiB.
    assert finding.memory.peak_bytes == 961 * MIB
    # Freed: 720 at the end of the forward pass, and a little more where the backward pass begins:
    # 30 of the first gradient and a temporary tensor, while 60 of its activation are still there.
    assert 961 - 760 <= finding.memory.bytes / MIB <= 961 - 721
    assert "8 gradients that the optimizer has used already hold 240 MiB" in finding.summary


def test_gradients_that_are_accumulated_are_in_use() -> None:
    assert find(IdleGradients, steps(frees=False, accumulates=True)) == ()


def test_the_first_step_has_none() -> None:
    assert find(IdleGradients, steps(frees=False, count=1)) == ()


def zeroed_in_place(passes: int) -> Trace:
    """Gradients that stay for good, with so many forward and backward passes for each step."""
    heap = Heap(*[30 * MIB] * LAYERS)
    for step in range(3):
        for number in range(passes):
            activations = [heap.make(60 * MIB, FORWARD) for _ in range(LAYERS)]
            for activation in reversed(activations):
                if not step and not number:
                    heap.make(30 * MIB, NODE)
                heap.drop(heap.make(MIB, NODE), activation)
        if not step:
            heap.make(MIB, OPTIMIZER)  # its state
        heap.drop(heap.make(MIB, OPTIMIZER))
    return heap.trace()


def test_gradients_that_are_accumulated_in_place_are_in_use() -> None:
    # Freed after the step, they would come back in the first backward pass, and be there when the
    # second forward pass needs as much memory as the first one.
    assert find(IdleGradients, zeroed_in_place(passes=1))
    assert find(IdleGradients, zeroed_in_place(passes=2)) == ()
