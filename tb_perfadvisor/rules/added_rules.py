"""The rules that other packages bring: entry points of the group `perfadvisor_rules`.

To ask `importlib.metadata` takes as long as reading five megabytes of trace, and seldom does any
package bring one. So the files that it would parse are searched for the group's name first.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "perfadvisor_rules"

_METADATA = ("dist-info", "egg-info")


@cache
def added_rules() -> tuple[EntryPoint, ...]:
    """Where each of them is."""
    if not _may_be_any():
        return ()
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


def _may_be_any() -> bool:
    """Whether an installed package names the group, or may lie where this does not look."""
    if any(hasattr(finder, "find_distributions") for finder in _other_finders()):
        return True
    return any(_names_group(folder or os.curdir) for folder in sys.path)


def _other_finders() -> list[object]:
    return [finder for finder in sys.meta_path if finder is not PathFinder]


def _names_group(folder: str) -> bool:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - hundreds of paths, and no more than their names
    except NotADirectoryError:  # an archive, in which packages may lie
        return True
    except OSError:
        return False
    for name in names:
        if name.lower().endswith(_METADATA):
            try:
                with open(f"{folder}/{name}/entry_points.txt", "rb", 0) as file:  # noqa: PTH123
                    if GROUP.encode() in file.read():
                        return True
            except OSError:  # it has none
                continue
    return False
