"""Why a memory snapshot has no finding: what its peak consists of."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.engine.analysis import RankedFinding
from tb_perfadvisor.note import Note
from tb_perfadvisor.rules.evidence.memory import holders_in
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.snapshots.course import Course, memory_course
from tb_perfadvisor.trace.memory_snapshot import Action
from tb_perfadvisor.units import format_bytes, format_share

_FREED_SHARE = 0.1
"""A step frees nearly all that it allocates, except for the optimizer's state in the first one."""
_WHOLE_STEPS = (
    "Start recording before the model is built, and take the snapshot after a few steps: "
    "torch.cuda.memory._record_memory_history(max_entries=1_000_000)."
)


def snapshot_notes(signals: Signals, findings: Sequence[RankedFinding]) -> list[Note]:
    """Say why there is no advice on a memory snapshot; empty if there is some."""
    course = memory_course(signals)
    if findings or course is None or not signals.trace.is_snapshot_only:
        return []
    peak = course.peak_allocated_bytes
    if not peak or not len(course.snapshot.events):
        return []
    allocated, freed = (_total(course, action) for action in (Action.ALLOCATE, Action.FREE))
    if freed < _FREED_SHARE * allocated:
        lines = [holder for holder in holders_in(course, course.peak) if holder.line is not None]
        most = f" ({format_bytes(lines[0].bytes)} of it at {lines[0].line})" if lines else ""
        return [
            Note(
                "history-without-steps",
                "info",
                f"The history allocates {format_bytes(allocated)}{most} and frees"
                f" {format_bytes(freed)}: it ends before the program's work. What a step keeps, and"
                " what could be freed, cannot be seen.",
                _WHOLE_STEPS,
            )
        ]
    earlier = course.allocations
    before = int(earlier.bytes[(earlier.since == 0) & (earlier.until > course.peak)].sum())
    return [
        Note(
            "memory-as-needed",
            "info",
            f"{format_bytes(before)} of the {format_bytes(peak)} at the peak"
            f" ({format_share(before / peak)}) was there before the history, such as weights. The"
            f" program adds {format_bytes(peak - before)} to it, and no check found a part of that"
            " which another way to compute would free.",
        )
    ]


def _total(course: Course, action: Action) -> int:
    """The sum of what was allocated, or freed, in the history."""
    places = course.places(action)
    return int(course.snapshot.events.size_bytes[course.rows[places]].sum())
