"""Lists and reads files below a root: a local path, or any URL that fsspec opens."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from tb_perfadvisor.errors import NothingFoundError, PerfAdvisorError, UnreadableProfileError

# Two letters at least, so that `C:\logs` and `C://logs` stay local. A chain of stores, as in
# `zip://*::s3://bucket/logs.zip`, may begin with a name alone.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+(?:://|::.*://)")
_LOCAL_SCHEMES = ("file://", "local://")
# A log directory is a handful of levels deep; deeper trees are data or environments.
MAX_DEPTH = 16
# Minutes of walking on a network drive; beyond that the user must point closer.
MAX_ENTRIES = 200_000
# No run writes that many files into one directory: it holds data, and there is more to see.
MAX_DIRECTORY_ENTRIES = 50_000
_SKIPPED_DIRECTORY = re.compile(
    # What frameworks call their checkpoints, which are many files or huge ones.
    r"\..*|checkpoints?|ckpts?|(?:checkpoint|ckpt|global_step)[-_]?\d+"
    r"|node_modules|__pycache__|site-packages"
)
_MAX_NAMED = 3


class FileEntry(Struct, frozen=True):
    """One file below a root."""

    path: str
    """Relative to the root, with forward slashes."""
    size_bytes: int
    mtime_ns: int
    version: str = ""
    """What a store calls the state of the content: entity tag or generation. Else empty."""


class Tree(Struct, frozen=True):
    """The files below a root."""

    root: str
    entries: tuple[FileEntry, ...]
    """Those that were asked for, in order of their paths."""
    scanned_files: int
    gaps: tuple[str, ...]
    """What was left out for depth, number or permission: a phrase each."""
    only_file: bool
    """The root that was asked for is one file; `root` is the directory it lies in."""


def is_url(root: str) -> bool:
    """Whether a root is opened through fsspec: it is neither a local path nor a URL of one."""
    return _URL.match(root) is not None and not root.lower().startswith(_LOCAL_SCHEMES)


def local_path(root: str) -> str:
    """A root that is no URL as a path: without `file://`, and with `~` expanded."""
    if root.lower().startswith(_LOCAL_SCHEMES):
        from fsspec.core import strip_protocol

        root = str(strip_protocol(root))
    return os.path.expanduser(root)  # noqa: PTH111 - pathlib raises where there is no such user


def is_skipped(directory: str) -> bool:
    """Whether no profile is looked for in directories of a name."""
    return _SKIPPED_DIRECTORY.fullmatch(directory) is not None


def some(names: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def list_tree(root: str | os.PathLike[str], is_wanted: Callable[[str], bool]) -> Tree:
    """The files below a directory, or the one file that a path names.

    Args:
        root: A directory, one file, or any URL that fsspec opens.
        is_wanted: Tells from a file's path whether to look at it; all are counted.

    Raises:
        NothingFoundError: When there is nothing at the path.
        StoreError: When a store refuses, or cannot be reached.
        UsageError: When the URL's kind cannot be opened here.
    """
    text = os.fspath(root)
    if is_url(text):
        from tb_perfadvisor.ingest.files.remote.listing import list_remote

        return list_remote(text, is_wanted)
    path = Path(local_path(text))
    try:
        status = path.stat()
    except (OSError, ValueError):
        raise NothingFoundError("there is no such file or directory.", where=text) from None
    if path.is_file():
        entry = FileEntry(path.name, status.st_size, status.st_mtime_ns)
        return Tree(os.fspath(path.parent), (entry,), 1, (), only_file=True)
    if not path.is_dir():
        raise NothingFoundError(
            "this is a device, a pipe or a socket, not a file.",
            where=text,
            hint="Save what comes from it to a file first.",
        )
    walk = _Walk(path, is_wanted)
    entries = tuple(sorted(walk.files(), key=lambda entry: entry.path))
    return Tree(os.fspath(path), entries, walk.scanned_files, walk.gaps(), only_file=False)


@contextmanager
def open_file(
    root: str, path: str, *, version: str = "", size_bytes: int | None = None
) -> Iterator[BinaryIO]:
    """A file, open for reading; a remote one is fetched into the user's cache first.

    Args:
        root: `Tree.root`.
        path: `FileEntry.path`.
        version: `FileEntry.version`; where it is left out, the store is asked.
        size_bytes: `FileEntry.size_bytes`; likewise.

    Raises:
        StoreError: When a store refuses, or cannot be reached.
        UnreadableProfileError: When the file cannot be opened or read.
    """
    try:
        if is_url(root):
            from tb_perfadvisor.ingest.files.remote.fetched import open_fetched

            with open_fetched(root, path, version, size_bytes) as fetched:
                yield fetched
        else:
            with Path(root, path).open("rb") as local:
                yield local
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UnreadableProfileError(f"the file cannot be opened: {reason}.", where=path) from error


def read_heads(
    root: str, entries: Sequence[FileEntry], head_bytes: int
) -> Iterator[bytes | PerfAdvisorError]:
    """The beginnings of files one after the other, or why each cannot be read.

    Args:
        root: `Tree.root`.
        entries: Which files.
        head_bytes: How much of each.
    """
    if is_url(root):
        from tb_perfadvisor.ingest.files.remote.fetched import fetch_heads

        yield from fetch_heads(root, entries, head_bytes)
    else:
        for entry in entries:
            yield _head(root, entry.path, head_bytes)


def _head(root: str, path: str, head_bytes: int) -> bytes | PerfAdvisorError:
    try:
        with open_file(root, path) as stream:
            return stream.read(head_bytes)
    except PerfAdvisorError as error:
        return error


class _Walk:
    """A bounded walk, nearest directories first, that follows links once."""

    def __init__(self, root: Path, is_wanted: Callable[[str], bool]) -> None:
        self.scanned_files = 0
        self._root = root
        self._is_wanted = is_wanted
        self._seen = {_identity(root.stat(), os.fspath(root))}
        self._count = 0
        self._unreadable: list[str] = []
        self._crowded: list[str] = []
        self._is_too_deep = False

    def gaps(self) -> tuple[str, ...]:
        """What was left out, as phrases."""
        gaps = []
        if self._count > MAX_ENTRIES:
            gaps.append(f"there are more than {MAX_ENTRIES:,} files")
        if self._is_too_deep:
            gaps.append(f"directories are more than {MAX_DEPTH} levels deep")
        if self._crowded:
            held = "holds" if len(self._crowded) == 1 else "hold"
            gaps.append(f"{some(self._crowded)} {held} more than {MAX_DIRECTORY_ENTRIES:,} files")
        if self._unreadable:
            gaps.append(f"{some(self._unreadable)} may not be read")
        return tuple(gaps)

    def files(self) -> Iterator[FileEntry]:
        """The files that are wanted, in no order.

        Raises:
            NothingFoundError: When the root cannot be read.
        """
        waiting = deque([(os.fspath(self._root), "", 0)])
        while waiting and self._count <= MAX_ENTRIES:
            directory, prefix, depth = waiting.popleft()
            below: list[os.DirEntry[str]] = []
            try:
                with os.scandir(directory) as scanned:
                    for position, entry in enumerate(scanned):
                        self._count += 1
                        if self._count > MAX_ENTRIES:
                            break
                        if position >= MAX_DIRECTORY_ENTRIES:
                            self._crowded.append(prefix.rstrip("/") or ".")
                            break
                        if _is_directory(entry):
                            below.append(entry)
                            continue
                        self.scanned_files += 1
                        found = self._look(entry, prefix)
                        if found is not None:
                            yield found
            except OSError as error:
                if not prefix:
                    reason = error.strerror or type(error).__name__
                    raise NothingFoundError(
                        f"the directory cannot be read: {reason}.", where=directory
                    ) from error
                self._unreadable.append(prefix.rstrip("/"))
            for entry in sorted(below, key=lambda entry: entry.name):
                if self._may_enter(entry, depth + 1):
                    waiting.append((entry.path, f"{prefix}{entry.name}/", depth + 1))

    def _look(self, entry: os.DirEntry[str], prefix: str) -> FileEntry | None:
        path = prefix + entry.name
        if not self._is_wanted(path):
            return None
        try:
            if not entry.is_file():
                return None
            status = entry.stat()
        except OSError:
            # A dangling link, or a file that was deleted while we walk.
            return None
        return FileEntry(path, status.st_size, status.st_mtime_ns)

    def _may_enter(self, entry: os.DirEntry[str], depth: int) -> bool:
        if is_skipped(entry.name):
            return False
        if depth > MAX_DEPTH:
            self._is_too_deep = True
            return False
        try:
            # Not the entry's own status, which has no number on Windows.
            identity = _identity(Path(entry.path).stat(), entry.path)
        except OSError:
            return False
        if identity in self._seen:
            return False
        self._seen.add(identity)
        return True


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _identity(status: os.stat_result, path: str) -> tuple[int, int] | str:
    # Some network drives number nothing; their real path must do.
    return (status.st_dev, status.st_ino) if status.st_ino else os.path.realpath(path)
