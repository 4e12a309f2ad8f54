from __future__ import annotations

from tb_perfadvisor.rules.registry import find_rule
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.trace import Trace
from tests.support.memory_snapshots import Frame, Heap

OutOfPlaceUpdate = find_rule("out-of-place-update")

MIB = 1 << 20


def update(line: int, function: str = "step") -> tuple[Frame, ...]:
    return (("/p/optimizer.py", line, function), ("/p/train.py", 9, "main"))


def steps(intermediate: int, *, size: int = 100, function: str = "step") -> Trace:
    """Each step makes so many tensors of the embedding's size, and drops them."""
    heap = Heap(300 * MIB)
    for _ in range(3):
        made = [heap.make(size * MIB, *update(i, function)) for i in range(1, intermediate + 1)]
        heap.drop(*made)
    return heap.trace()


def test_frees_all_but_one() -> None:
    checked = check_rule(OutOfPlaceUpdate, slow=steps(4), fixed=steps(1))
    (finding,) = checked.findings
    assert finding.memory is not None
    assert finding.memory.peak_bytes == 700 * MIB
    assert finding.memory.bytes == 300 * MIB
    assert "p/optimizer.py:1 step holds 4 temporary tensors of one size at once" in finding.summary


def test_an_operand_and_a_result_are_needed() -> None:
    assert find(OutOfPlaceUpdate, steps(2)) == ()


def test_a_model_keeps_its_operands_for_gradients() -> None:
    assert find(OutOfPlaceUpdate, steps(4, function="forward")) == ()


def test_what_stays_is_no_intermediate_result() -> None:
    heap = Heap(300 * MIB)
    for line in range(4):
        heap.make(100 * MIB, *update(line))
    assert find(OutOfPlaceUpdate, heap.trace()) == ()


def test_just_below_and_just_above_the_limit() -> None:
    # (4 - 1) · 6 of 324 MiB are 5.6 %, and (4 - 1) · 5 of 320 are 4.7 %.
    assert find(OutOfPlaceUpdate, steps(4, size=6))
    assert find(OutOfPlaceUpdate, steps(4, size=5)) == ()
