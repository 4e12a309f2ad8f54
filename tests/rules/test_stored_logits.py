from __future__ import annotations

from tb_perfadvisor.rules.registry import find_rule
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.trace import Trace
from tests.support.memory_snapshots import Frame, Heap

StoredLogits = find_rule("stored-logits")

MIB = 1 << 20
MAIN: Frame = ("/p/train.py", 20, "main")
LOSS: Frame = ("/v/torch/nn/functional.py", 3053, "cross_entropy")
HEAD: Frame = ("/v/torch/nn/modules/linear.py", 117, "forward")


def node(name: str) -> Frame:
    return ("Functions.cpp", 0, f"torch::autograd::generated::{name}::apply(variable_list&&)")


def step(*, parts: int = 1) -> Trace:
    """Logits in 16 bits, their logarithmic softmax in 32, and the gradient of that."""
    heap = Heap(400 * MIB)
    for _ in range(parts):
        logits = heap.make(160 * MIB // parts, HEAD, MAIN)
        probabilities = heap.make(320 * MIB // parts, LOSS, MAIN)
        gradient = heap.make(320 * MIB // parts, node("LogSoftmaxBackward0"))
        heap.drop(logits, probabilities, gradient)
    return heap.trace()


def test_frees_all_but_a_part() -> None:
    checked = check_rule(StoredLogits, slow=step(), fixed=step(parts=64))
    (finding,) = checked.findings
    assert finding.memory is not None
    # 160 + 320 + 320 on top of 400; an eighth of that stays.
    assert finding.memory.peak_bytes == 1200 * MIB
    assert finding.memory.bytes == 700 * MIB
    assert "3 tensors of the size of the logits at p/train.py:20 main" in finding.summary
    assert "800 MiB of the 1.17 GiB at the peak (66.7 %)" in finding.summary


def test_another_peak_limits_what_is_freed() -> None:
    heap = Heap(400 * MIB)
    other = heap.make(600 * MIB, ("/p/data.py", 3, "load"))
    heap.drop(other)
    heap.make(800 * MIB, LOSS, MAIN)
    (finding,) = find(StoredLogits, heap.trace()) or ()
    assert finding.memory is not None
    # 1200 MiB, and 1000 at the other moment.
    assert finding.memory.bytes == 200 * MIB


def test_a_classifier_has_small_logits() -> None:
    heap = Heap(400 * MIB)
    heap.make(MIB, HEAD, MAIN)
    heap.make(MIB, LOSS, MAIN)
    assert find(StoredLogits, heap.trace()) == ()
