from __future__ import annotations

import re
from pathlib import Path

from tb_perfadvisor import analyze
from tb_perfadvisor.report.formats.render import render
from tb_perfadvisor.report.key_numbers import snapshot_numbers
from tb_perfadvisor.report.views.snapshot import SnapshotView, make_snapshot_view
from tb_perfadvisor.signals import Options, Signals
from tb_perfadvisor.testing import draw, run_of
from tests.support.memory_snapshots import Snapshot, frames

MIB, GIB = 1 << 20, 1 << 30
FORWARD = frames(("/home/me/p/model.py", 3, "forward"), ("/home/me/train.py", 9, "main"))


def drawn() -> Snapshot:
    """4 GiB reserved; 1 GiB stays, 2 GiB are freed. Then a request of 2 GiB fails."""
    made = Snapshot()
    segment = made.segment(4 * GIB)
    made.allocate(segment, GIB).holds(segment, segment, GIB)
    made.allocate(segment + GIB, 2 * GIB, FORWARD).free(segment + GIB, 2 * GIB)
    return made.fail(8 * GIB, GIB, FORWARD)


def signals_of(made: Snapshot, device: str | None = None) -> Signals:
    return Signals(run_of(made.trace()), 0, Options(device=device))


def view_of(made: Snapshot, device: str | None = None) -> SnapshotView:
    view = make_snapshot_view(signals_of(made, device))
    assert view is not None
    return view


def test_memory_over_the_history_and_who_holds_the_peak() -> None:
    view = view_of(drawn(), "A100 SXM4 80GB")
    # Segment, two allocations, a free in two parts, a failure: a microsecond apart.
    assert view.at_ns == [0, 0, 1_000, 2_000, 3_000, 4_000, 5_000]
    assert [size // GIB for size in view.allocated_bytes] == [0, 0, 1, 3, 1, 1, 1]
    assert [size // GIB for size in view.reserved_bytes] == [0, 4, 4, 4, 4, 4, 4]
    assert (view.peak_allocated_bytes, view.peak_reserved_bytes) == (3 * GIB, 4 * GIB)
    assert view.capacity_bytes == 80 * GIB
    held = [(holder.line, holder.count, holder.bytes, holder.frames) for holder in view.alive]
    # No directory of the recording machine but the last.
    stack = ["p/model.py:3 forward", "me/train.py:9 main"]
    assert held == [("p/model.py:3 forward", 1, 2 * GIB, stack), (None, 1, GIB, [])]


def test_what_is_reserved_and_what_failed() -> None:
    view = view_of(drawn())
    assert (view.reserved.in_pieces_bytes, view.reserved.in_free_segments_bytes) == (3 * GIB, 0)
    assert view.failure is not None
    # 4 - 1 GiB free in one block, and 1 left by the driver, for a request of 8.
    assert view.failure.largest_fit_bytes == 3 * GIB
    assert not view.failure.is_in_pieces
    assert view.failure.line == "p/model.py:3 forward"
    numbers = {number.id: number.value for number in snapshot_numbers(signals_of(drawn()))}
    assert numbers == {
        "peak-memory": 3 * GIB,
        "peak-reserved-memory": 4 * GIB,
        "unused-memory": 3 * GIB,
        "failed-allocation": 8 * GIB,
    }


def test_steps_and_what_stays() -> None:
    made = Snapshot()
    segment = made.segment(GIB)
    for step in range(5):
        made.annotate("Optimizer.step#SGD.step")
        made.allocate(segment + step * MIB, MIB, FORWARD)
    view = view_of(made)
    assert view.growth is not None
    assert view.growth.source == "Optimizer.step#SGD.step"
    assert [step.allocated_bytes // MIB for step in view.growth.steps] == [1, 2, 3, 4, 5]
    # Those of the third and fourth step: the second one began with its own.
    assert [(kept.line, kept.count) for kept in view.growth.kept] == [("p/model.py:3 forward", 2)]
    assert not view.is_whole  # nothing is held at the end, but nothing was freed


def test_a_profile_without_a_snapshot_has_no_such_view() -> None:
    drawing = draw("cell 1ms\nmain |oo|\ngpu 7 |.K|")
    assert make_snapshot_view(Signals(run_of(drawing))) is None


def test_the_report_of_a_snapshot_alone(tmp_path: Path) -> None:
    (tmp_path / "memory.pickle").write_bytes(drawn().pickled())
    report = analyze(tmp_path)
    assert report.headline == (
        "Peak memory is 3.00 GiB. Make the failed allocation fit: 8.00 GiB did not fit"
    )
    assert report.caption == "PyTorch · memory snapshot · 6 events"
    assert report.overview.breakdown == []
    assert report.overview.memory is not None
    assert report.overview.memory.peak_allocated_bytes == 3 * GIB
    assert {missing.reason for missing in report.missing_signals} == {
        "a memory snapshot shows memory, not what ran",
        "the size of the device's memory is unknown",
    }


def test_the_terminal_shows_the_numbers(tmp_path: Path) -> None:
    (tmp_path / "memory.pickle").write_bytes(drawn().pickled())
    shown = render(analyze(tmp_path), "text")
    assert "Where the time goes" not in shown
    assert re.search(r"Peak allocated +3\.00 GiB", shown)
    assert re.search(r"Peak allocated +\| 3\.00 GiB", render(analyze(tmp_path), "markdown"))
