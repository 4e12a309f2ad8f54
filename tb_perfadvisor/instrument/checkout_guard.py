"""Keeps a measured program from writing into the user's checkout, of which it runs a copy."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATHS_OF = {
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.rmdir": (0,),
    "os.mkdir": (0,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "os.link": (0, 1),
    "os.symlink": (1,),
    "shutil.rmtree": (0,),
}
"""Which arguments of an audit event are paths that change. Through a hard link, a file may change
without a word; programs that make one copy the file where the system refuses to."""
_FOLLOWS = frozenset({"open", "os.truncate", "os.chmod"})
"""These change what a link leads to; the others change the link."""
_INSTALLED = ("site-packages", "dist-packages")
_OURS = os.path.realpath(Path(__file__).parents[1])
"""This package measures, also where it is installed from the checkout that it measures."""


def guard(checkout: str) -> None:
    """Refuse, for the rest of the process, what Python is asked to change below a directory.

    Code that is not Python's own, such as PyTorch's writer of checkpoints, is not seen. The command
    links no files that such code usually writes, and looks at what it linked after each run.
    """
    root = os.path.realpath(checkout)

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            is_written = any(letter in mode for letter in "wax+") if mode else flags & _WRITES
            changed: tuple[Any, ...] = (path,) if is_written else ()
        elif event in _PATHS_OF:
            changed = tuple(arguments[place] for place in _PATHS_OF[event])
        else:
            return
        for path in changed:
            if not isinstance(path, str | bytes):
                continue
            name = os.fsdecode(path)
            place = os.path.realpath(name) if event in _FOLLOWS else _of_entry(name)
            if _lies_in(place, root):
                raise PermissionError(
                    f"{name} lies in the checkout, which perfadvisor try keeps as it "
                    "is. Write to a path relative to the working directory."
                )

    sys.addaudithook(refuse)


def use_copy(checkout: str, copy: str) -> None:
    """Import from the copy what `pip install -e` made importable from the checkout."""
    for place, entry in enumerate(sys.path):
        if entry and _is_below(entry, os.path.realpath(checkout)):
            inside = os.path.relpath(os.path.realpath(entry), os.path.realpath(checkout))
            if not _is_installed(entry) and Path(copy, inside).is_dir():
                sys.path[place] = str(Path(copy, inside))


def modules_of_checkout(checkout: str) -> list[str]:
    """The modules of the program that were imported from the checkout instead of the copy."""
    root = os.path.realpath(checkout)
    files = ((name, getattr(module, "__file__", None)) for name, module in [*sys.modules.items()])
    return sorted(
        name
        for name, file in files
        if isinstance(file, str) and not _is_installed(file) and _is_below(file, root)
    )


def _of_entry(path: str) -> str:
    """A path that leads to a link, not to where the link leads."""
    whole = Path(os.path.abspath(path))  # noqa: PTH100 - `absolute` keeps `..`
    return str(Path(os.path.realpath(whole.parent), whole.name))


def _is_installed(path: str) -> bool:
    """Whether a path belongs to the environment, or to us, which may lie in the checkout."""
    parts = Path(path).parts
    return any(name in parts for name in _INSTALLED) or any(
        _is_below(path, root) for root in (os.path.realpath(sys.prefix), _OURS)
    )


def _is_below(path: str, root: str) -> bool:
    return _lies_in(os.path.realpath(path), root)


def _lies_in(resolved: str, root: str) -> bool:
    return resolved == root or resolved.startswith(root + os.sep)
