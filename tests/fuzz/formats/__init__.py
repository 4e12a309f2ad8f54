"""The formats that are damaged: one module each, and one line here."""

from __future__ import annotations

from tests.fuzz.format import Format
from tests.fuzz.formats import (
    chrome,
    compile_log,
    event_files,
    facts,
    kineto,
    memory_snapshots,
    nsight,
    programs,
    tf_tools,
    xplane,
)

FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        kineto.DRAWN,
        kineto.RANKS,
        kineto.RECORDED,
        nsight.NSIGHT,
        xplane.XPLANE,
        chrome.CHROME,
        tf_tools.TF_TOOLS,
        event_files.EVENT_FILES,
        compile_log.COMPILE_LOG,
        programs.PROGRAMS,
        memory_snapshots.MEMORY_SNAPSHOTS,
        facts.FACTS,
    )
}
