"""Opens what lies in a directory, and nothing to which links lead from there.

A shared server shows what lies in its log directory to everyone who reads it, and others may write
there. Where the system allows, each directory on the way is opened by itself and without following
links, so that nothing can be exchanged between the check and the opening. A hard link or a mount
looks like any file.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.files.tree import short_path
from tb_perfadvisor.plain_text import printable_name

LEADS_OUT: Final = "this is a link out of the directory that may be read."

_OPENS_STEPWISE: Final = (
    hasattr(os, "O_NOFOLLOW") and os.open in os.supports_dir_fd and os.scandir in os.supports_fd
)


class LeadsOutError(UnreadableProfileError):
    """A path that leads out of the directory that it must lie in."""

    def __init__(self, path: str) -> None:
        super().__init__(LEADS_OUT, where=printable_name(path))


def leads_out(path: str, boundary: str) -> bool:
    """Whether a path leads out of a directory, whether it exists or not.

    Args:
        path: The path.
        boundary: The directory, without links in its path.
    """
    return not _is_inside(os.path.realpath(path), boundary)


def resolve_inside(path: str, boundary: str) -> str:
    """The path without links, of what must lie in a directory.

    Args:
        path: The path.
        boundary: The directory, without links in its path.

    Raises:
        LeadsOutError: If it does not lie there.
    """
    if "\0" in path:
        raise LeadsOutError(path)
    place = os.path.realpath(path)
    if not _is_inside(place, boundary):
        raise LeadsOutError(path)
    return place


def _is_inside(place: str, boundary: str) -> bool:
    return Path(short_path(place)).is_relative_to(short_path(boundary))


def opener_of_files(boundary: str = "") -> Callable[[str, int], int]:
    """An opener for Python's `open` that opens only files, and never waits.

    Args:
        boundary: The directory that they must lie in, without links in its path. Empty if links may
            lead anywhere.

    Returns:
        A function that raises `LeadsOutError` for a path that leads out, and `OSError` for one that
        cannot be opened or is no file.
    """

    def open_file(path: str, flags: int) -> int:
        # Without waiting for who writes to a pipe that took the place of the file.
        flags |= getattr(os, "O_NONBLOCK", 0)
        handle = _open(path, boundary, flags) if boundary else os.open(path, flags)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "this is not a file", path)
        return handle

    return open_file


@contextmanager
def scan_inside(path: str, boundary: str) -> Iterator[Iterator[os.DirEntry[str]]]:
    """List a directory that must lie in another one, as `os.scandir` does.

    Entries may know only their names, not their paths, and none of them once the context is left.

    Args:
        path: The directory.
        boundary: The directory that it must lie in, without links in its path.

    Raises:
        LeadsOutError: If it does not lie there.
        OSError: If it cannot be listed.
    """
    if not _OPENS_STEPWISE:
        with os.scandir(resolve_inside(path, boundary)) as entries:
            resolve_inside(path, boundary)
            yield entries
        return
    handle = _open(path, boundary, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.scandir(handle) as entries:
            yield entries
    finally:
        os.close(handle)


def _open(path: str, boundary: str, flags: int) -> int:
    place = resolve_inside(path, boundary)
    if _OPENS_STEPWISE:
        return _open_stepwise(place, boundary, flags)
    handle = os.open(place, flags)
    try:
        # What was opened must be what lies there now.
        if not os.path.samestat(os.fstat(handle), Path(resolve_inside(path, boundary)).stat()):
            raise LeadsOutError(path)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _open_stepwise(place: str, boundary: str, flags: int) -> int:
    """Open what lies in a directory, following no link at all."""
    *above, name = Path(place).relative_to(boundary).parts or (".",)
    # Those who may not list a directory may still pass through it.
    passing = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW
    directory = os.open(boundary, passing)
    try:
        for part in above:
            below = os.open(part, passing, dir_fd=directory)
            os.close(directory)
            directory = below
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=directory)
    finally:
        os.close(directory)
