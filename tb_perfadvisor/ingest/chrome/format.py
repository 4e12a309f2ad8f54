"""Exports of TensorFlow and JAX in Chrome's trace format: `HOST.trace.json.gz`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tb_perfadvisor.ingest.captures import directory_of
from tb_perfadvisor.ingest.chrome.processes import has_known_process
from tb_perfadvisor.ingest.format import (
    Format,
    FoundFile,
    Grouped,
    Reader,
    Sniffed,
    by_session,
    host_capture,
    reader_of_one_file,
)
from tb_perfadvisor.ingest.json_trace.recognition import has_kineto_marks
from tb_perfadvisor.ingest.trace_names import stem_of
from tb_perfadvisor.patterns import regex

_TRACE = regex(r"trace\.json(?:\.gz)?$")
_OF_HOST = regex(r"(?:^|/)[^/]+\.trace\.json(?:\.gz)?$")
# The same events again, which JAX writes for a link to Perfetto.
_PERFETTO = regex(r"(?:^|/)perfetto_trace\.json(?:\.gz)?$")
# Names of events and arguments by TensorFlow and JAX, for files that name their processes late.
_EVENT_NAMES = regex(rb'"(?:\$[\w<>.]+:\d+ |ThreadpoolListener::)|"hlo_module"\s*:')


def _sniff(head: bytes, is_claimed: bool) -> Sniffed | None:
    if has_kineto_marks(head):
        return None
    has_event_names = is_claimed and _EVENT_NAMES.search(head) is not None
    return Sniffed("chrome") if has_known_process(head) or has_event_names else None


def _group(files: Sequence[FoundFile], earlier: Grouped) -> Grouped:
    """The hosts of a session together, files elsewhere one by one.

    Exports beside an xplane are copies of it that lack much; so are those for Perfetto beside
    exports of hosts.
    """
    with_events = earlier.directories
    with_hosts = {
        directory_of(file.entry.path) for file in files if not _PERFETTO.search(file.entry.path)
    }
    originals = []
    for file in files:
        directory = directory_of(file.entry.path)
        is_copy = _PERFETTO.search(file.entry.path) and directory in with_hosts
        if directory not in with_events and not is_copy:
            originals.append(file)
    captures = [
        host_capture(*session, "chrome", entries, [_host(entry.path) for entry in entries])
        for session, entries in by_session(originals).items()
    ]
    return replace(earlier, captures=(*earlier.captures, *captures))


def _host(path: str) -> str:
    return stem_of(path) if _OF_HOST.search(path) else ""


def _reader() -> Reader:
    from tb_perfadvisor.ingest.chrome.reader import read_chrome

    return reader_of_one_file(read_chrome)


CHROME = Format(
    name="chrome",
    label="exported profile",
    claims=lambda path: _TRACE.search(path) is not None,
    sniff=_sniff,
    group=_group,
    reader=_reader,
    is_export=True,
)
