"""What a dimension is, and names that several formats use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Write = Callable[[int, Path], None]
"""Writes an input with some number of items into a directory; its docstring says of what."""

SESSION = Path("plugins/profile/2026_01_01_00_00_00")
KERNEL = "ampere_sgemm_128x64_nn"
STEPS = 5


@dataclass(frozen=True, slots=True)
class Dimension:
    """What there is much of."""

    write: Write
    largest: int
    """The most items that are measured."""
    program: str = "analyze_input.py"
    """What reads the input, in `programs/`."""
