"""Facts computed from a trace, each once; rules read them and nothing else."""

from tb_perfadvisor.signals.core.attribution import Attribution
from tb_perfadvisor.signals.core.causes import HOST_CAUSED, Cause
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.ranks.ranks import collectives_of, ranks_of, reference_worker
from tb_perfadvisor.signals.recording.availability import why_missing, why_not_looked
from tb_perfadvisor.signals.recording.needs import RECORDABLE, Missing, Need
from tb_perfadvisor.signals.signals import Options, Signals

__all__ = [
    "HOST_CAUSED",
    "RECORDABLE",
    "Attribution",
    "Cause",
    "Missing",
    "Need",
    "Options",
    "Signals",
    "collectives_of",
    "memoized",
    "ranks_of",
    "reference_worker",
    "why_missing",
    "why_not_looked",
]
