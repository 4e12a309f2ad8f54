"""Reads which devices take part in a collective, in the forms that XLA has for it.

A list names the members of each group: `{{0,1},{2,3}}`. An iota numbers the devices of a mesh, and
the last axes are the group: `[4,2]<=[2,4]T(1,0)`. A mesh names its axes, and then those of the
group: `mesh['data'=2,'model'=4] {'model'}`, or a part of one: `{'model':(2)2}` (source:
xla/hlo/ir/replica_group.cc).
"""

from __future__ import annotations

import re
from math import prod
from typing import Final

_LIST: Final = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_IOTA: Final = re.compile(
    r"replica_groups=\[(\d{1,18}),(\d{1,18})\]<=\[([\d,]{1,200})\](?:T\(([\d,]{1,200})\))?"
)
_MESH: Final = re.compile(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}")
_MESH_AXIS: Final = re.compile(r"'?([^,'=]+)'?=(\d{1,9})")
_GROUPS: Final = re.compile(
    r"replica_groups=(\{\{[\d,{}]*\}\}|\[[\d,]*\]<=\[[\d,]*\](?:T\([\d,]*\))?)"
)
_MOST_CHARACTERS: Final = 80
_GROUP_AXIS: Final = re.compile(r"'?([^,':]+)'?(?::\(\d{1,9}\)(\d{1,9}))?")


def group_axes(text: str) -> tuple[int, ...]:
    """The sizes of the mesh axes that a group of a collective spans; empty if unknown.

    Args:
        text: The HLO text of the collective. A list of members counts as one axis.
    """
    if "replica_groups=" not in text:
        return ()
    if match := _MESH.search(text):
        return _axes_by_name(match[1], match[2])
    if match := _IOTA.search(text):
        return _last_axes(int(match[2]), match[3], match[4])
    match = _LIST.search(text)
    return (len(match[1].split(",")),) if match and match[1] else ()


def group_names(text: str) -> str:
    """The mesh axes that a group of a collective spans, such as `data,fsdp`; empty if unnamed.

    Args:
        text: The HLO text of the collective.
    """
    match = _MESH.search(text) if "replica_groups=mesh" in text else None
    if match is None:
        return ""
    return ",".join(name.strip() for name, _ in _GROUP_AXIS.findall(match[2]))


def group_members(text: str) -> str:
    """The groups of a collective as the text has them, shortened; empty if they are unknown.

    Args:
        text: The HLO text of the collective.
    """
    match = _GROUPS.search(text) if "replica_groups=" in text else None
    if match is None:
        return ""
    whole = match[1]
    return whole if len(whole) <= _MOST_CHARACTERS else f"{whole[: _MOST_CHARACTERS - 1]}…"


def _axes_by_name(mesh: str, group: str) -> tuple[int, ...]:
    size_of = {name: int(size) for name, size in _MESH_AXIS.findall(mesh)}
    sizes = [
        int(part) if part else size_of.get(name, 0) for name, part in _GROUP_AXIS.findall(group)
    ]
    return tuple(sizes) if all(sizes) else ()


def _last_axes(size: int, dims: str, order: str | None) -> tuple[int, ...]:
    """The last axes of a mesh whose product is the group's size; else one axis of that size."""
    sizes = [int(part) for part in dims.split(",") if part]
    places = [int(part) for part in (order or "").split(",") if part] or range(len(sizes))
    axes: list[int] = []
    if sorted(places) == list(range(len(sizes))):
        for place in reversed(places):
            if prod(axes) < size:
                axes.insert(0, sizes[place])
    return tuple(axes) if axes and prod(axes) == size else (size,)
