"""Recorded memory snapshots, against what Python's own unpickler reads of them."""

from __future__ import annotations

import io
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor.api import analyze, load
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.signals import Options, Signals
from tb_perfadvisor.signals.snapshots.course import Course
from tb_perfadvisor.signals.snapshots.memory_course import memory_course
from tb_perfadvisor.signals.snapshots.reservations import reserved
from tb_perfadvisor.signals.snapshots.source_lines import by_line
from tb_perfadvisor.trace.memory_snapshot import Action, MemorySnapshot

FILES = (
    "drisspg/test_data_mini_snapshot.pickle",
    "magma27/memory_snapshot.pickle",
    "silmont2000/memory_forward_bf16_128.pickle",
    "silmont2000/memory_forward_fp32_128.pickle",
    "yiyi-philosophy/oom_snapshot.pickle",
    "zidongliu/memory.pickle",
)
every_file = pytest.mark.parametrize("path", FILES)


class Plain(pickle.Unpickler):
    """Python's own, without anything that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise AssertionError(f"{module}.{name}")


def reference(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = Plain(io.BytesIO(file.read_bytes())).load()
    return content


def snapshot_of(file: Path) -> MemorySnapshot:
    (run,) = load(file)
    assert run.traces[0].snapshot is not None
    return run.traces[0].snapshot


def course_of(file: Path) -> Course:
    (run,) = load(file)
    course = memory_course(Signals(run))
    assert course is not None
    return course


def report_of(file: Path, device: str | None = None) -> Report:
    return analyze(file, config=Config(options=Options(device=device)))


@every_file
def test_columns_are_those_of_the_file(corpus: Path, path: str) -> None:
    content, snapshot = reference(corpus / path), snapshot_of(corpus / path)
    entries = [entry for history in content["device_traces"] for entry in history]
    events = snapshot.events
    assert events.size_bytes.tolist() == [entry["size"] for entry in entries]
    assert events.address.tolist() == [entry.get("addr", -1) for entry in entries]
    assert events.at_ns.tolist() == [
        1_000 * entry["time_us"] if "time_us" in entry else -1 for entry in entries
    ]
    stacks = [
        [(frame.file, frame.line, frame.function) for frame in snapshot.stacks.of(stack)]
        for stack in events.stack.tolist()
    ]
    assert stacks == [
        # Names of C++ functions are cut off, and an unknown line may be -1 of 64 bits.
        [
            (frame["filename"], frame["line"] % (2**64 - 1), frame["name"][:500])
            for frame in entry.get("frames", ())
        ]
        for entry in entries
    ]
    blocks = [block for segment in content["segments"] for block in segment["blocks"]]
    assert snapshot.blocks.size_bytes.tolist() == [block["size"] for block in blocks]
    names = {"inactive": 0, "active_allocated": 1, "active_awaiting_free": 2}
    assert snapshot.blocks.state.tolist() == [names[block["state"]] for block in blocks]
    assert snapshot.segments.size_bytes.sum() == sum(
        segment["total_size"] for segment in content["segments"]
    )
    counts = Counter(entry["action"] for entry in entries)
    assert (events.action == Action.ALLOCATE).sum() == counts["alloc"]
    assert (events.action == Action.FREE).sum() == counts["free_requested"]
    assert snapshot.left_out == 0


@every_file
def test_the_course_is_that_of_a_simple_replay(corpus: Path, path: str) -> None:
    """Backward from what is allocated at the end: each allocation takes away, each free adds."""
    if "mini" in path:
        pytest.skip("cut to its first 50 entries, so its end is not that of the snapshot")
    content, course = reference(corpus / path), course_of(corpus / path)
    now = sum(
        block["requested_size"]
        for segment in content["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    )
    replayed = [now]
    for entry in reversed(content["device_traces"][0]):
        now += {"alloc": -1, "free_requested": 1}.get(entry["action"], 0) * entry["size"]
        replayed.append(now)
    assert course.allocated_bytes.tolist() == replayed[::-1]
    assert course.is_whole
    # What is alive at the peak adds up to it.
    holders = by_line(course.allocations.alive_in(course.peak), course.snapshot.stacks)
    assert sum(holder.bytes for holder in holders) == max(replayed)


def test_what_is_reserved_and_unused_at_the_end_was_needed_at_the_peak(corpus: Path) -> None:
    """13.2 GiB reserved, 1.3 allocated: no fragmentation, since 13.0 were allocated before."""
    course = course_of(corpus / "magma27/memory_snapshot.pickle")
    assert course.peak_allocated_bytes == 13_923_997_700
    assert course.peak_reserved_bytes == 14_180_941_824
    held = reserved(course)
    # Sums over the file's segments: those with inactive blocks only, and the inactive blocks of
    # the others.
    assert held.in_free_segments_bytes == 11_773_411_328
    assert held.in_pieces_bytes == 1_029_776_896
    assert held.largest_free_bytes == 329_252_864
    assert held.allocated_bytes == 1_377_753_600
    report = report_of(corpus / "magma27/memory_snapshot.pickle")
    assert report.findings == []
    assert report.headline == (
        "Peak memory is 13.0 GiB, 19.7 % of it from cs336_basics/model.py:39 forward"
    )
    # 14,180,941,824 bytes of 16 GiB: 82.5 %.
    on_16 = report_of(corpus / "magma27/memory_snapshot.pickle", "V100 SXM2 16GB")
    assert [finding.rule_id for finding in on_16.findings] == []


def test_autocast_raises_the_peak_of_a_small_model(corpus: Path) -> None:
    """Cached 16-bit copies of the weights: advice to use autocast would be wrong here."""
    bf16 = course_of(corpus / "silmont2000/memory_forward_bf16_128.pickle")
    fp32 = course_of(corpus / "silmont2000/memory_forward_fp32_128.pickle")
    assert bf16.peak_allocated_bytes == 779_837_440
    assert fp32.peak_allocated_bytes == 556_843_008
    # Both begin with the same weights.
    assert bf16.allocated_bytes[0] == fp32.allocated_bytes[0] == 523_811_840
    for name in ("bf16", "fp32"):
        report = report_of(corpus / f"silmont2000/memory_forward_{name}_128.pickle")
        assert report.findings == []


def test_a_full_device(corpus: Path) -> None:
    """11.0 GiB of a card of 11: all of it weights, from one line. PyTorch 2.0's first schema."""
    file = corpus / "yiyi-philosophy/oom_snapshot.pickle"
    course = course_of(file)
    (holder,) = by_line(course.allocations.alive_in(course.peak), course.snapshot.stacks)
    assert holder.line == "flexgen/pytorch_backend.py:190 allocate"
    assert holder.bytes == 11_840_159_744
    assert holder.count == 460
    assert reserved(course).in_free_segments_bytes == 0
    assert report_of(file).findings == []
    assert report_of(file).headline == (
        "Peak memory is 11.0 GiB, all of it from flexgen/pytorch_backend.py:190 allocate"
    )
    # 11,844,714,496 bytes of 12 GiB: 91.9 %.
    (finding,) = report_of(file, "RTX 4070 SUPER").findings
    assert finding.rule_id == "memory-near-capacity"
    assert finding.summary == (
        "Peak reserved memory is 11.0 GiB of 12.0 GiB (91.9 %). 11.0 GiB was allocated at the peak"
        "; flexgen/pytorch_backend.py:190 allocate holds 11.0 GiB (100.0 %) of it."
    )


def test_perturbations_are_not_a_leak(corpus: Path) -> None:
    """It allocates 1.66 GiB while it is built up, and 0.94 GiB stay: copies of the weights."""
    report = report_of(corpus / "zidongliu/memory.pickle")
    course = course_of(corpus / "zidongliu/memory.pickle")
    assert course.peak_allocated_bytes == 1_783_664_516
    assert course.peak_reserved_bytes == 1_897_922_560
    assert report.findings == []
