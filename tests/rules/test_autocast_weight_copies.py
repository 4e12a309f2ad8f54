from __future__ import annotations

from tb_perfadvisor.rules.registry import find_rule
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.trace import Trace
from tests.support.memory_snapshots import Frame, Heap

AutocastWeightCopies = find_rule("autocast-weight-copies")

MIB = 1 << 20
CAST: Frame = ("??", 0, "at::autocast::cached_cast(c10::ScalarType, at::Tensor const&)")
CALL: Frame = ("??", 0, "at::_ops::linear::call(at::Tensor const&)")
LINE: Frame = ("/p/layer.py", 15, "forward")
NODE: Frame = ("Functions.cpp", 0, "torch::autograd::generated::MmBackward0::apply(list&&)")


def forward(*, keeps_copies: bool = True, activations: int = 0, is_trained: bool = False) -> Trace:
    """Eight weights of 64 MiB, each cast once."""
    heap = Heap(*[64 * MIB] * 8)
    for _ in range(8):
        copy = heap.make(32 * MIB, CAST, CALL, LINE)
        result = heap.make(2 * MIB, CALL, LINE)
        heap.drop(result)
        if not keeps_copies:
            heap.drop(copy)
        if activations:
            heap.make(activations * MIB, CALL, ("/p/act.py", 3, "gelu"))
    if is_trained:
        heap.drop(heap.make(MIB, NODE))
    return heap.trace()


def test_frees_all_copies_but_one() -> None:
    checked = check_rule(AutocastWeightCopies, slow=forward(), fixed=forward(keeps_copies=False))
    (finding,) = checked.findings
    assert finding.memory is not None
    # 8 · 64 + 8 · 32 + 2, and one copy of 32 is in use.
    assert finding.memory.peak_bytes == 770 * MIB
    assert finding.memory.bytes == 7 * 32 * MIB
    assert "Autocast saves no memory here" in finding.summary
    # What loses no accuracy leads.
    assert not finding.remedies[0].is_lossy
    assert [remedy.change for remedy in finding.remedies if remedy.is_lossy] == [
        "weights-in-16-bits"
    ]


def test_a_backward_pass_needs_the_copies_again() -> None:
    assert find(AutocastWeightCopies, forward(is_trained=True)) == ()


def test_a_forward_pass_that_keeps_activations_is_one_of_training() -> None:
    assert find(AutocastWeightCopies, forward(activations=64)) == ()
