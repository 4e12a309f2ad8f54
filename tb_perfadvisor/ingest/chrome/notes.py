"""Notes on a Chrome export itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from tb_perfadvisor.ingest.chrome.columns import ExportColumns
from tb_perfadvisor.ingest.chrome.processes import ProcessPlace, has_no_work
from tb_perfadvisor.ingest.json_trace.document import Document, damage_notes
from tb_perfadvisor.note import Note
from tb_perfadvisor.trace import Device

_MAX_NAMES: Final = 3


def notes_of(
    document: Document[Any],
    collected: ExportColumns,
    places: Mapping[Any, ProcessPlace],
    devices: tuple[Device, ...],
) -> tuple[Note, ...]:
    """All notes, in descending order of severity."""
    document.is_interleaved |= document.is_followed  # others are not read
    notes = damage_notes(document, document.malformed + collected.malformed)
    if collected.is_capped:
        notes.append(
            Note(
                "event-limit",
                "warning",
                f"The export has {len(collected.start_us):,} events, the limit of the "
                "profiler. Later events and unfinished steps are missing.",
                "Read the .xplane.pb of the same session, which has all events, or record fewer "
                "steps.",
            )
        )
    missing = ["memory allocations", "the programs that XLA compiled"]
    if devices:
        missing.append("the description of the device")
    if any(device.kind == "tpu" for device in devices):
        missing.append("the launches of its programs")
    notes.append(
        Note(
            "chrome-export",
            "info",
            "This is the Chrome export of a profile, which leaves out "
            f"{', '.join(missing[:-1])} and {missing[-1]}.",
            "JAX, and TensorFlow since 2.4, write a complete .xplane.pb to the same directory. "
            "If it is there, it is read instead.",
        )
    )
    left_out = _left_out(collected, places)
    if left_out:
        count = sum(left_out.values())
        events = "1 event was" if count == 1 else f"{count} events were"
        shown = ", ".join(sorted({name for name in left_out if name})[:_MAX_NAMES])
        notes.append(
            Note(
                "unknown-events",
                "info",
                f"{events} left out, from processes that are neither a host nor a device"
                f"{f': {shown[:200]}' if shown else ''}.",
            )
        )
    return tuple(notes)


def _left_out(collected: ExportColumns, places: Mapping[Any, ProcessPlace]) -> Counter[str]:
    """The number of events without a place, by the name of their process."""
    counts = np.bincount(collected.thread, minlength=len(collected.threads)).tolist()
    left_out: Counter[str] = Counter()
    for (pid, _), count in zip(collected.threads, counts, strict=True):
        if pid not in places and not has_no_work(name := collected.process_names.get(pid, "")):
            left_out[name] += count
    return left_out
