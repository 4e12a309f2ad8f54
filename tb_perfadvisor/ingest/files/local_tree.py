"""Lists the files below a local directory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from tb_perfadvisor.errors import NothingFoundError
from tb_perfadvisor.ingest.files.tree import (
    MAX_DEPTH,
    MAX_DIRECTORY_ENTRIES,
    MAX_ENTRIES,
    FileEntry,
    Tree,
    file_entry,
    first_names,
    is_skipped,
    local_path,
    long_path,
)


def list_local_tree(root: str, is_wanted: Callable[[str], bool]) -> Tree:
    """List the files below a directory, or a single file; see `access.list_tree`.

    Raises:
        NothingFoundError: If the path does not exist.
    """
    path = Path(local_path(root))
    try:
        status = path.stat()
    except (OSError, ValueError):
        raise NothingFoundError("there is no such file or directory.", where=root) from None
    if path.is_file():
        entry = file_entry(path.name, status.st_size, status.st_mtime_ns)
        return Tree(os.fspath(path.parent), (entry,), 1, (), only_file=True)
    if not path.is_dir():
        raise NothingFoundError(
            "this is a device, a pipe or a socket, not a file.",
            where=root,
            hint="Save what comes from it to a file first.",
        )
    walk = _Walk(path, is_wanted)
    entries = tuple(sorted(walk.files(), key=lambda entry: entry.path))
    return Tree(os.fspath(path), entries, walk.scanned_files, walk.gaps(), only_file=False)


class _Walk:
    """Walks directories breadth first, within limits; follows each link once."""

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
            gaps.append(
                f"{first_names(self._crowded)} {held} more than {MAX_DIRECTORY_ENTRIES:,} files"
            )
        if self._unreadable:
            gaps.append(f"{first_names(self._unreadable)} may not be read")
        return tuple(gaps)

    def files(self) -> Iterator[FileEntry]:
        """The wanted files, unordered.

        Raises:
            NothingFoundError: If the root cannot be read.
        """
        waiting = deque([(os.fspath(self._root), "", 0)])
        while waiting and self._count <= MAX_ENTRIES:
            directory, prefix, depth = waiting.popleft()
            below: list[os.DirEntry[str]] = []
            try:
                with os.scandir(long_path(directory)) as scanned:
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
                        file = self._look(entry, prefix)
                        if file is not None:
                            yield file
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
            # A dangling link, or a file deleted in the meantime.
            return None
        return file_entry(path, status.st_size, status.st_mtime_ns)

    def _may_enter(self, entry: os.DirEntry[str], depth: int) -> bool:
        if is_skipped(entry.name):
            return False
        if depth > MAX_DEPTH:
            self._is_too_deep = True
            return False
        try:
            # `DirEntry.stat` has no inode number on Windows.
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
    # Some network drives have no inode numbers.
    return (status.st_dev, status.st_ino) if status.st_ino else os.path.realpath(path)
