"""What the ledger says of a machine."""

from __future__ import annotations

import os
import platform

from msgspec import Struct

from tb_perfadvisor.machine.this_machine import memory_bytes, open_cores, processor_name


class Machine(Struct, frozen=True):
    """What the ledger says of a machine: enough to tell whether two are alike, no name."""

    system: str
    processor: str
    cores: int
    memory_gib: float | None
    accelerator: str
    """As the program's framework names it; empty for none."""


def this_machine(accelerator: str) -> Machine:
    """The machine that this process runs on."""
    size_bytes = memory_bytes()
    return Machine(
        f"{platform.system()} {platform.machine()}",
        processor_name(),
        len(open_cores()) or os.cpu_count() or 1,
        None if size_bytes is None else round(size_bytes / (1 << 30), 1),
        accelerator,
    )
