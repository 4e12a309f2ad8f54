from __future__ import annotations

from tb_perfadvisor.rules.registry import find_rule
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.trace import Trace
from tests.support.memory_snapshots import Frame, Heap

KeptActivations = find_rule("kept-activations")

MIB = 1 << 20
RUN: Frame = ("/p/train.py", 80, "main")
LOOP: Frame = ("/p/model.py", 25, "forward")
INSIDE: Frame = ("/p/model.py", 10, "forward")
LINEAR: Frame = ("/v/torch/nn/modules/linear.py", 117, "forward")
ENGINE: Frame = ("/v/torch/autograd/graph.py", 9, "_engine_run_backward")


def steps(*, is_checkpointed: bool = False, blocks: int = 8, count: int = 2) -> Trace:
    """Training steps of blocks that keep 40 MiB each, and return 10 MiB."""
    heap = Heap(200 * MIB)
    for _ in range(count):
        kept: list[list[int]] = []
        for _ in range(blocks):
            inner = [
                heap.make(size * MIB, LINEAR, ("/p/model.py", line, "forward"), LOOP, RUN)
                for line, size in ((10, 30), (11, 10))
            ]
            if is_checkpointed:
                heap.drop(*inner)
                inner = []
            result = heap.make(10 * MIB, ("/p/model.py", 12, "forward"), LOOP, RUN)
            kept.append([*inner, result])
        for tensors in reversed(kept):
            again = [heap.make(40 * MIB, ENGINE)] if is_checkpointed else []
            heap.drop(*tensors, *again)
    return heap.trace()


def test_frees_all_but_one_block_and_the_results() -> None:
    checked = check_rule(KeptActivations, slow=steps(), fixed=steps(is_checkpointed=True))
    (finding,) = checked.findings
    assert finding.memory is not None
    # 200 + 8 · 50. Checkpointed: 8 results, and one block's 50.
    assert finding.memory.peak_bytes == 600 * MIB
    assert finding.memory.bytes == (600 - (200 + 8 * 10 + 50)) * MIB
    # The fixed program's peak is 200 + 80 + 40: one result is part of the block.
    assert "8 calls at p/model.py:25 forward keep 400 MiB of the 600 MiB" in finding.summary
    # It costs time.
    assert finding.severity == "low"


def test_a_forward_pass_that_keeps_nothing_has_nothing_to_recompute() -> None:
    heap = Heap(200 * MIB)
    for _ in range(8):
        heap.drop(heap.make(40 * MIB, LINEAR, INSIDE, LOOP, RUN))
    assert find(KeptActivations, heap.trace()) == ()


def test_two_blocks_may_be_alike_by_chance() -> None:
    assert find(KeptActivations, steps(blocks=2)) == ()


def test_what_was_loaded_before_is_no_activation() -> None:
    assert find(KeptActivations, Heap(*[40 * MIB] * 8).trace()) == ()


def test_a_program_of_unknown_mode_may_need_no_gradients() -> None:
    heap = Heap(200 * MIB)
    for _ in range(8):
        heap.make(40 * MIB, LINEAR, INSIDE, LOOP, RUN)
        heap.make(10 * MIB, INSIDE, LOOP, RUN)
    (finding,) = find(KeptActivations, heap.trace()) or ()
    assert "no-gradients" in {remedy.change for remedy in finding.remedies}
