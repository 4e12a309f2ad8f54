"""Notes on damage of a file."""

from __future__ import annotations

from typing import Any

from tb_perfadvisor.ingest.json_trace.document import Document
from tb_perfadvisor.note import Note


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
