"""Notes on a Kineto file itself."""

from __future__ import annotations

from typing import Any

from tb_perfadvisor.ingest.json_trace.document import Document
from tb_perfadvisor.ingest.json_trace.notes import damage_notes
from tb_perfadvisor.ingest.kineto.decode.columns import KinetoColumns
from tb_perfadvisor.note import Note


def notes_of(document: Document[Any], collected: KinetoColumns, unended: int) -> tuple[Note, ...]:
    """All notes, in descending order of severity.

    Args:
        document: The file.
        collected: Its events.
        unended: Calls of Python functions that outlasted their callers.
    """
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
    if unended:
        calls = "1 call of a Python function outlasts its caller"
        if unended > 1:
            calls = f"{unended:,} calls of Python functions outlast their callers"
        notes.append(
            Note(
                "calls-without-end",
                "info",
                f"{calls}, because the profiler missed the end. They end with their callers now.",
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
