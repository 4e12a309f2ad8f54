"""PyTorch's profiler begins a further cycle when a loop ends, which records no step."""

from __future__ import annotations

from pathlib import Path

from tb_perfadvisor import analyze
from tb_perfadvisor.comparison.pairing import pair
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.recordings import LEFT_OVER
from tests.support.kineto_files import event, to_bytes

SECOND = "run/host_1.1764000001000.pt.trace.json"


def step(number: int, at: float, length: float, operators: int) -> list[dict[str, object]]:
    marker = event(f"ProfilerStep#{number}", at, length, cat="user_annotation")
    each = length / max(operators, 1)
    names = [event("aten::mm", at + each * k, each / 2) for k in range(operators)]
    return [marker, *names]


def written(root: Path, last: list[dict[str, object]]) -> Path:
    steps = [entry for number in range(5) for entry in step(number, number * 1e4, 1e4, 40)]
    (root / "run").mkdir()
    (root / "run/host_1.1764000000000.pt.trace.json").write_bytes(to_bytes(steps))
    (root / SECOND).write_bytes(to_bytes(last))
    return root


def test_a_last_recording_without_a_step_is_no_recording_of_the_run(tmp_path: Path) -> None:
    # After its loop, the program copies a few tensors to write a checkpoint.
    listing = discover(written(tmp_path, step(5, 0, 4e5, 3)))
    (capture,) = listing.captures
    assert capture.files[0].path == "run/host_1.1764000000000.pt.trace.json"
    assert [(file.path, file.reason) for file in listing.rejected] == [(SECOND, LEFT_OVER)]
    ((group,), notes) = pair(listing, [listing])
    assert group.targets[0].capture == capture
    assert any(note.startswith(SECOND) for note in notes)


def test_a_short_recording_with_a_step_is_one(tmp_path: Path) -> None:
    assert len(discover(written(tmp_path, step(5, 0, 1e4, 40))).captures) == 2


def test_a_marker_alone_is_no_step(tmp_path: Path) -> None:
    written(tmp_path, step(5, 0, 4e5, 0))
    report = analyze(tmp_path / SECOND)
    assert (report.steps.used, report.overview.step_time_ns) == (0, None)
    assert "no work was recorded in it" in report.steps.excluded[0].reason
