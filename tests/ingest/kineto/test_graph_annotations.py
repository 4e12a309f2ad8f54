"""Marks of CUDA graphs, in a synthetic file as PyTorch's source writes them."""

from __future__ import annotations

from typing import Any

from tb_perfadvisor.trace import EventKind
from tests.support.kineto_files import event, kernel, read, to_bytes


def replayed(ts: float, mark: str | None, stream: int = 7) -> dict[str, Any]:
    """A kernel of 10 µs in a replay; all kernels of a replay have the correlation of its launch."""
    made = kernel("gemm", ts, 10, stream=stream, correlation=int(ts // 100) + 1)
    made["args"] |= {"graph node id": round(ts)} | ({} if mark is None else {"name": mark})
    return made


def test_work_in_succession_that_is_marked_alike_is_a_range() -> None:
    trace = read(
        to_bytes(
            [
                event("cudaGraphLaunch", 0, 5, "cuda_runtime"),
                replayed(10, "attention"),
                replayed(20, "attention"),
                replayed(30, None),
                replayed(40, "attention"),
                replayed(50, "mlp"),
                # The next replay.
                replayed(110, "mlp"),
                # A lane of its own, meanwhile.
                replayed(15, "all_gather", stream=21),
                replayed(25, "all_gather", stream=21),
            ]
        )
    )
    rows = trace.rows(EventKind.DEVICE_ANNOTATION)
    ranges = [
        (
            trace.name(row),
            trace.text(int(trace.tracks.label[trace.events.track[row]])),
            int(trace.events.start_ns[row]),
            int(trace.events.duration_ns[row]),
        )
        for row in rows.tolist()
    ]
    assert ranges == [
        ("attention", "stream 7", 10_000, 20_000),
        ("all_gather", "stream 21", 15_000, 20_000),
        ("attention", "stream 7", 40_000, 10_000),
        ("mlp", "stream 7", 50_000, 10_000),
        ("mlp", "stream 7", 110_000, 10_000),
    ]
    assert len(trace.rows(EventKind.KERNEL)) == 8


def test_without_marks_there_are_no_ranges() -> None:
    trace = read(to_bytes([event("aten::mm", 0, 5), replayed(10, None)]))
    assert len(trace.rows(EventKind.DEVICE_ANNOTATION)) == 0
