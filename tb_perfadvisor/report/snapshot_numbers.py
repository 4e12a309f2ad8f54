"""The key numbers and the caption of a report on a memory snapshot alone."""

from __future__ import annotations

from tb_perfadvisor.contract import model
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.snapshots.course import (
    exhaustion,
    memory_course,
    reserved,
    snapshot_capacity_bytes,
)
from tb_perfadvisor.units import format_bytes


def snapshot_numbers(signals: Signals) -> list[model.KeyNumber]:
    """Peaks, what is held in the end, and what failed."""
    course = memory_course(signals)
    if course is None:
        return []
    capacity, held, failed = snapshot_capacity_bytes(signals), reserved(course), exhaustion(course)
    unused = held.in_pieces_bytes + held.in_free_segments_bytes
    numbers = [
        _bytes(
            "peak-memory",
            "Peak allocated",
            course.peak_allocated_bytes,
            capacity,
            "The most memory that the program asked for at any time in the history. The allocator "
            "rounds requests up.",
        ),
        _bytes(
            "peak-reserved-memory",
            "Peak reserved",
            course.peak_reserved_bytes,
            capacity,
            "The most memory that the allocator had from the driver.",
        ),
        _bytes(
            "unused-memory",
            "Unused at the end",
            unused,
            None,
            "What the allocator held, but nothing used, when the snapshot was taken. In pieces: in "
            "segments that are in use.",
            [f"{format_bytes(held.in_pieces_bytes)} in pieces"],
        ),
    ]
    if failed is not None:
        numbers.append(
            _bytes(
                "failed-allocation",
                "Failed allocation",
                failed.requested_bytes,
                None,
                "The size of the last allocation that failed.",
                [f"{failed.count:,} failed"],
            )
        )
    return numbers


def snapshot_caption(program: str, signals: Signals) -> str:
    """`PyTorch, training · memory snapshot · 5,163 events`.

    Args:
        program: The framework and what the program does.
        signals: Of the reference worker.
    """
    snapshot = signals.trace.snapshot
    events = len(snapshot.events) if snapshot is not None else 0
    history = f"{events:,} event{'' if events == 1 else 's'}" if events else "no history"
    ranks = [f"{len(signals.run.sources):,} ranks"] if len(signals.run.sources) > 1 else []
    return " · ".join([program, "memory snapshot", *ranks, history])


def _bytes(
    id: str,
    label: str,
    value: int,
    capacity: int | None,
    definition: str,
    notes: list[str] | None = None,
) -> model.KeyNumber:
    return model.KeyNumber(
        id=id,
        label=label,
        value=value,
        unit="bytes",
        of="",
        share=min(value / capacity, 1.0) if capacity else None,
        notes=notes or ([f"of {format_bytes(capacity)}"] if capacity else []),
        definition=definition,
    )
