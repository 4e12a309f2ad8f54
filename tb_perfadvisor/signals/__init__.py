"""Facts computed from a trace, each once; rules read them and nothing else."""

from tb_perfadvisor.signals.attribution import Attribution, Cause
from tb_perfadvisor.signals.derived import derived
from tb_perfadvisor.signals.needs import Missing, Need
from tb_perfadvisor.signals.signals import HOST_CAUSED, Options, Signals, reference_worker

__all__ = [
    "HOST_CAUSED",
    "Attribution",
    "Cause",
    "Missing",
    "Need",
    "Options",
    "Signals",
    "derived",
    "reference_worker",
]
