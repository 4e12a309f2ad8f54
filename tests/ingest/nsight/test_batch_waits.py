"""Loops that wait for batches, with calls of the operating system that say so, and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.signals import Cause, Signals
from tb_perfadvisor.signals.input.loader_workers import awaited_workers
from tb_perfadvisor.testing import run_of
from tb_perfadvisor.trace import EventKind
from tests.support.nsight_exports import PROCESS, THREAD, call, kernel, read, write

LOADER = THREAD + 1
"""Another thread of the same process."""

MS = 1_000_000
NAMES = {
    1: "at::native::vectorized_elementwise_kernel",
    2: "cudaLaunchKernel_v7000",
    3: "poll",
    4: "cudaMemcpyAsync_v3020",
    5: "cudaStreamSynchronize_v3020",
}


def copy(start: int, end: int, correlation: int, size: int = 1_000_000) -> tuple[int, ...]:
    return (start, end, 0, 7, correlation, PROCESS, size, 1, 0, 2)


def export(
    path: Path,
    waits_ms: list[float],
    *,
    records_system: bool = True,
    copies_on: int = THREAD,
    size: int = 1_000_000,
    result: int = 0,
    repeats: bool = False,
) -> Path:
    """Synthetic iterations that wait so long, copy a batch for 1 ms, and compute for 9.

    In the last of these, they copy a result of some bytes back. Unless it `repeats`, each
    runs another kernel, so that there are no steps.
    """
    names = NAMES | {100 + number: f"kernel_{number}" for number in range(len(waits_ms))}
    calls, system, kernels, copies = [call(0, MS, 2, 1)], [], [kernel(0, MS, 1, 1)], []
    now, correlation = 2 * MS, 2
    for number, wait_ms in enumerate(waits_ms):
        if wait_ms and records_system:
            system.append((now, now + int(wait_ms * MS), 27, THREAD, 3))
        now += int(wait_ms * MS)
        calls += [
            call(now, now + MS, 4, correlation, copies_on),
            call(now + MS, now + MS + 9, 2, correlation + 1),
        ]
        copies.append(copy(now, now + MS, correlation, size))
        end = now + (9 if result else 10) * MS
        kernels.append(kernel(now + MS, end, 1 if repeats else 100 + number, correlation + 1))
        if result:
            calls.append(call(now + MS + 10, now + MS + 19, 4, correlation + 100_000))
            copies.append(
                (now + 9 * MS, now + 10 * MS, 0, 7, correlation + 100_000, PROCESS, result, 2, 2, 0)
            )
        now, correlation = now + 10 * MS, correlation + 2
    return write(
        path,
        names,
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
    analysis = analyze_run(run_of(trace), Config())
    assert awaited_workers(analysis.signals) == workers
    first = analysis.findings[0]
    assert first.rule.id == "input-stall"
    one_in = "each batch" if workers == 1 else f"one batch in {workers}"
    assert f"in poll. There it waits for another process or thread: {one_in} is late" in (
        first.finding.summary
    )
    saving = first.finding.saving
    assert saving is not None
    # The launch of each copy is in its time, so waits are idle from end to end.
    assert saving.high_ns == pytest.approx(stall_ms * MS, rel=0.01)
    # As many workers as keep up: 10 for a batch in 100 ms, of which 10 are the loop's, 10 for two
    # in 100 ms of which 20 are, and 16 (the most advised) for eight in 241.4 of which 80 are:
    # they take 241.4 * 8 / 16 = 120.7 ms.
    saved_ms = {1: 24 * 90, 2: 12 * 80, 8: 4 * (241.4 - 120.7)}[workers]
    assert saving.expected_ns == pytest.approx(saved_ms * MS, rel=0.02)


@pytest.mark.parametrize(
    ("waits_ms", "workers", "expected_ms"),
    [
        # As above. 8 * 200 / 80 would be 20 workers, and 16 of them take 200 * 8 / 16 = 100 ms.
        ([90.0] * 24, 1, 24 * 90),
        ([80.0, 0.0] * 12, 2, 12 * 80),
        ([120.0, *[0.0] * 7] * 6, 8, 6 * 100),
    ],
)
def test_bursts_without_system_calls(
    tmp_path: Path, waits_ms: list[float], workers: int, expected_ms: float
) -> None:
    trace = read(export(tmp_path / "report.sqlite", waits_ms, records_system=False))
    assert len(trace.rows(EventKind.INPUT_WAIT)) == 0
    analysis = analyze_run(run_of(trace), Config())
    assert awaited_workers(analysis.signals) == workers
    first = analysis.findings[0]
    assert first.rule.id == "input-stall"
    one_in = "each batch" if workers == 1 else f"one batch in {workers}"
    assert f"{one_in} is late" in first.finding.summary
    saving = first.finding.saving
    assert saving is not None
    assert saving.expected_ns == pytest.approx(expected_ms * MS, rel=0.02)
    # By the gaps of the raw events, within 15 points of the window.
    raw_ms, window_ms = sum(waits_ms), sum(waits_ms) + 10 * len(waits_ms)
    assert abs(saving.expected_ns / MS - raw_ms) < 0.15 * window_ms
    # What to write is what is priced.
    count = {1: 10, 2: 10, 8: 16}[workers]
    assert f"num_workers={count}," in first.finding.remedies[0].snippet


IRREGULAR = [20.0, 0.0, 0.0, 150.0, 5.0, 0.0, 80.0, 0.0, 0.0, 0.0, 15.0, 120.0, 0.0, 60.0] * 2


def test_a_thread_that_copies_batches_late_belongs_to_a_loader(tmp_path: Path) -> None:
    path = export(tmp_path / "report.sqlite", IRREGULAR, records_system=False, copies_on=LOADER)
    analysis = analyze_run(run_of(read(path)), Config())
    assert awaited_workers(analysis.signals) is None
    first = analysis.findings[0]
    assert first.rule.id == "input-stall"
    assert "as loaders like DALI do" in first.finding.summary
    assert first.finding.saving is not None
    assert first.finding.saving.high_ns == pytest.approx(2 * 450 * MS, rel=0.01)


@pytest.mark.parametrize(
    ("waits_ms", "size"),
    [
        (IRREGULAR, 1_000_000),  # no rhythm, and the thread of the kernels copies
        ([90.0] * 24, 1_000),  # points or positions, no batch
        ([90.0, *[0.0] * 23], 1_000_000),  # once
    ],
)
def test_other_gaps_stay_without_a_name(tmp_path: Path, waits_ms: list[float], size: int) -> None:
    path = export(tmp_path / "report.sqlite", waits_ms, records_system=False, size=size)
    analysis = analyze_run(run_of(read(path)), Config())
    assert analysis.signals.attribution.total_ns(Cause.INPUT) == 0
    assert all(found.rule.id != "input-stall" for found in analysis.findings)


def test_what_the_host_computes_from_a_large_result_is_no_batch(tmp_path: Path) -> None:
    path = export(tmp_path / "report.sqlite", [90.0] * 24, records_system=False, result=1_000_000)
    assert Signals(run_of(read(path))).attribution.total_ns(Cause.INPUT) == 0
    path = export(tmp_path / "loss.sqlite", [90.0] * 24, records_system=False, result=4)
    assert Signals(run_of(read(path))).attribution.total_ns(Cause.INPUT) > 0


@pytest.mark.parametrize("waits_ms", [[80.0, 0.0] * 12, [120.0, *[0.0] * 7] * 6])
def test_late_batches_of_steps_are_no_periodic_work(tmp_path: Path, waits_ms: list[float]) -> None:
    path = export(tmp_path / "report.sqlite", waits_ms, records_system=False, repeats=True)
    analysis = analyze_run(run_of(read(path)), Config())
    assert len(analysis.signals.steps) > 20
    assert analysis.findings[0].rule.id == "input-stall"
    assert all(found.rule.id != "periodic-spikes" for found in analysis.findings)


def test_waits_without_a_rhythm_are_seen_in_system_calls(tmp_path: Path) -> None:
    analysis = analyze_run(run_of(read(export(tmp_path / "report.sqlite", IRREGULAR))), Config())
    assert awaited_workers(analysis.signals) is None
    first = analysis.findings[0]
    assert first.rule.id == "input-stall"
    assert first.finding.summary.endswith("There it waits for another process or thread.")
    assert first.finding.saving is not None
    assert first.finding.saving.high_ns == pytest.approx(2 * 450 * MS, rel=0.01)


def test_a_call_inside_of_a_synchronization_waits_for_the_device(tmp_path: Path) -> None:
    calls, system, kernels, copies = [], [], [], []
    for step in range(6):
        now, key = 20 * step * MS, 4 * step
        calls += [
            call(now, now + MS, 2, key + 1),
            call(now + 2 * MS, now + 15 * MS, 5, key + 2),
            call(now + 15 * MS, now + 16 * MS, 4, key + 3),
        ]
        system.append((now + 3 * MS, now + 14 * MS, 27, THREAD, 3))
        kernels.append(kernel(now + MS, now + 2 * MS, 1, key + 1))
        copies.append(copy(now + 15 * MS, now + 16 * MS, key + 3))
    write(
        path := tmp_path / "report.sqlite",
        NAMES,
        CUPTI_ACTIVITY_KIND_RUNTIME=calls,
        CUPTI_ACTIVITY_KIND_KERNEL=kernels,
        CUPTI_ACTIVITY_KIND_MEMCPY=copies,
        OSRT_API=system,
    )
    assert Signals(run_of(read(path))).attribution.total_ns(Cause.INPUT) == 0


def test_what_is_read_before_the_first_kernel_are_weights(tmp_path: Path) -> None:
    parts = range(0, 50, 10)
    write(
        path := tmp_path / "report.sqlite",
        NAMES,
        CUPTI_ACTIVITY_KIND_RUNTIME=[
            *(call((at + 9) * MS, (at + 10) * MS, 4, at + 1) for at in parts),
            call(51 * MS, 52 * MS, 2, 99),
        ],
        CUPTI_ACTIVITY_KIND_KERNEL=[kernel(52 * MS, 53 * MS, 1, 99)],
        CUPTI_ACTIVITY_KIND_MEMCPY=[copy((at + 9) * MS, (at + 10) * MS, at + 1) for at in parts],
        OSRT_API=[(at * MS, (at + 8) * MS, 27, THREAD, 3) for at in parts],
    )
    assert Signals(run_of(read(path))).attribution.total_ns(Cause.INPUT) == 0
