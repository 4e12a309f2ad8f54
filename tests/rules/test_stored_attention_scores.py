from __future__ import annotations

import pytest

from tb_perfadvisor.rules.registry import find_rule
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.trace import Trace
from tests.support.memory_snapshots import Frame, Heap

StoredAttentionScores = find_rule("stored-attention-scores")

MIB = 1 << 20
BLOCK: Frame = ("/p/model.py", 60, "forward")
ENGINE: Frame = ("/v/torch/autograd/graph.py", 9, "_engine_run_backward")


def attention(line: int) -> Frame:
    return ("/p/model.py", line, "scaled_dot_product_attention")


EINSUM: Frame = ("/v/torch/functional.py", 373, "einsum")
SOFTMAX: Frame = ("/p/nn.py", 7, "softmax")
PROJECTION: Frame = ("/v/torch/nn/modules/linear.py", 117, "forward")


def step(*, is_fused: bool, layers: int = 4, score: int = 64) -> Trace:
    """A forward pass that keeps the probabilities of each layer, and a backward pass.

    Of 8 MiB each: queries, keys and values together, and the output. Scores are 64 MiB.
    """
    heap = Heap(100 * MIB)
    kept = []
    for _ in range(layers):
        kept.append(heap.make(8 * MIB, PROJECTION, BLOCK))
        if not is_fused:
            scores = heap.make(score * MIB, EINSUM, attention(10), BLOCK)
            kept.append(heap.make(score * MIB, SOFTMAX, attention(11), BLOCK))
            heap.drop(scores)
        kept.append(heap.make(8 * MIB, EINSUM, attention(12), BLOCK))
    for address in reversed(kept):
        gradient = heap.make(MIB, ENGINE)
        heap.drop(gradient, address)
    return heap.trace()


def test_frees_what_fused_attention_does_not_make() -> None:
    slow, fixed = step(is_fused=False), step(is_fused=True)
    checked = check_rule(StoredAttentionScores, slow=slow, fixed=fixed)
    (finding,) = checked.findings
    # At the end of the fourth layer's softmax: 100 + 4 · (8 + 64) + 3 · 8 + 64 of the scores.
    peak = 100 + 4 * (8 + 64) + 3 * 8 + 64
    # Without scores and probabilities the peak is at the end: 100 + 4 · 16, and the backward
    # pass's first gradient of 1 MiB.
    assert finding.memory is not None
    assert finding.memory.peak_bytes == peak * MIB
    assert finding.memory.bytes == (peak - 165) * MIB
    assert finding.instance == "311 MiB less at the peak"
    assert "5 tensors of the size of attention scores, from p/model.py:11" in finding.summary
    assert "hold 320 MiB of the 476 MiB at the peak (67.2 %)" in finding.summary
    assert finding.severity == "medium"


def test_the_attention_of_torch_by_names_of_its_operators() -> None:
    heap = Heap(100 * MIB)
    inside = ("/p/gpt.py", 70, "forward")
    for operator, size in (("bmm", 64), ("softmax_int", 64), ("bmm", 8)):
        line = {"bmm": 70, "softmax_int": 71}[operator] + (size == 8) * 2
        call = ("VariableType.cpp", 0, f"at::_ops::{operator}::call(at::Tensor const&)")
        heap.make(size * MIB, call, (inside[0], line, inside[2]))
    (finding,) = find(StoredAttentionScores, heap.trace()) or ()
    assert finding.memory is not None
    # The scores and the probabilities.
    assert finding.memory.bytes == 128 * MIB


@pytest.mark.parametrize("name", ["route", "sample"])
def test_a_softmax_without_products_is_no_attention(name: str) -> None:
    """A router or a sampler: the product before it is a module's."""
    heap = Heap(100 * MIB)
    for size, stack in (
        (64, (PROJECTION, ("/p/moe.py", 5, name))),
        (64, (SOFTMAX, ("/p/moe.py", 6, name))),
        (8, (("/p/moe.py", 7, name),)),
    ):
        heap.make(size * MIB, *stack)
    assert find(StoredAttentionScores, heap.trace()) == ()


def test_small_scores_are_not_worth_a_change() -> None:
    # 4 · 0.5 of 476 MiB are 0.4 %; the limit is 2 %.
    assert find(StoredAttentionScores, step(is_fused=False, score=1, layers=1)) == ()


def test_a_profile_without_a_snapshot_does_not_apply() -> None:
    assert find(StoredAttentionScores, draw("cell 1ms\nmain |oo|\ngpu 7 |.K|")) is None
