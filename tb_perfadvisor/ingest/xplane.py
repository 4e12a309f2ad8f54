"""XSpace files, `HOST.xplane.pb`: TensorFlow, JAX, PyTorch/XLA."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from tb_perfadvisor.ingest.format import (
    Format,
    FoundFile,
    Grouped,
    Reader,
    Slicing,
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


def _reader(slicing: Slicing | None = None) -> Reader:
    from tb_perfadvisor.ingest.xspace.reader import read_xplane

    threads = slicing.processes + 1 if slicing else 0
    return reader_of_one_file(partial(read_xplane, threads=threads))


XPLANE = Format(
    name="xplane",
    label="xplane",
    claims=lambda path: path.endswith(_SUFFIX),
    group=_group,
    reader=_reader,
    slicing_reader=_reader,
    owns_sessions=True,
    is_read_by_profile_tab=True,
)
