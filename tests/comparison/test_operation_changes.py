from __future__ import annotations

import pytest

from tb_perfadvisor.comparison.differences import (
    MAX_ROWS,
    StepCounts,
    operation_changes,
)
from tb_perfadvisor.contract.model import OperationChange, OperationChanges
from tb_perfadvisor.testing import ms
from tests.support.comparison_facts import times

ONE = StepCounts(1, 1)
STEP = ms(100)


def rows(changes: OperationChanges | None) -> dict[str, OperationChange]:
    assert changes is not None
    return {change.name: change for change in changes.rows}


def test_added_removed_slower_and_faster() -> None:
    base = times(("gemm", ms(10)), ("softmax", ms(4)), ("gone", ms(3)), ("same", ms(9)))
    target = times(("gemm", ms(12)), ("softmax", ms(3)), ("fresh", ms(5)), ("same", ms(9)))
    changes = operation_changes(base, target, ONE, STEP)
    assert [(row.name, row.status, row.change_ns) for row in (changes.rows if changes else ())] == [
        ("fresh", "added", ms(5)),
        ("gone", "removed", -ms(3)),
        ("gemm", "slower", ms(2)),
        ("softmax", "faster", -ms(1)),
    ]
    fresh, gone = rows(changes)["fresh"], rows(changes)["gone"]
    assert (fresh.base_ns, fresh.base_count, fresh.target_ns) == (None, None, ms(5))
    assert (gone.target_ns, gone.target_count, gone.base_ns) == (None, None, ms(3))


def test_remaining_names_are_paired_as_variants() -> None:
    base = times(("ampere_sgemm_128x64_tn", ms(9)), ("ampere_sgemm_32x32_tn", ms(2)))
    target = times(("ampere_sgemm_128x128_tn", ms(5)), ("volta_sgemm_64x64_nn", ms(1)))
    changes = rows(operation_changes(base, target, ONE, STEP))
    gemm = changes["ampere_sgemm_128x64_tn"]
    # 9 and 2 ms of two variants became 5 of a third.
    assert (gemm.status, gemm.base_ns, gemm.target_ns) == ("faster", ms(11), ms(5))
    assert gemm.target_name == "ampere_sgemm_128x128_tn"
    assert changes["volta_sgemm_64x64_nn"].status == "added"


def test_equal_names_are_paired_first() -> None:
    base = times(("gemm_64", ms(9)), ("gemm_128", ms(2)))
    target = times(("gemm_128", ms(9)), ("gemm_32", ms(1)))
    changes = rows(operation_changes(base, target, ONE, STEP))
    assert (changes["gemm_128"].change_ns, changes["gemm_128"].target_name) == (ms(7), None)
    assert (changes["gemm_64"].change_ns, changes["gemm_64"].target_name) == (-ms(8), "gemm_32")


def test_small_changes_are_left_out() -> None:
    # A thousandth of the step of 100 ms is 0.1 ms.
    base = times(("below", ms(1)), ("at", ms(1)))
    target = times(("below", ms(1) + 99_999), ("at", ms(1) + 100_000))
    assert list(rows(operation_changes(base, target, ONE, STEP))) == ["at"]


def test_the_list_is_capped_and_counts_the_rest() -> None:
    # Different letters, because numbers alone would make them variants.
    names = [chr(ord("a") + index) * 3 for index in range(MAX_ROWS + 3)]
    base = times()
    target = times(*((name, ms(1 + index)) for index, name in enumerate(names)))
    changes = operation_changes(base, target, ONE, STEP)
    assert changes is not None
    assert (len(changes.rows), changes.truncated) == (MAX_ROWS, 3)
    assert changes.rows[0].name == names[-1]


@pytest.mark.parametrize("side", ["base", "target"])
def test_no_changes_if_one_run_has_none(side: str) -> None:
    some = times(("gemm", ms(1)))
    base, target = (None, some) if side == "base" else (some, None)
    assert operation_changes(base, target, ONE, STEP) is None


def test_device_time_is_not_compared_with_host_time() -> None:
    host = times(("aten::mm", ms(1)), device=False)
    assert operation_changes(host, times(("aten::mm", ms(1))), ONE, STEP) is None
