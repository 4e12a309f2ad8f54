"""Marks savings whose range is too wide for a measurement or a model.

Of a saving of 20 ms between 0 and 144 ms, the profile tells the direction and the limit, but not
the amount: something that decides it is not recorded, such as whether the program needs a value
that it copies. Cutting the range would leave the truth outside. So it stays, as a heuristic.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tb_perfadvisor.engine.savings.simulated import Found
from tb_perfadvisor.rules.finding import Saving

WIDEST = 4
"""The width of a range in terms of the expected saving, above which it is a heuristic."""


def mark_wide_ranges(found: Sequence[Found]) -> list[Found]:
    """Call the basis of each saving a heuristic if its range is too wide for anything else."""
    return [
        (rule, replace(finding, saving=replace(finding.saving, basis="heuristic")))
        if finding.saving is not None and is_wide(finding.saving)
        else (rule, finding)
        for rule, finding in found
    ]


def is_wide(saving: Saving) -> bool:
    """Whether a range is wider than four times the expected saving."""
    return saving.high_ns - saving.low_ns > WIDEST * saving.expected_ns
