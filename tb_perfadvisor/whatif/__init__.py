"""What a change would save: the window's dependency graph, re-timed with the change made."""

from tb_perfadvisor.whatif.fixes import Async, Fix, Overlap, Remove, Shorten, shrink
from tb_perfadvisor.whatif.program import Unfit
from tb_perfadvisor.whatif.simulation import Simulation, simulation

__all__ = [
    "Async",
    "Fix",
    "Overlap",
    "Remove",
    "Shorten",
    "Simulation",
    "Unfit",
    "shrink",
    "simulation",
]
