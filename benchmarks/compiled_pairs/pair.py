"""A pair of programs for a TPU, and its label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["cause", "trap", "healthy"]


@dataclass(frozen=True, slots=True)
class CompiledPair:
    """A program with one performance problem, and the same program without it."""

    name: str
    program: str
    """`module.function` beside this file, which builds it."""
    kind: Kind
    cause: str
    """What makes it slow; what is changed in the fixed one."""
    first: tuple[str, ...] = ()
    """Rules of which one should rank first, the most specific one first."""
    samples: tuple[int, int] = (1, 1)
    """Samples per step, slow and fixed, where the fix processes more of them."""
    still_true: tuple[str, ...] = ()
    """Rules that are right about the fixed one, too: what its change leaves to do. What four chips
    reduce or gather for a small layer stays exposed."""
    chips: int = 1
    """Chips that execute it together."""
    sizes: tuple[int, ...] = ()
    """What the program is built with, besides its role."""
    generations: tuple[str, ...] = ()
    """What it is compiled for, if not for each generation."""
    has_shown_a_bug: bool = False
    """A test program on which something was fixed."""
