"""XPlanes, as a format."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.files.access import open_file
from tb_perfadvisor.ingest.files.tree import FileEntry
from tb_perfadvisor.ingest.format import (
    Format,
    FoundFile,
    Grouped,
    Reader,
    by_session,
    host_capture,
    reader_of_one_file,
)
from tb_perfadvisor.ingest.trace_names import stem_of
from tb_perfadvisor.ingest.xspace.decode.file_reader import FileReader
from tb_perfadvisor.ingest.xspace.decode.space import read_space

_SUFFIX = ".xplane.pb"


def _group(files: Sequence[FoundFile], earlier: Grouped) -> Grouped:
    """The hosts of a session together, files elsewhere one by one."""
    captures = [
        host_capture(*session, "xplane", entries, [stem_of(entry.path) for entry in entries])
        for session, entries in by_session(files).items()
    ]
    return replace(earlier, captures=(*earlier.captures, *captures))


def _reader() -> Reader:
    from tb_perfadvisor.ingest.xspace.reader import read_xplane

    return reader_of_one_file(read_xplane)


XPLANE = Format(
    name="xplane",
    label="xplane",
    claims=lambda path: path.endswith(_SUFFIX),
    group=_group,
    reader=_reader,
    owns_sessions=True,
    is_read_by_profile_tab=True,
)


_MAX_COMPLAINTS = 4


class Integrity(Struct, frozen=True):
    """The problems of an xplane."""

    broken: str = ""
    """Why it cannot be read completely; empty if it can."""
    complaints: tuple[str, ...] = ()
    """The first errors and warnings of its profiler."""


def check_integrity(root: str, file: FileEntry) -> Integrity:
    """Check a local xplane. Skips the content of planes, so the size of the file hardly matters.

    Args:
        root: What the path of the file is relative to.
        file: The file.
    """
    name = file.path.rsplit("/", 1)[-1]
    try:
        with open_file(root, file) as stream:
            space = read_space(FileReader(stream, where=name), where=name)
    except PerfAdvisorError as error:
        return Integrity(f"{error.message} {error.hint}".rstrip())
    cut = "it is truncated. Copy it again from where it was written."
    complaints = (*space.errors, *space.warnings)[:_MAX_COMPLAINTS]
    return Integrity(cut if space.is_truncated else "", complaints)
