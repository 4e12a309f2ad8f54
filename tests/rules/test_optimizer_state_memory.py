from __future__ import annotations

import pytest

from tb_perfadvisor.rules.memory.at_peak import OptimizerStateMemory
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.trace import Trace
from tests.support.memory_snapshots import Frame, Heap

MIB = 1 << 20
OPTIMIZER: Frame = ("/v/torch/optim/adamw.py", 100, "_init_group")
FORWARD: Frame = ("/p/model.py", 5, "forward")
LAYERS = (10,) * 12
EMBEDDING = 40


def first_step(*, averages: int) -> Trace:
    """The optimizer makes its state in the first step: so many averages of 160 MiB."""
    sizes = (*LAYERS, EMBEDDING)
    heap = Heap(*(size * MIB for size in sizes))
    heap.drop(heap.make(50 * MIB, FORWARD))
    for size in sizes * averages:
        heap.make(size * MIB, OPTIMIZER)
    return heap.trace()


def test_all_of_it_fits_into_the_host() -> None:
    checked = check_rule(
        OptimizerStateMemory, slow=first_step(averages=2), fixed=first_step(averages=0)
    )
    (finding,) = checked.findings
    assert finding.memory is not None
    assert finding.memory.bytes == 320 * MIB
    assert "holds 320 MiB of the 480 MiB at the peak (66.7 %)" in finding.summary
    # 7 / 8 and 3 / 4 of it.
    assert "over 8 devices, 280 MiB; in 8 instead of 32 bits, 240 MiB." in finding.summary


def test_the_optimizer_in_8_bits_is_marked_and_does_not_lead() -> None:
    (finding,) = find(OptimizerStateMemory, first_step(averages=2)) or ()
    assert not finding.remedies[0].is_lossy
    assert [r.change for r in finding.remedies if r.is_lossy] == ["eight-bit-optimizer"]


@pytest.mark.parametrize(("sets", "state"), [(3, 320), (4, 320)])
def test_earlier_state_follows_from_sets_of_equal_sizes(sets: int, state: int) -> None:
    """Parameters and two averages, with gradients or without."""
    heap = Heap(*(size * MIB for size in (*LAYERS, EMBEDDING) * sets))
    heap.snapshot.annotate("Optimizer.step#AdamW.step")
    heap.drop(heap.make(50 * MIB, FORWARD))
    (finding,) = find(OptimizerStateMemory, heap.trace()) or ()
    assert finding.memory is not None
    assert finding.memory.bytes == state * MIB
    assert "by the sizes of what was there before" in finding.summary


@pytest.mark.parametrize("sets", [1, 2])
def test_weights_alone_are_no_state(sets: int) -> None:
    """Twelve layers of the same size are no sets: the embedding is there once or twice."""
    heap = Heap(*(size * MIB for size in (*LAYERS, EMBEDDING) * sets))
    heap.snapshot.annotate("Optimizer.zero_grad#AdamW.zero_grad")
    heap.drop(heap.make(50 * MIB, FORWARD))
    assert find(OptimizerStateMemory, heap.trace()) == ()


def test_without_adam_sets_prove_nothing() -> None:
    heap = Heap(*(size * MIB for size in (*LAYERS, EMBEDDING) * 3))
    heap.drop(heap.make(50 * MIB, FORWARD))
    assert find(OptimizerStateMemory, heap.trace()) == ()
