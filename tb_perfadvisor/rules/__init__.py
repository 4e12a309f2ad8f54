"""Rules, by category and idea: each reads signals and yields findings.

TensorBoard imports this module for the cache's keys, so it names the rules that installed packages
add, but imports none, and no numpy.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

ENTRY_POINT_GROUP = "perfadvisor_rules"


@cache
def added_rules() -> tuple[EntryPoint, ...]:
    """The entry points of the rules that installed packages add."""
    return tuple(entry_points(group=ENTRY_POINT_GROUP))
