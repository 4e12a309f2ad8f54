"""What a step of XLA programs occupies at most: all that it reads and writes at all.

If that fits into the device's memory, then so does everything that a step could keep. It needs no
recorded memory. Short steps show it: the memory's bandwidth limits what they can write.
"""

from __future__ import annotations

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import count_of, running_programs
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import stored_bytes


@memoized
def most_occupied_bytes(signals: Signals) -> int | None:
    """Bytes of the arguments and of all results of a step, as if nothing were freed.

    None if no program is known.
    """
    size, steps = 0.0, max(signals.steps.count, 1)
    for running in running_programs(signals):
        program = running.program
        arguments = (program.argument >= 0).nonzero()[0].tolist()
        size += stored_bytes(*map(program.shape_of, arguments))
        for operation in running.operations.values():
            written = stored_bytes(*operation.instruction.results)
            size += written * count_of(signals, operation) / steps
    return round(size) or None
