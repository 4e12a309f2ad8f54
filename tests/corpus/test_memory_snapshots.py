"""Recorded memory snapshots, against what Python's own unpickler reads of them."""

from __future__ import annotations

import io
import pickle
from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor import analyze, load
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.report.views.snapshot import make_snapshot_view
from tb_perfadvisor.signals import Options, Signals
from tb_perfadvisor.signals.snapshots.course import Course, memory_course, reserved
from tb_perfadvisor.signals.snapshots.sites import by_line
from tb_perfadvisor.trace.memory_snapshot import Action, MemorySnapshot

FILES = (
    "drisspg/test_data_mini_snapshot.pickle",
    "magma27/memory_snapshot.pickle",
    "silmont2000/memory_forward_bf16_128.pickle",
    "silmont2000/memory_forward_fp32_128.pickle",
    "yiyi-philosophy/oom_snapshot.pickle",
    "zidongliu/memory.pickle",
)
MIB, GIB = 1 << 20, 1 << 30
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


def test_a_training_step_in_eager_mode(corpus: Path) -> None:
    """Attention written out, 12 blocks of which each keeps everything, and a loss of its own."""
    report = report_of(corpus / "magma27/memory_snapshot.pickle")
    assert [finding.rule_id for finding in report.findings] == [
        "stored-attention-scores",
        "kept-activations",
        "stored-logits",
    ]
    attention, blocks, logits = (finding.memory_saving for finding in report.findings)
    assert attention is not None
    assert blocks is not None
    assert logits is not None
    # 12 layers keep exponentials and probabilities of 8 · 12 · 512 · 512 values in 32 bits.
    assert attention.bytes == 12 * 2 * 96 * MIB
    # Of 12 blocks, all but one, and 24 MiB of each one's result.
    assert blocks.bytes == pytest.approx(9.53 * GIB, rel=0.001)
    assert "12 calls at cs336_basics/model.py:253 forward keep 10.7 GiB" in (
        report.findings[1].summary
    )
    # Four tensors of 8 · 1024 · 10,000 values in 32 bits, 312.5 MiB each. Seven eighths of them
    # are 1.07 GiB, but then the peak lies elsewhere.
    assert logits.bytes < 7 / 8 * 4 * 8 * 1024 * 10_000 * 4
    assert "4 tensors of the size of the logits" in report.findings[2].summary
    assert report.headline.endswith(". Use fused attention: 2.25 GiB less at the peak")


def test_what_a_training_step_holds_at_its_peak(corpus: Path) -> None:
    """One event after the other: the threads of the backward pass have no Python frames."""
    file = corpus / "magma27/memory_snapshot.pickle"
    entries = [e for e in reference(file)["device_traces"][0] if e["action"] != "free_completed"]
    is_alloc = [entry["action"] == "alloc" for entry in entries]
    changes = [e["size"] if made else -e["size"] for e, made in zip(entries, is_alloc, strict=True)]
    held = list(accumulate(changes))
    peak = held.index(max(held))
    backward = next(at for at, e in enumerate(entries) if is_alloc[at] and not e["frames"])
    expected: Counter[str] = Counter()
    for at in range(peak + 1):
        freed = next(
            (
                later
                for later in range(at + 1, len(entries))
                if entries[later]["addr"] == entries[at]["addr"]
            ),
            len(entries),
        )
        if is_alloc[at] and freed > peak:
            is_kept = at < backward <= freed
            expected["activations" if is_kept else "temporary"] += entries[at]["size"]
    (run,) = load(file)
    view = make_snapshot_view(Signals(run))
    assert view is not None
    found = {part.category: part.bytes for part in view.categories}
    # The rest was there before the history: weights and gradients.
    expected["earlier"] = view.peak_allocated_bytes - expected.total()
    assert found == expected


def test_autocast_raises_the_peak_of_a_small_model(corpus: Path) -> None:
    """Cached 16-bit copies of the weights: advice to use autocast would be wrong here."""
    bf16 = course_of(corpus / "silmont2000/memory_forward_bf16_128.pickle")
    fp32 = course_of(corpus / "silmont2000/memory_forward_fp32_128.pickle")
    assert bf16.peak_allocated_bytes == 779_837_440
    assert fp32.peak_allocated_bytes == 556_843_008
    # Both begin with the same weights.
    assert bf16.allocated_bytes[0] == fp32.allocated_bytes[0] == 523_811_840
    (copies,) = report_of(corpus / "silmont2000/memory_forward_bf16_128.pickle").findings
    assert copies.rule_id == "autocast-weight-copies"
    # Without the copies, the peak is about that in 32 bits: what the pair shows.
    assert copies.memory_saving is not None
    assert copies.memory_saving.bytes == pytest.approx(779_837_440 - 556_843_008, rel=0.02)
    # In 32 bits, the peak is weights, and what one layer needs at a time.
    in_32_bits = report_of(corpus / "silmont2000/memory_forward_fp32_128.pickle")
    assert in_32_bits.findings == []
    (why,) = [note for note in in_32_bits.notes if note.id == "memory-as-needed"]
    assert "500 MiB of the 531 MiB at the peak (94.1 %)" in why.message
    # Neither promises that 16 bits save memory.
    advice = [remedy.text for remedy in copies.remedies]
    assert not any("autocast(" in text for text in advice[1:])


def test_a_full_device(corpus: Path) -> None:
    """11.0 GiB of a card of 11: all of it weights, from one line. PyTorch 2.0's first schema."""
    file = corpus / "yiyi-philosophy/oom_snapshot.pickle"
    course = course_of(file)
    (holder,) = by_line(course.allocations.alive_in(course.peak), course.snapshot.stacks)
    assert holder.line == "flexgen/pytorch_backend.py:190 allocate"
    assert holder.bytes == 11_840_159_744
    assert holder.count == 460
    assert reserved(course).in_free_segments_bytes == 0
    (weights,) = report_of(file).findings
    assert weights.rule_id == "resident-memory"
    assert "fragmentation is not the cause" in weights.summary
    assert weights.memory_saving is not None
    assert weights.memory_saving.bytes == 11_840_159_744 // 2
    changes = {remedy.change for remedy in weights.remedies}
    assert changes == {"offloaded-weights", "fewer-bits-for-weights"}
    # 11,844,714,496 bytes of 12 GiB: 91.9 %.
    again, finding = report_of(file, "RTX 4070 SUPER").findings
    assert (again.rule_id, again.severity) == ("resident-memory", "medium")
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
    # The peak is the update of the embedding: 3 tensors of 50,272 · 768 values in 32 bits that it
    # drops again. With one at a time, it is 2 of them lower.
    (finding,) = report.findings
    assert finding.rule_id == "out-of-place-update"
    assert finding.memory_saving is not None
    assert finding.memory_saving.bytes == 2 * 50_272 * 768 * 4


def test_a_history_that_ends_before_the_work_says_so(corpus: Path) -> None:
    report = report_of(corpus / "drisspg/test_data_mini_snapshot.pickle")
    assert report.findings == []
    assert "history-without-steps" in {note.id for note in report.notes}
