"""Lists the files below a local directory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tb_perfadvisor.errors import NothingFoundError
from tb_perfadvisor.ingest.files.containment import (
    LeadsOutError,
    leads_out,
    resolve_inside,
    scan_inside,
)
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
from tb_perfadvisor.plain_text import printable_name


def list_local_tree(root: str, is_wanted: Callable[[str], bool], boundary: str = "") -> Tree:
    """List the files below a directory, or a single file; see `access.list_tree`.

    Raises:
        LeadsOutError: If the path leads out of the boundary.
        NothingFoundError: If the path does not exist.
    """
    path = Path(local_path(root))
    if boundary:
        resolve_inside(os.fspath(path), boundary)
    try:
        status = path.stat()
    except (OSError, ValueError):
        raise NothingFoundError("there is no such file or directory.", where=root) from None
    if path.is_file():
        entry = file_entry(path.name, status.st_size, status.st_mtime_ns, boundary=boundary)
        return Tree(os.fspath(path.parent), (entry,), 1, (), only_file=True)
    if not path.is_dir():
        raise NothingFoundError(
            "this is a device, a pipe or a socket, not a file.",
            where=root,
            hint="Save what comes from it to a file first.",
        )
    walk = _Walk(path, is_wanted, boundary)
    entries = tuple(sorted(walk.files(), key=lambda entry: entry.path))
    return Tree(
        os.fspath(path),
        entries,
        walk.scanned_files,
        walk.gaps(),
        only_file=False,
        leading_out=tuple(walk.leading_out),
    )


class _Walk:
    """Walks directories breadth first, within limits; follows each link once."""

    def __init__(self, root: Path, is_wanted: Callable[[str], bool], boundary: str) -> None:
        self.scanned_files = 0
        self.leading_out: list[str] = []
        self._boundary = boundary
        self._other_links: list[str] = []
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
        if self._other_links:
            names = first_names(sorted(self._other_links))
            leads = "leads" if len(self._other_links) == 1 else "lead"
            gaps.append(f"{names} {leads} out of the directory that may be read")
        return tuple(gaps)

    def files(self) -> Iterator[FileEntry]:
        """The wanted files, unordered.

        Raises:
            NothingFoundError: If the root cannot be read.
        """
        waiting = deque([(os.fspath(self._root), "", 0)])
        while waiting and self._count <= MAX_ENTRIES:
            directory, prefix, depth = waiting.popleft()
            below: list[str] = []
            try:
                with self._scan(directory) as scanned:
                    for position, entry in enumerate(scanned):
                        self._count += 1
                        if self._count > MAX_ENTRIES:
                            break
                        if position >= MAX_DIRECTORY_ENTRIES:
                            self._crowded.append(prefix.rstrip("/") or ".")
                            break
                        if self._leads_out(entry, directory):
                            self._refuse(entry.name, prefix)
                            continue
                        if _is_directory(entry):
                            below.append(entry.name)
                            continue
                        self.scanned_files += 1
                        file = self._look(entry, prefix)
                        if file is not None:
                            yield file
            except LeadsOutError:
                self._unreadable.append(prefix.rstrip("/"))
            except OSError as error:
                if not prefix:
                    reason = error.strerror or type(error).__name__
                    raise NothingFoundError(
                        f"the directory cannot be read: {reason}.", where=directory
                    ) from error
                self._unreadable.append(prefix.rstrip("/"))
            for name in sorted(below):
                path = os.path.join(directory, name)  # noqa: PTH118 - pathlib is slow
                if self._may_enter(name, path, depth + 1):
                    waiting.append((path, f"{prefix}{name}/", depth + 1))

    def _scan(self, directory: str) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        path = long_path(directory)
        return scan_inside(path, self._boundary) if self._boundary else os.scandir(path)

    def _leads_out(self, entry: os.DirEntry[str], directory: str) -> bool:
        # On Windows, a directory may lead elsewhere without being a symbolic link.
        if not self._boundary or not (entry.is_symlink() or os.name == "nt"):
            return False
        path = os.path.join(directory, entry.name)  # noqa: PTH118 - pathlib is slow
        return leads_out(path, self._boundary)

    def _refuse(self, name: str, prefix: str) -> None:
        """Note a link that leads out, whatever is there."""
        if self._is_wanted(prefix + name):
            self.leading_out.append(printable_name(prefix + name))
        elif not is_skipped(name):
            self._other_links.append(prefix + name)

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
        return file_entry(path, status.st_size, status.st_mtime_ns, boundary=self._boundary)

    def _may_enter(self, name: str, path: str, depth: int) -> bool:
        if is_skipped(name):
            return False
        if depth > MAX_DEPTH:
            self._is_too_deep = True
            return False
        try:
            # `DirEntry.stat` has no inode number on Windows.
            identity = _identity(os.stat(path), path)  # noqa: PTH116 - pathlib is slow
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
