"""Whether an xplane is whole, from a glance at its top."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.xplane.parts import Parts
from tb_perfadvisor.ingest.xplane.space import read_space

_COMPLAINTS = 4


class Checkup(Struct, frozen=True):
    """What is wrong with an xplane."""

    broken: str = ""
    """Why it cannot be read to its end; empty when it can."""
    complaints: tuple[str, ...] = ()
    """What its profiler complained of while it recorded; the first few."""


def check_up(file: Path) -> Checkup:
    """Look at a local xplane. Its planes are stepped over, so that its size matters little."""
    try:
        with file.open("rb") as stream:
            space = read_space(Parts(stream, where=file.name), where=file.name)
    except OSError as error:
        return Checkup(f"it cannot be opened ({error.strerror}).")
    except PerfAdvisorError as error:
        return Checkup(f"{error.message} {error.hint}".rstrip())
    cut = "it stops in the middle. Copy it again from where it was written."
    complaints = (*space.errors, *space.warnings)[:_COMPLAINTS]
    return Checkup(cut if space.is_truncated else "", complaints)
