"""Checks whether an xplane is complete, by its top level."""

from __future__ import annotations

from msgspec import Struct

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.files.access import open_file
from tb_perfadvisor.ingest.files.tree import FileEntry
from tb_perfadvisor.ingest.xspace.decode.file_reader import FileReader
from tb_perfadvisor.ingest.xspace.decode.space import read_space

_MAX_COMPLAINTS = 4


class Integrity(Struct, frozen=True):
    """The problems of an xplane."""

    broken: str = ""
    """Why it cannot be read completely; empty if it can."""
    complaints: tuple[str, ...] = ()
    """The first errors and warnings of its profiler."""


def check_integrity(root: str, file: FileEntry) -> Integrity:
    """Check a local xplane. Skips the content of planes, so the size of the file hardly matters."""
    name = file.path.rsplit("/", 1)[-1]
    try:
        with open_file(root, file) as stream:
            space = read_space(FileReader(stream, where=name), where=name)
    except PerfAdvisorError as error:
        return Integrity(f"{error.message} {error.hint}".rstrip())
    cut = "it is truncated. Copy it again from where it was written."
    complaints = (*space.errors, *space.warnings)[:_MAX_COMPLAINTS]
    return Integrity(cut if space.is_truncated else "", complaints)
