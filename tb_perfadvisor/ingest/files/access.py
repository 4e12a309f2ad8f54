"""Lists and opens files below a root: a local path, or any URL that fsspec opens."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from tb_perfadvisor.errors import NothingFoundError, PerfAdvisorError, UnreadableProfileError
from tb_perfadvisor.ingest.files.containment import LeadsOutError, opener_of_files
from tb_perfadvisor.ingest.files.local_tree import list_local_tree
from tb_perfadvisor.ingest.files.tree import FileEntry, Tree, is_url, long_path
from tb_perfadvisor.plain_text import printable_name

ShareRead = Callable[[float], None]
"""Is called with the share (0-1) of a file that was read."""
_STEP = 0.01


def list_tree(
    root: str | os.PathLike[str], is_wanted: Callable[[str], bool], boundary: str = ""
) -> Tree:
    """List the files below a directory, or the single file that a path names.

    The root is a directory, one file, or any URL that fsspec opens. `is_wanted` says whether to
    list a file, by its path; all files are counted. The boundary is the directory that everything
    must lie in, without links in its path. It is empty if links may lead anywhere. Stores have no
    links.

    Raises:
        LeadsOutError: If the path leads out of the boundary.
        NothingFoundError: If the path does not exist.
        StoreError: If the store denies access or cannot be reached.
        UsageError: If the URL's scheme is not supported or needs a missing package.
    """
    text = os.fspath(root)
    if "\0" in text:
        raise NothingFoundError("no path has a NUL character in it.", where=printable_name(text))
    if is_url(text):
        from tb_perfadvisor.ingest.files.remote.listing import list_remote

        return list_remote(text, is_wanted)
    return list_local_tree(text, is_wanted, boundary)


class _Watched(io.FileIO):
    """A file that tells how much of it was read, at each hundredth."""

    def __init__(
        self, path: str, size_bytes: int, tell: ShareRead, opener: Callable[[str, int], int]
    ) -> None:
        super().__init__(path, "rb", opener=opener)
        self._size_bytes = size_bytes
        self._tell = tell
        self._told = 0.0

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        share = min(self.tell() / self._size_bytes, 1.0)
        if share >= self._told + _STEP or share == 1.0 > self._told:
            self._told = share
            self._tell(share)
        return count


@contextmanager
def open_file(root: str, file: FileEntry, tell: ShareRead | None = None) -> Iterator[BinaryIO]:
    """Open a file for reading; a remote file is fetched into the user's cache first.

    If the file has no version, the store is queried. `tell` is called with the share (0-1) of a
    local file that was read.

    Raises:
        LeadsOutError: If it leads out of its boundary.
        StoreError: If the store denies access or cannot be reached.
        UnreadableProfileError: If the file cannot be opened or read.
    """
    try:
        if is_url(root):
            from tb_perfadvisor.ingest.files.remote.fetched import open_fetched

            with open_fetched(root, file.system_path, file.version, file.size_bytes) as fetched:
                yield fetched
            return
        path = long_path(os.fspath(Path(root, file.system_path)))
        opener = opener_of_files(file.boundary)
        if tell is None or not file.size_bytes:
            with open(path, "rb", opener=opener) as local:
                yield local
        else:
            with io.BufferedReader(_Watched(path, file.size_bytes, tell, opener)) as watched:
                yield watched
    except LeadsOutError:
        raise LeadsOutError(file.path) from None  # relative to the root
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UnreadableProfileError(
            f"the file cannot be opened: {reason}.", where=file.path
        ) from error


def read_heads(
    root: str, entries: Sequence[FileEntry], head_bytes: int
) -> Iterator[bytes | PerfAdvisorError]:
    """Read the first bytes of files; yields an error for each file that cannot be read."""
    if is_url(root):
        from tb_perfadvisor.ingest.files.remote.fetched import fetch_heads

        yield from fetch_heads(root, entries, head_bytes)
    else:
        for entry in entries:
            yield _head(root, entry, head_bytes)


def _head(root: str, entry: FileEntry, head_bytes: int) -> bytes | PerfAdvisorError:
    try:
        with open_file(root, entry) as stream:
            return stream.read(head_bytes)
    except PerfAdvisorError as error:
        return error
