"""Reads the Chrome export of a TensorFlow or JAX profile.

JAX writes `HOST.trace.json.gz` next to each xplane. TensorFlow's profiler wrote it instead of an
xplane in 2019 and 2020. It is an incomplete copy of the xplane, so this reader converts it
back into one, and the xplane reader interprets it.
"""

from __future__ import annotations

import io
from typing import BinaryIO

import numpy as np
from msgspec.structs import replace

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.chrome.columns import ExportCollector, ExportColumns
from tb_perfadvisor.ingest.chrome.notes import notes_of
from tb_perfadvisor.ingest.chrome.processes import collective_rows_of
from tb_perfadvisor.ingest.chrome.schema import ChromeEvent
from tb_perfadvisor.ingest.chrome.space import encode_space
from tb_perfadvisor.ingest.files.compression import Inflated
from tb_perfadvisor.ingest.json_trace.document import Text, open_document
from tb_perfadvisor.ingest.json_trace.recognition import foreign_error
from tb_perfadvisor.ingest.xspace.reader import read_xplane
from tb_perfadvisor.trace import Source, Trace

# The name, the times and the statistics of an event.
_ITEMS_OF_EVENT = 2


def read_chrome(stream: BinaryIO, source: Source) -> Trace:
    """Read the export of one host.

    Args:
        stream: The file, gzipped or not (by content, not by name).
        source: Path, run, session and host; the other fields are filled in here.

    Raises:
        UnreadableProfileError: If the file is not such an export.
    """
    text = Text(Inflated(stream, source.path))
    document = open_document(text, ChromeEvent, source.path)
    if document is None:
        raise foreign_error(text.head, source.path)
    collector = ExportCollector()
    for events in document.chunks():
        collector.add(events)
        text.inflated.budget.keep(_ITEMS_OF_EVENT * len(events))
    collected = collector.finish()
    places = collective_rows_of(collected.process_names)
    if not places:
        raise UnreadableProfileError(
            "no process of this trace is a host or a device of TensorFlow's or JAX's profilers.",
            where=source.path,
            hint="Point Perf Advisor at the .xplane.pb of the same session.",
        )
    kept = _without_cut_steps(collected) if collected.is_capped else collected
    trace = read_xplane(io.BytesIO(encode_space(kept, places)), source)
    filled = replace(trace.source, format="chrome")
    if filled.framework == "unknown" and any(place.is_old for place in places.values()):
        filled = replace(filled, framework="tensorflow")
    notes = notes_of(document, collected, places, trace.devices)
    return replace(trace, source=filled, notes=(*notes, *trace.notes))


def _without_cut_steps(collected: ExportColumns) -> ExportColumns:
    """Remove the markers of steps that end after the last event.

    The remaining events of such a step are missing, and would look like idle time.
    """
    is_step = np.zeros(collected.start_us.size, dtype=np.bool_)
    if "step_num" in collected.stats:
        is_step[collected.stats["step_num"].row] = True
    is_line = [collected.thread_names.get(thread) == "Steps" for thread in collected.threads]
    is_step |= np.array(is_line, dtype=np.bool_)[collected.thread]
    end_us = collected.start_us + collected.duration_us
    return collected.select(~is_step | (end_us <= collected.start_us.max()))
