from __future__ import annotations

from pathlib import Path

from big_nsight import repeat
from tb_perfadvisor.trace import EventKind
from tests.support.nsight_exports import a_range, call, kernel, read, write


def test_copies_follow_one_another_with_numbers_of_their_own(tmp_path: Path) -> None:
    text = "aten::mm, seq = 7, op_id = 12"
    source = write(
        tmp_path / "small.sqlite",
        {1: "gemm", 2: "cudaLaunchKernel_v7000"},
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(20, 100, correlation=1)],
        CUPTI_ACTIVITY_KIND_RUNTIME=[call(10, 15, 2, 1)],
        NVTX_EVENTS=[a_range(5, 18, text)],
    )
    target = tmp_path / "big.sqlite"
    assert repeat(source, target, source.stat().st_size + 1) >= 2
    trace = read(target)
    kernels, operators = trace.rows(EventKind.KERNEL), trace.rows(EventKind.OPERATOR)
    count = len(kernels)
    assert count == len(operators) >= 2
    launches = trace.events.launched_by[kernels].tolist()
    assert launches == trace.rows(EventKind.LAUNCH).tolist()
    assert {trace.name(row) for row in operators.tolist()} == {"aten::mm"}
    assert trace.operators.sequence.tolist() == [7 + 10_000_000 * copy for copy in range(count)]
