"""What looks over the whole run tell that a recording of a few steps cannot."""

from __future__ import annotations

from tb_perfadvisor.machine.facts import Line, Lines

FEWEST_SPELLS = 4
"""A function is compiled for a batch, for the last batch of an epoch, and for evaluation."""


def recompiled(lines: Lines | None, fewest_spells: float = FEWEST_SPELLS) -> tuple[Line, ...]:
    """The lines that were seen to wait for compilations in several spells, apart from each other.

    Args:
        lines: Those that were seen.
        fewest_spells: In fewer, what is compiled may be needed.
    """
    return tuple(
        line
        for line in (() if lines is None else lines.lines)
        if line.activity == "compiling" and (line.spells or 0) >= fewest_spells
    )
