"""Whether an xplane is whole, from a glance at its top."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.xplane.decode.file_reader import FileReader
from tb_perfadvisor.ingest.xplane.decode.space import read_space

_COMPLAINTS = 4


class Integrity(Struct, frozen=True):
    """What is wrong with an xplane."""

    broken: str = ""
    """Why it cannot be read to its end; empty when it can."""
    complaints: tuple[str, ...] = ()
    """What its profiler complained of while it recorded; the first few."""


def check_integrity(file: Path) -> Integrity:
    """Look at a local xplane. Its planes are stepped over, so that its size matters little."""
    try:
        with file.open("rb") as stream:
            space = read_space(FileReader(stream, where=file.name), where=file.name)
    except OSError as error:
        return Integrity(f"it cannot be opened ({error.strerror}).")
    except PerfAdvisorError as error:
        return Integrity(f"{error.message} {error.hint}".rstrip())
    cut = "it stops in the middle. Copy it again from where it was written."
    complaints = (*space.errors, *space.warnings)[:_COMPLAINTS]
    return Integrity(cut if space.is_truncated else "", complaints)
