"""Calls of the operating system that wait for the worker processes of a loader."""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.signals.input.loader_workers import awaited_workers
from tb_perfadvisor.testing import run_of
from tb_perfadvisor.trace import EventKind
from tests.support.nsight_exports import PROCESS, THREAD, call, kernel, read, write

MS = 1_000_000
NAMES = {
    1: "at::native::vectorized_elementwise_kernel",
    2: "cudaLaunchKernel_v7000",
    3: "poll",
    4: "cudaMemcpyAsync_v3020",
    5: "cudaStreamSynchronize_v3020",
}


def copy(start: int, end: int, correlation: int) -> tuple[int, ...]:
    return (start, end, 0, 7, correlation, PROCESS, 1_000_000, 1, 0, 2)


def export(path: Path, waits_ms: list[float]) -> Path:
    """Steps that wait so long, copy a batch for 1 ms, and compute for 9."""
    calls, system, kernels, copies = [call(0, MS, 2, 1)], [], [kernel(0, MS, 1, 1)], []
    now, correlation = 2 * MS, 2
    for wait_ms in waits_ms:
        if wait_ms:
            system.append((now, now + int(wait_ms * MS), 27, THREAD, 3))
        now += int(wait_ms * MS)
        calls += [
            call(now, now + MS, 4, correlation),
            call(now + MS, now + MS + 9, 2, correlation + 1),
        ]
        copies.append(copy(now, now + MS, correlation))
        kernels.append(kernel(now + MS, now + 10 * MS, 1, correlation + 1))
        now, correlation = now + 10 * MS, correlation + 2
    return write(
        path,
        NAMES,
        CUPTI_ACTIVITY_KIND_RUNTIME=calls,
        CUPTI_ACTIVITY_KIND_KERNEL=kernels,
        CUPTI_ACTIVITY_KIND_MEMCPY=copies,
        OSRT_API=system,
    )


@pytest.mark.parametrize(
    ("waits_ms", "workers", "stall_ms"),
    [
        ([90.0] * 24, 1, 24 * 90),
        ([80.0, 0.0] * 12, 2, 12 * 80),
        # Batches that are ready take 0.2 ms to unpack, and are not waited for.
        ([160.0, *[0.2] * 7] * 4, 8, 4 * 160),
    ],
)
def test_every_kth_batch_is_late(
    tmp_path: Path, waits_ms: list[float], workers: int, stall_ms: int
) -> None:
    trace = read(export(tmp_path / "report.sqlite", waits_ms))
    waits = trace.rows(EventKind.INPUT_WAIT)
    assert trace.events.duration_ns[waits].sum() == stall_ms * MS
    analysis = analyze_run(run_of(trace), Config())
    assert awaited_workers(analysis.signals) == workers
    first = analysis.findings[0]
    assert first.rule.id == "input-stall"
    one_in = "each batch" if workers == 1 else f"one batch in {workers}"
    assert f"{one_in} is late" in first.finding.summary
    saving = first.finding.saving
    assert saving is not None
    # The launch of each copy is in its time, so waits are idle from end to end.
    assert saving.high_ns == pytest.approx(stall_ms * MS, rel=0.01)
    # The loop does nothing but wait.
    assert saving.expected_ns == saving.high_ns


def test_a_call_inside_of_a_synchronization_waits_for_the_device(tmp_path: Path) -> None:
    write(
        path := tmp_path / "report.sqlite",
        NAMES,
        CUPTI_ACTIVITY_KIND_RUNTIME=[
            call(0, MS, 2, 1),
            call(2 * MS, 9 * MS, 5, 2),
            call(10 * MS, 11 * MS, 4, 3),
        ],
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(MS, 9 * MS, 1, 1)],
        CUPTI_ACTIVITY_KIND_MEMCPY=[copy(10 * MS, 11 * MS, 3)],
        OSRT_API=[(3 * MS, 8 * MS, 27, THREAD, 3)],
    )
    assert len(read(path).rows(EventKind.INPUT_WAIT)) == 0


def test_what_is_read_before_the_first_kernel_are_weights(tmp_path: Path) -> None:
    write(
        path := tmp_path / "report.sqlite",
        NAMES,
        CUPTI_ACTIVITY_KIND_RUNTIME=[call(9 * MS, 10 * MS, 4, 1), call(11 * MS, 12 * MS, 2, 2)],
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(12 * MS, 13 * MS, 1, 2)],
        CUPTI_ACTIVITY_KIND_MEMCPY=[copy(10 * MS, 11 * MS, 1)],
        OSRT_API=[(0, 8 * MS, 27, THREAD, 3)],
    )
    assert len(read(path).rows(EventKind.INPUT_WAIT)) == 0
