"""What reading has to say about an export itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from tb_perfadvisor.ingest.chrome.columns import Collected
from tb_perfadvisor.ingest.chrome.processes import Place, is_no_work
from tb_perfadvisor.ingest.kineto.decode.document import Document
from tb_perfadvisor.ingest.kineto.interpret.notes import damage_notes
from tb_perfadvisor.trace import Device, Note

_MOST_NAMED: Final = 3


def notes_of(
    document: Document[Any],
    collected: Collected,
    places: Mapping[Any, Place],
    devices: tuple[Device, ...],
) -> tuple[Note, ...]:
    """All notes, the gravest first."""
    notes = damage_notes(document, document.malformed + collected.malformed)
    if collected.is_capped:
        notes.append(
            Note(
                "event-limit",
                "warning",
                f"The export holds {len(collected.start_us):,} events, the most that the profiler "
                "writes: what came later is missing, and so are the steps that had not ended.",
                "Read the .xplane.pb of the same session, which has all of them, or record fewer "
                "steps.",
            )
        )
    lacks = ["memory allocations", "the programs that XLA compiled"]
    if devices:
        lacks.append("what the device is")
    if any(device.kind == "tpu" for device in devices):
        lacks.append("what launched its programs")
    notes.append(
        Note(
            "chrome-export",
            "info",
            "This is the Chrome export of a profile, which leaves out "
            f"{', '.join(lacks[:-1])} and {lacks[-1]}.",
            "JAX, and TensorFlow from 2.4 on, write all of it as .xplane.pb into the same "
            "directory; where that lies beside the export, it is read instead.",
        )
    )
    left_out = _left_out(collected, places)
    if left_out:
        count = sum(left_out.values())
        events = "1 event was" if count == 1 else f"{count} events were"
        shown = ", ".join(sorted({name for name in left_out if name})[:_MOST_NAMED])
        notes.append(
            Note(
                "unknown-events",
                "info",
                f"{events} left out, of processes that are no host and no device"
                f"{f': {shown[:200]}' if shown else ''}.",
            )
        )
    return tuple(notes)


def _left_out(collected: Collected, places: Mapping[Any, Place]) -> Counter[str]:
    """How many events belong nowhere, by the name of their process."""
    counts = np.bincount(collected.thread, minlength=len(collected.threads)).tolist()
    found: Counter[str] = Counter()
    for (pid, _), count in zip(collected.threads, counts, strict=True):
        if pid not in places and not is_no_work(name := collected.process_names.get(pid, "")):
            found[name] += count
    return found
