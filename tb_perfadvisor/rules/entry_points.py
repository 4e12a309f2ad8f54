"""The rules that installed packages add, before any of them is imported.

TensorBoard imports this for the cache's keys, so it must not import the rules, which need numpy.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

ENTRY_POINT_GROUP = "perfadvisor_rules"


@cache
def added_rules() -> tuple[EntryPoint, ...]:
    """The entry points of the rules that installed packages add."""
    return tuple(entry_points(group=ENTRY_POINT_GROUP))
