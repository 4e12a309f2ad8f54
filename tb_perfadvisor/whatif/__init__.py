"""What a change would save: a replay of the dependency graph with the change made."""

from tb_perfadvisor.whatif.other_ranks import OtherRanks, most_saved_ns, other_ranks
from tb_perfadvisor.whatif.program import NotReplayable
from tb_perfadvisor.whatif.replay import Async, Fix, Overlap, Remove, Shorten, shrink
from tb_perfadvisor.whatif.simulation import (
    Simulation,
    host_decides,
    simulation,
    simulation_for,
)

__all__ = [
    "Async",
    "Fix",
    "NotReplayable",
    "OtherRanks",
    "Overlap",
    "Remove",
    "Shorten",
    "Simulation",
    "host_decides",
    "most_saved_ns",
    "other_ranks",
    "shrink",
    "simulation",
    "simulation_for",
]
