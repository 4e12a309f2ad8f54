"""Keeps opens inside the log directory.

A shared server shows what lies in its log directory to everyone who reads it, and others may write
there. Where the system allows, each directory on the way is opened by itself and without following
links, so that nothing can be exchanged between the check and the opening. A hard link or a mount
looks like any file.

A cache directory of limited size that several processes may share.

An entry is a directory of files, named by its key. It is written to a staging directory and renamed
into place, so that readers never see a partial entry.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.files.tree import short_path
from tb_perfadvisor.plain_text import printable_name, shell_path

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

    The boundary has no links in its path.
    """
    return not _is_inside(os.path.realpath(path), boundary)


def resolve_inside(path: str, boundary: str) -> str:
    """The path without links, of what must lie in a directory.

    The boundary has no links in its path.

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

    The files must lie in the boundary, a directory without links in its path. It is empty if links
    may lead anywhere. The opener raises `LeadsOutError` for a path that leads out, and `OSError`
    for one that cannot be opened or is no file.
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

    The boundary has no links in its path.

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


DIRECTORY_VARIABLE = "PERFADVISOR_CACHE_DIR"

# No write takes a day: processes that died left older directories behind. A time that lies more
# than a day ahead comes from a clock that was wrong.
_STALE_S = 24 * 3600
# Eviction looks at all entries, so a process that writes many small ones does not evict after each.
_UNCHECKED_SHARE = 1 / 64
_WRITABLE = "others may write to it"


def default_directory() -> Path:
    """The cache directory: set by the environment, or the user's default.

    Raises:
        OSError: If it would be in the home directory of a user who has none.
    """
    directory = os.environ.get(DIRECTORY_VARIABLE)
    try:
        if not directory:
            import platformdirs

            directory = platformdirs.user_cache_dir("tb_perfadvisor", appauthor=False)
        return Path(directory).expanduser()
    except RuntimeError as error:
        name = directory or None
        raise FileNotFoundError(errno.ENOENT, "there is no such home directory", name) from error


def private_directory() -> Path:
    """The cache directory, which is created if it is missing.

    Raises:
        NotPrivateError: If others could write to it.
        OSError: If it cannot be created.
    """
    directory = default_directory()
    make_private(directory)
    return directory


class NotPrivateError(PermissionError):
    """A directory that others can write to: they could put files into it that look like ours."""

    def __init__(self, reason: str, directory: Path) -> None:
        super().__init__(errno.EPERM, reason, str(directory))
        self.hint = f"Set {DIRECTORY_VARIABLE} to a directory of your own."
        if reason == _WRITABLE:
            self.hint = f"Run `chmod go-w {shell_path(str(directory))}`."

    @property
    def note(self) -> str:
        """What follows from it, and what to do, for the user."""
        reason = f"{self.filename} is not used, because {self.strerror}"
        return f"nothing is kept for later: {reason}. {self.hint}"


def make_private(directory: Path) -> None:
    """Create a directory that only this user can write to, and those above it, unless they exist.

    Raises:
        NotPrivateError: If others can write to it, or it is another user's.
        OSError: If it cannot be created.
    """
    if not directory.parent.is_dir():
        make_private(directory.parent)  # `parents=True` would ignore the mode
    directory.mkdir(mode=0o700, exist_ok=True)
    if not hasattr(os, "geteuid"):
        return  # on Windows, the directories of users are private
    status = directory.stat()
    if not _is_own(status):
        raise NotPrivateError("it belongs to another user", directory)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NotPrivateError(_WRITABLE, directory)


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid()


class BoundedDirectory:
    """A cache in one directory that evicts the least recently used entries."""

    def __init__(self, directory: Path, *, max_bytes: int) -> None:
        """Create the directory at once, so that an unwritable one fails early.

        Raises:
            NotPrivateError: If others can write to it, or it is another user's.
            OSError: If it cannot be created or written to.
        """
        self.max_bytes = max_bytes
        self.directory = directory
        self._entries = directory / "entries"
        self._staging = directory / "staging"
        for path in (directory, self._entries, self._staging):
            # Entries contain names of the user's files and functions.
            make_private(path)
        # The directory may be over its limit already.
        self._unchecked_bytes = float("inf")
        probe = self.stage()
        probe.rmdir()

    def path(self, key: str) -> Path:
        """The path of a key's entry, whether it exists or not."""
        return self._entries / key

    def is_intact(self, key: str) -> bool:
        """Whether the entry exists and looks complete."""
        return self.path(key).is_dir()

    def stage(self) -> Path:
        """Create an empty directory to write an entry to before `commit`."""
        return Path(tempfile.mkdtemp(dir=self._staging))

    def commit(self, staged: Path, key: str) -> None:
        """Move a staged directory into place, and evict old entries.

        A process may exceed the limit by a sixty-fourth before it evicts again.
        """
        self._unchecked_bytes += _size_bytes(staged)
        self.place(staged, key)
        if self._unchecked_bytes > _UNCHECKED_SHARE * self.max_bytes:
            self.evict(keep=key)
            self._unchecked_bytes = 0

    def store(self, key: str, name: str, content: bytes | memoryview) -> None:
        """Store an entry of one file. If that fails, for example on a full disk, do without."""
        with suppress(OSError):
            staged = self.stage()
            try:
                (staged / name).write_bytes(content)
                self.commit(staged, key)
            except OSError:
                self.discard(staged)

    def place(self, staged: Path, key: str) -> None:
        """Move a staged directory into place as the entry of a key.

        If another process was first, its entry stays: both are equal.
        """
        target = self.path(key)
        try:
            staged.rename(target)
        except OSError:
            if not self.is_intact(key):
                self.remove(key)
                with suppress(OSError):
                    staged.rename(target)
            self.discard(staged)
        self.touch(key)

    def discard(self, staged: Path) -> None:
        """Delete a staged directory."""
        shutil.rmtree(staged, ignore_errors=True)

    def touch(self, key: str) -> None:
        """Mark an entry as the most recently used."""
        with suppress(OSError):
            os.utime(self.path(key))

    def remove(self, key: str) -> None:
        """Delete an entry if it exists."""
        # Rename first, so that nobody reads a partly deleted entry.
        trash = self._staging / f"removed-{os.urandom(16).hex()}"
        with suppress(OSError):
            self.path(key).rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def evict(self, reserve_bytes: int = 0, keep: str = "") -> None:
        """Delete the least recently used entries beyond the limit, and leftovers of crashes.

        It frees `reserve_bytes` for an entry that is about to be added. The entry `keep` was just
        added: it stays whatever its size, and whatever its time is if the clock was set back;
        otherwise it would be recreated every time.
        """
        now = time.time()
        entries: list[tuple[bool, float, int, str]] = []
        for entry in _children(self._entries):
            with suppress(OSError):
                used_at = entry.stat().st_mtime
                if used_at > now + _STALE_S:
                    used_at = 0.0
                entries.append((entry.name == keep, used_at, _size_bytes(entry), entry.name))
        entries.sort(reverse=True)
        total_bytes = reserve_bytes
        for is_kept, _, size_bytes, key in entries:
            total_bytes += size_bytes
            if total_bytes > self.max_bytes and not is_kept:
                self.remove(key)
        for staged in _children(self._staging):
            with suppress(OSError):
                if staged.stat().st_mtime < now - _STALE_S:
                    self.discard(staged)


def _size_bytes(entry: Path) -> int:
    return sum(file.stat().st_size for file in entry.iterdir())


def _children(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []
