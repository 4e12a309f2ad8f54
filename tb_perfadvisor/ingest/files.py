"""Lists and reads files below a root: a local path, or any URL that fsspec opens."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tb_perfadvisor.errors import NothingFoundError, UnreadableProfileError, UsageError

# Two letters at least, so that `C:\logs` and `C://logs` stay local.
_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")
# A log directory is a handful of levels deep; deeper trees are data or environments.
MAX_DEPTH = 16
# Minutes of walking on a network drive; beyond that the user must point closer.
MAX_ENTRIES = 200_000
_SKIPPED_DIRECTORIES = frozenset(
    {"node_modules", "__pycache__", "checkpoints", "checkpoint", "ckpt", "ckpts", "site-packages"}
)
_INSTALL_HINTS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3"}


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file below a root."""

    path: str
    """Relative to the root, with forward slashes."""
    size_bytes: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Tree:
    """The files below a root."""

    root: str
    entries: tuple[FileEntry, ...]
    is_complete: bool
    """Whether nothing was left out for depth, number or permission."""
    only_file: bool
    """The root that was asked for is one file; `root` is the directory it lies in."""


def is_url(root: str) -> bool:
    """Whether a root is opened through fsspec."""
    return _URL.match(root) is not None


def list_tree(root: str | os.PathLike[str]) -> Tree:
    """All files below a directory, or the one file that a path names.

    Raises:
        NothingFoundError: When there is nothing at the path.
        UsageError: When the URL's kind cannot be opened here.
    """
    text = os.fspath(root)
    if is_url(text):
        return _list_remote(text)
    path = Path(text).expanduser()
    try:
        status = path.stat()
    except (OSError, ValueError):
        raise NothingFoundError("there is no such file or directory.", where=text) from None
    if path.is_file():
        entry = FileEntry(path.name, status.st_size, status.st_mtime_ns)
        return Tree(os.fspath(path.parent), (entry,), is_complete=True, only_file=True)
    walk = _Walk(path)
    entries = tuple(sorted(walk.files(path, "", 0), key=lambda entry: entry.path))
    return Tree(os.fspath(path), entries, is_complete=walk.is_complete, only_file=False)


@contextmanager
def open_file(root: str, path: str) -> Iterator[BinaryIO]:
    """A file, open for reading.

    Args:
        root: `Tree.root`.
        path: `FileEntry.path`.

    Raises:
        UnreadableProfileError: When the file cannot be opened or read.
    """
    try:
        if is_url(root):
            filesystem, base = _open_filesystem(root)
            with filesystem.open(f"{base.rstrip('/')}/{path}", "rb") as stream:
                yield stream
        else:
            with Path(root, path).open("rb") as local:
                yield local
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UnreadableProfileError(f"the file cannot be opened: {reason}.", where=path) from error


class _Walk:
    """A bounded walk that follows links once."""

    def __init__(self, root: Path) -> None:
        self.is_complete = True
        self._seen = {_identity(root)}
        self._count = 0

    def files(self, directory: Path, prefix: str, depth: int) -> Iterator[FileEntry]:
        try:
            with os.scandir(directory) as scanned:
                entries = sorted(scanned, key=lambda entry: entry.name)
        except OSError:
            self.is_complete = False
            return
        for entry in entries:
            self._count += 1
            if self._count > MAX_ENTRIES:
                self.is_complete = False
                return
            path = prefix + entry.name
            try:
                if entry.is_dir():
                    if self._may_enter(entry, depth):
                        yield from self.files(Path(entry.path), path + "/", depth + 1)
                elif entry.is_file():
                    status = entry.stat()
                    yield FileEntry(path, status.st_size, status.st_mtime_ns)
            except OSError:
                # A dangling link, or a file that was deleted while we walk.
                continue

    def _may_enter(self, entry: os.DirEntry[str], depth: int) -> bool:
        if entry.name.startswith(".") or entry.name in _SKIPPED_DIRECTORIES:
            return False
        if depth + 1 > MAX_DEPTH:
            self.is_complete = False
            return False
        identity = _identity(Path(entry.path))
        if identity in self._seen:
            return False
        self._seen.add(identity)
        return True


def _identity(path: Path) -> tuple[int, int] | str:
    status = path.stat()
    # Some network drives number nothing; their real path must do.
    return (status.st_dev, status.st_ino) if status.st_ino else os.path.realpath(path)


def _open_filesystem(url: str) -> tuple[Any, str]:
    import fsspec

    scheme = url.split("://", 1)[0].lower()
    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        extra = _INSTALL_HINTS.get(scheme)
        hint = f"pip install 'tb_perfadvisor[{extra}]'" if extra else ""
        raise UsageError(f"{scheme}:// cannot be opened here: {error}", where=url, hint=hint) from (
            error
        )
    return filesystem, str(path)


def _list_remote(url: str) -> Tree:
    filesystem, base = _open_filesystem(url)
    try:
        found = filesystem.find(base, maxdepth=MAX_DEPTH, withdirs=False, detail=True)
    except FileNotFoundError:
        found = {}
    except OSError as error:
        raise NothingFoundError(f"the store cannot be listed: {error}", where=url) from error
    if not found:
        raise NothingFoundError("there is no such file or directory.", where=url)
    root = base.rstrip("/")
    if list(found) == [root]:
        parent, _, name = url.rstrip("/").rpartition("/")
        entry = _remote_entry(name, found[root])
        return Tree(parent, (entry,), is_complete=True, only_file=True)
    entries = [
        _remote_entry(path[len(root) :].lstrip("/"), info)
        for path, info in sorted(found.items())[:MAX_ENTRIES]
    ]
    kept = tuple(entry for entry in entries if not _is_skipped(entry.path))
    is_complete = len(found) <= MAX_ENTRIES
    return Tree(url.rstrip("/"), kept, is_complete=is_complete, only_file=False)


def _is_skipped(path: str) -> bool:
    directories = path.split("/")[:-1]
    return any(part.startswith(".") or part in _SKIPPED_DIRECTORIES for part in directories)


def _remote_entry(path: str, info: dict[str, Any]) -> FileEntry:
    """What a store says of a file: each names the time of the last change its own way."""
    for key in ("mtime", "updated", "LastModified", "last_modified", "created"):
        value = info.get(key)
        if isinstance(value, str):
            try:
                value = datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
            except ValueError:
                continue
        if isinstance(value, datetime.datetime):
            value = value.timestamp()
        if isinstance(value, int | float):
            return FileEntry(path, int(info.get("size") or 0), int(value * 1e9))
    return FileEntry(path, int(info.get("size") or 0), 0)
