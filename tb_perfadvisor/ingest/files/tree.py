"""The files below a root, and the limits of the search for them."""

from __future__ import annotations

import ntpath
import os
from collections.abc import Sequence

from msgspec import Struct

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.plain_text import printable_name

# Two letters at least, so that `C:\logs` and `C://logs` stay local. A chain of stores, as in
# `zip://*::s3://bucket/logs.zip`, may begin with a bare scheme.
_URL = regex(r"[A-Za-z][A-Za-z0-9+.-]+(?:://|::.*://)")
_LOCAL_SCHEMES = ("file://", "local://")
# A log directory is a handful of levels deep; deeper trees are data or environments.
MAX_DEPTH = 16
# Listing more takes minutes on a network drive; users can point closer.
MAX_ENTRIES = 200_000
# A directory with more files than this holds a dataset: no run writes that many.
MAX_DIRECTORY_ENTRIES = 50_000
_SKIPPED_DIRECTORY = regex(
    # Names that frameworks give to checkpoints, which consist of many or huge files.
    r"\..*|checkpoints?|ckpts?|(?:checkpoint|ckpt|global_step)[-_]?\d+"
    r"|node_modules|__pycache__|site-packages"
)
_MAX_NAMED = 3
# https://learn.microsoft.com/en-us/windows/win32/fileio/maximum-file-path-limitation
_WINDOWS_LIMIT = 248
_LONG = "\\\\?\\"


class FileEntry(Struct, frozen=True):
    """One file below a root."""

    path: str
    """Relative to the root, with forward slashes, and printable."""
    size_bytes: int
    mtime_ns: int
    version: str = ""
    """The store's name for this state of the content: entity tag or generation. Empty for local
    files."""
    raw_path: bytes = b""
    """The path by which the system or the store knows the file, if that cannot be printed. In UTF-8
    that may encode surrogates. Empty if it is `path`."""
    boundary: str = ""
    """The directory that it must lie in when it is opened, without links in its path. Empty if
    links may lead anywhere."""

    @property
    def system_path(self) -> str:
        """The path by which the file is opened."""
        return self.raw_path.decode("utf-8", "surrogatepass") if self.raw_path else self.path


def file_entry(
    system_path: str, size_bytes: int, mtime_ns: int, version: str = "", boundary: str = ""
) -> FileEntry:
    """The entry of a file, named by the path by which it is opened."""
    path = printable_name(system_path)
    raw_path = b"" if path == system_path else system_path.encode("utf-8", "surrogatepass")
    return FileEntry(path, size_bytes, mtime_ns, version, raw_path, boundary)


class Tree(Struct, frozen=True):
    """The files below a root."""

    root: str
    entries: tuple[FileEntry, ...]
    """The wanted files, in order of their paths."""
    scanned_files: int
    gaps: tuple[str, ...]
    """What was not listed because of depth, number or permission, as phrases."""
    only_file: bool
    """Whether the user named a single file; `root` is then its directory."""
    leading_out: tuple[str, ...] = ()
    """The wanted files that are links out of the boundary: nothing else is known of them."""


def is_url(root: str) -> bool:
    """Whether a root is opened through fsspec, because it is not local."""
    return _URL.match(root) is not None and not root.lower().startswith(_LOCAL_SCHEMES)


def local_path(root: str) -> str:
    """The path of a local root, without `file://`, and with `~` expanded."""
    if root.lower().startswith(_LOCAL_SCHEMES):
        from fsspec.core import strip_protocol

        root = str(strip_protocol(root))
    return os.path.expanduser(root)  # noqa: PTH111 - pathlib raises if the user does not exist


def long_path(path: str, *, is_windows: bool = os.name == "nt") -> str:
    """A local path as the system opens it: Windows refuses long ones without a prefix."""
    if not is_windows or len(path) < _WINDOWS_LIMIT or path.startswith(_LONG):
        return path
    path = ntpath.abspath(path)
    return f"{_LONG}UNC{path[1:]}" if path.startswith("\\\\") else f"{_LONG}{path}"


def short_path(path: str) -> str:
    """A local path without the prefix that `long_path` adds."""
    shared = f"{_LONG}UNC"
    if path.startswith(shared):
        return "\\" + path.removeprefix(shared)
    return path.removeprefix(_LONG)


def is_skipped(directory: str) -> bool:
    """Whether directories of this name are left out of the search."""
    return _SKIPPED_DIRECTORY.fullmatch(directory) is not None


def first_names(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(map(printable_name, names[:_MAX_NAMED])) + more
