"""Rules, by category and idea: each reads signals and yields findings.

TensorBoard imports this module for the cache's keys, so it names the rules that installed packages
add, but imports none, and no numpy.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "perfadvisor_rules"


@cache
def added_rules() -> tuple[EntryPoint, ...]:
    """The entry points of the rules that installed packages add."""
    if not any(map(_may_add_rules, sys.path)):
        return ()
    from importlib.metadata import entry_points  # takes a tenth of the time of a small analysis

    return tuple(entry_points(group=ENTRY_POINT_GROUP))


def _may_add_rules(place: str) -> bool:
    """Whether a package that is installed in a folder, or in an archive, may add rules."""
    if Path(place).is_file():
        return True
    group = ENTRY_POINT_GROUP.encode()
    with suppress(OSError):
        # `NAME.dist-info` or `NAME.egg-info`, and `EGG-INFO` in the folder of an egg.
        found = Path(place).glob("*-[iI][nN][fF][oO]/entry_points.txt")
        return any(group in path.read_bytes() for path in found)
    return True
