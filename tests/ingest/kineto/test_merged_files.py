"""Traces of several ranks that a tool has merged into one file, as TraceLens does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tb_perfadvisor import analyze, load
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, ms, us
from tb_perfadvisor.trace import Run, Trace
from tests.support.kineto_files import read
from tests.support.writers import write_kineto


def one_rank(late_ms: int = 0) -> Trace:
    """Three steps of 10 ms: a forward and a backward operator, each with a kernel of 2 ms."""
    builder = TraceBuilder()
    for number in range(3):
        begin = ms(10 * number)
        builder.step(number, begin, begin + ms(10))
        builder.operator(
            "aten::mm", begin + ms(late_ms), begin + ms(late_ms) + us(100), key=f"forward {number}"
        )
        builder.kernel(
            "gemm", begin + ms(late_ms + 1), begin + ms(late_ms + 3),
            launched_by=f"forward {number}",
        )  # fmt: skip
        builder.operator(
            "MmBackward0", begin + ms(5), begin + ms(5) + us(100),
            key=f"backward {number}", forward=f"forward {number}",
        )  # fmt: skip
        builder.kernel(
            "gemm_backward", begin + ms(6), begin + ms(8), launched_by=f"backward {number}"
        )
    return builder.build()


def merged(
    traces: list[Trace], names: tuple[str, str] = ("RANK {} - CPU", "RANK {} - GPU")
) -> bytes:
    """One file with the events of several traces, whose ids and devices are the same."""
    events: list[dict[str, Any]] = []
    for rank, trace in enumerate(traces):
        pids: dict[Any, int] = {}
        for event in json.loads(write_kineto(trace))["traceEvents"]:
            if event["ph"] == "M":
                continue
            pid = pids.setdefault(event["pid"], 1000 * (rank + 1) + len(pids))
            is_device = "device" in event.get("args", {})
            if event["ph"] == "X":
                text = names[is_device].format(rank)
                events.append(
                    {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": text}}
                )
            events.append({**event, "pid": pid})
    return json.dumps({"traceEvents": events}).encode()


def load_merged(folder: Path, data: bytes) -> Run:
    (folder / "merged.pt.trace.json").write_bytes(data)
    (run,) = load(folder)
    return run


def test_each_rank_becomes_a_trace(tmp_path: Path) -> None:
    run = load_merged(tmp_path, merged([one_rank(), one_rank(1)]))
    assert [trace.source.rank for trace in run.traces] == [0, 1]
    assert [trace.source.world_size for trace in run.traces] == [2, 2]
    assert [note.id for note in run.traces[0].notes] == ["merged-file"]
    for late_ms, trace in enumerate(run.traces):
        alone = read(write_kineto(one_rank(late_ms)))
        # The same events as in a file of this rank alone, although both ranks count launches and
        # autograd nodes from the same number, and use device 0.
        for column in ("start_ns", "duration_ns", "kind", "parent", "launched_by", "forward"):
            mine, wanted = getattr(trace.events, column), getattr(alone.events, column)
            assert mine.tolist() == wanted.tolist(), column
        assert (trace.events.launched_by >= 0).sum() == 6
        assert (trace.events.forward >= 0).sum() == 3
        assert len(trace.kernels.row) == len(alone.kernels.row)
        device = Signals(run, late_ms).device
        assert (device.index, device.used) == (0, 1)


def test_the_report_is_of_several_ranks_with_a_device_each(tmp_path: Path) -> None:
    load_merged(tmp_path, merged([one_rank(), one_rank(1), one_rank()]))
    report = analyze(tmp_path)
    assert [worker.rank for worker in report.workers] == [0, 1, 2]
    assert {worker.device.used for worker in report.workers if worker.device} == {1}
    assert "of 3" in report.caption
    (note,) = (note for note in report.notes if note.id == "merged-file")
    assert "3 ranks" in note.message


def test_ranks_that_cannot_be_told_apart(tmp_path: Path) -> None:
    run = load_merged(tmp_path, merged([one_rank(), one_rank(1)], ("python", "")))
    (trace,) = run.traces
    (note,) = trace.notes
    assert (note.id, note.severity) == ("merged-file", "warning")
    assert "several processes" in note.message


def test_one_rank_is_not_merged(tmp_path: Path) -> None:
    run = load_merged(tmp_path, merged([one_rank()]))
    (trace,) = run.traces
    assert trace.notes == ()
    assert trace.source.rank is None


def test_some_ranks_of_a_larger_program(tmp_path: Path) -> None:
    names = ("[rank{}0] CPU", "[rank{}0] GPU")
    run = load_merged(tmp_path, merged([one_rank(), one_rank(1)], names))
    assert [trace.source.rank for trace in run.traces] == [0, 10]
    # How many ranks there are is not known.
    assert [trace.source.world_size for trace in run.traces] == [None, None]
