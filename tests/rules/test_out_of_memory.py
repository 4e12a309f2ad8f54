from __future__ import annotations

from tb_perfadvisor.rules.memory.capacity import OutOfMemory
from tb_perfadvisor.testing import check_rule, draw, find
from tests.support.memory_snapshots import Snapshot, frames

MIB, GIB = 1 << 20, 1 << 30
FORWARD = frames(("/p/model.py", 54, "forward"))
LOADING = frames(("/p/train.py", 7, "main"))


def full(*, in_pieces: bool, fails: bool = True) -> Snapshot:
    """10 GiB reserved in two segments, 8 of them allocated, in one piece each or in many."""
    made = Snapshot()
    for _ in range(2):
        segment = made.segment(5 * GIB)
        for piece in range(4):
            # Of each 1.25 GiB, 1 GiB is in use; in one piece, what is left lies at the end.
            at = segment + piece * (5 * GIB // 4 if in_pieces else GIB)
            made.allocate(at, GIB, LOADING).holds(segment, at, GIB, LOADING)
    return made.fail(2 * GIB, 512 * MIB, FORWARD) if fails else made


def test_fires_on_a_failure() -> None:
    checked = check_rule(
        OutOfMemory,
        slow=full(in_pieces=False).trace(),
        fixed=full(in_pieces=False, fails=False).trace(),
    )
    (finding,) = checked.findings
    # 10 - 8 GiB are unused and 0.5 are left: 2.5 in all, but at most 1 GiB in one piece.
    assert finding.summary == (
        "2.00 GiB could not be allocated at p/model.py:54 forward. The driver had 512 MiB left, the"
        " allocator held 2.00 GiB unused, and 1.00 GiB would have fit: enough was free, but in"
        " pieces. 8.00 GiB was allocated; p/train.py:7 main holds 8.00 GiB (100.0 %) of it."
    )
    assert finding.severity == "high"
    assert finding.remedies[0].change == "expandable-segments"


def test_what_would_have_fit_is_the_largest_piece() -> None:
    (finding,) = find(OutOfMemory, full(in_pieces=True).trace()) or ()
    # Each piece is a quarter of a GiB, less than what the driver has left.
    assert "512 MiB would have fit" in finding.summary


def test_expandable_segments_are_not_proposed_to_a_program_that_has_them() -> None:
    made = full(in_pieces=True)
    made.settings["expandable_segments"] = True
    (finding,) = find(OutOfMemory, made.trace()) or ()
    assert "expandable-segments" not in {remedy.change for remedy in finding.remedies}


def test_too_little_in_all_is_no_fragmentation() -> None:
    made = full(in_pieces=False, fails=False).fail(4 * GIB, 512 * MIB, FORWARD)
    (finding,) = find(OutOfMemory, made.trace()) or ()
    # 4 GiB, less 2 unused and 0.5 left.
    assert "1.50 GiB more was needed" in finding.summary
    assert "expandable-segments" not in {remedy.change for remedy in finding.remedies}


def test_after_the_failure_was_handled_the_largest_piece_is_unknown() -> None:
    made = full(in_pieces=False)
    made.free(0x7F00_0000_0000, GIB)
    (finding,) = find(OutOfMemory, made.trace()) or ()
    assert "would have fit" not in finding.summary
    # What was allocated at that moment, not at the end.
    assert "8.00 GiB was allocated" in finding.summary


def test_a_profile_without_a_snapshot_does_not_apply() -> None:
    assert find(OutOfMemory, draw("cell 1ms\nmain |oo|\ngpu 7 |.K|")) is None
