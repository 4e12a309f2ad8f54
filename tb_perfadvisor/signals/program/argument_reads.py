"""The time in which a program reads its arguments: no step can be shorter."""

from __future__ import annotations

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.program.graph import Running, count_of, running_programs
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.signals.tpu.memory_time import memory_bandwidth
from tb_perfadvisor.trace.program import Program
from tb_perfadvisor.units import NS_PER_S

_PARTS = ("slice", "dynamic-slice", "gather", "dynamic-update-slice", "scatter")
"""These touch a part of an array."""


@memoized
def argument_reads_ns(signals: Signals, *, at_peak: bool) -> int:
    """What the memory takes for all arguments that are read whole; 0 if its bandwidth is unknown.

    Args:
        signals: The worker's facts.
        at_peak: Whether by the data sheet, or at what large transfers reach.
    """
    bytes_per_s = memory_bandwidth(signals, at_peak=at_peak)
    if bytes_per_s is None:
        return 0
    programs = running_programs(signals)
    size = sum(read_bytes(running.program) * runs_of(signals, running) for running in programs)
    return round(size / bytes_per_s * NS_PER_S)


def runs_of(signals: Signals, running: Running) -> int:
    """How often a program runs in the used window, by an operation outside of its loops."""
    program = running.program
    once = (program.runs == 1).nonzero()[0].tolist()
    return max((count_of(signals, operation) for operation in running.of(once)), default=0)


def read_bytes(program: Program) -> int:
    """Bytes of the arguments that a program reads whole."""
    return sum(
        program.shape_of(row).padded_bytes
        for row in (program.argument >= 0).nonzero()[0].tolist()
        if any(program.name_of(user) not in _PARTS for user in program.users(row))
    )
