"""Notes on a Kineto file itself."""

from __future__ import annotations

from typing import Any

from tb_perfadvisor.ingest.kineto.decode.columns import Collected
from tb_perfadvisor.ingest.kineto.decode.document import Document
from tb_perfadvisor.note import Note


def notes_of(document: Document[Any], collected: Collected) -> tuple[Note, ...]:
    """All notes, in descending order of severity."""
    notes = damage_notes(document, document.malformed + collected.malformed)
    if not collected.events["name"].size:
        notes.append(
            Note(
                "empty-profile",
                "error",
                "The profiler recorded no events.",
                "With a schedule, the program must run long enough to reach an active step: "
                "prof.step() ends a step. Without a schedule, call the code inside the profiler's "
                "`with` block.",
            )
        )
    if collected.unknown_categories:
        count = sum(collected.unknown_categories.values())
        shown = ", ".join(sorted(collected.unknown_categories)[:5])
        notes.append(
            Note(
                "unknown-events", "info", f"{count} events have unknown categories: {shown[:200]}."
            )
        )
    return tuple(notes)


def damage_notes(document: Document[Any], malformed: int) -> list[Note]:
    """Notes on damage in a file in Chrome's trace format.

    Args:
        document: The file, after all chunks were read.
        malformed: Number of events that were repaired or left out.
    """
    notes = []
    if document.is_truncated:
        notes.append(
            Note(
                "truncated-file",
                "warning",
                "The file is truncated; only its beginning was read.",
                "Wait until the profiler has finished writing, or copy the file again.",
            )
        )
    if malformed:
        events = "1 event was" if malformed == 1 else f"{malformed} events were"
        notes.append(
            Note(
                "malformed-events",
                "warning",
                f"{events} repaired or left out (no start, no name, a negative or missing "
                "duration, or unreadable).",
            )
        )
    if document.repaired:
        notes.append(
            Note(
                "repaired-json",
                "info",
                "The file is not valid JSON (control characters, stray backslashes or commas, "
                "NaN) and was repaired while reading.",
            )
        )
    return notes
