"""XSpace files, `HOST.xplane.pb`: TensorFlow, JAX, PyTorch/XLA."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

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
