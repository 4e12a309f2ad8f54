"""Facts computed from a trace, each once; rules read them and nothing else."""

from tb_perfadvisor.signals.core.attribution import Attribution, Cause
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.recording.needs import Missing, Need
from tb_perfadvisor.signals.signals import HOST_CAUSED, Options, Signals, reference_worker

__all__ = [
    "HOST_CAUSED",
    "Attribution",
    "Cause",
    "Missing",
    "Need",
    "Options",
    "Signals",
    "memoized",
    "reference_worker",
]
