"""Notes on a Kineto file itself."""

from __future__ import annotations

from typing import Any

from tb_perfadvisor.ingest.json_trace.document import Document
from tb_perfadvisor.ingest.json_trace.notes import damage_notes
from tb_perfadvisor.ingest.kineto.decode.columns import KinetoColumns
from tb_perfadvisor.note import Note


def notes_of(document: Document[Any], collected: KinetoColumns) -> tuple[Note, ...]:
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
