"""What a change would save: a replay of the dependency graph with the change made."""

from tb_perfadvisor.whatif.program import NotReplayable
from tb_perfadvisor.whatif.replay import (
    Async,
    Fix,
    OtherRanks,
    Overlap,
    Remove,
    Shorten,
    Simulation,
    host_decides,
    most_saved_ns,
    other_ranks,
    shrink,
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
