"""What runs of a program are asked for, and what they show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from tb_perfadvisor.machine.facts import Load
from tb_perfadvisor.trace.tables import Float64

BLOCKS: Final = 12
BLOCKS_IN_TURNS: Final = 24
WINDOW_S: Final = 2.5
"""How long the blocks of a run are together, about."""


class Plan(Struct, frozen=True):
    """Which steps to measure; the first run chooses what is None."""

    begin: int | None = None
    block_steps: int | None = None
    blocks: int = BLOCKS
    checks: tuple[str, ...] = ()
    """Patterns of the names of tensors to compare."""
    in_turns: bool = False
    """Whether the program stops itself at the end of each block."""


class Counters(Struct, frozen=True, array_like=True):
    """What a program has done up to the end of a block, at a time of its clock."""

    at_ns: int
    optimizer_steps: int
    backward_passes: int
    samples: int
    input_elements: int


class Run(Struct, frozen=True):
    """What one run showed."""

    steps: int
    begin: int | None
    """Steps before the window; None if it never began."""
    block_steps: int | None
    counters: tuple[Counters, ...]
    """At the begin of the window, and after each block."""
    start_up_s: float | None
    """From the start of the program to the begin of the window."""
    whole_s: float
    load: Load | None
    """How the cores were used during the window; None if it is unknown."""
    series: Mapping[str, tuple[float | None, ...]]
    """The first values of what the program computed or logged, by name."""
    tensors: Mapping[str, Float64]
    is_complete: bool
    problem: str
    """Why it says nothing; empty if it does."""
    versions: Mapping[str, str]
    accelerator: str
    memory_bytes: int | None
    """What all processes of the program needed at most; None if it is unknown."""
    block_loads: tuple[float, ...] = ()
    """The share of the cores that others used in each block; empty if it is unknown."""

    @property
    def block_ns(self) -> Float64:
        """The time of each block."""
        return np.diff(np.array([each.at_ns for each in self.counters], np.float64))

    @property
    def step_ns(self) -> float | None:
        """The median time of a step, by blocks; None without blocks."""
        blocks = self.block_ns
        return float(np.median(blocks)) / (self.block_steps or 1) if len(blocks) else None
