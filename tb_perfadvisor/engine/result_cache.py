"""Results kept between starts, in a bounded directory that several processes may share.

An entry's key depends on everything that can change the result; a manifest with checksums
tells a damaged entry from a good one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from tb_perfadvisor.ingest.files.bounded_directory import BoundedDirectory
from tb_perfadvisor.rules.entry_points import added_rules
from tb_perfadvisor.version import VERSION

if TYPE_CHECKING:
    from tb_perfadvisor.ingest.discovery import Capture

DEFAULT_MAX_BYTES = 1 << 30  # some hundreds of results; small beside the profiles themselves

_MANIFEST = "manifest.json"
_NO_CODE = ("__pycache__", "static")


class FileStamp(Struct, frozen=True):
    """What tells one state of a file from another without reading it."""

    path: str
    size_bytes: int
    version: str
    """Modification time, or the entity tag of a remote file."""


def result_key(files: Iterable[FileStamp], *, config: str = "", code: str) -> str:
    """The name of the result of some files: 64 hexadecimal digits.

    Args:
        files: Every file of the capture, in any order.
        config: The configuration, as text; equal texts mean equal settings.
        code: What computes the result: see `code_fingerprint`.
    """
    stamps = sorted((file.path, file.size_bytes, file.version) for file in files)
    text = json.dumps([stamps, config, code], ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def capture_key(root: str, capture: Capture, config: str) -> str:
    """The name of the result of a capture.

    Args:
        root: What the paths of its files are relative to; reports name runs by it.
        capture: The capture.
        config: The settings, as text.
    """
    return result_key(
        [
            FileStamp(file.path, file.size_bytes, file.version or str(file.mtime_ns))
            for file in capture.files
        ],
        config=json.dumps([root, config]),
        code=code_fingerprint(),
    )


@lru_cache(maxsize=1)
def code_fingerprint() -> str:
    """A digest of the version and of the state of each of the package's modules and tables.

    An editable installation changes without a new version: size and time of change tell, as they
    tell Python whether byte code is still that of its module. Of packages that add rules, the
    version.
    """
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256(VERSION.encode())
    for path, state in sorted(_code(str(root))):
        digest.update(f"{path[len(str(root)) :]}={state.st_size}={state.st_mtime_ns}\n".encode())
    for entry in added_rules():
        version = entry.dist.version if entry.dist is not None else ""
        digest.update(f"{entry.name}={entry.value}={version}".encode())
    return digest.hexdigest()


def _code(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """All modules and tables below a folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name not in _NO_CODE:
                    yield from _code(entry.path)
            elif entry.name.endswith((".py", ".toml")):
                yield entry.path, entry.stat()


class ResultCache(BoundedDirectory):
    """Results by their keys."""

    def __init__(self, directory: Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        """Use a directory.

        Raises:
            OSError: When the directory cannot be made or written to.
        """
        super().__init__(directory, max_bytes=max_bytes)

    def commit(self, staged: Path, key: str) -> None:
        """Make a staged directory the result of a key, with a manifest of its files."""
        manifest = {
            path.name: [path.stat().st_size, _checksum(path.read_bytes())]
            for path in sorted(staged.iterdir())
        }
        (staged / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        super().commit(staged, key)

    def read(self, key: str, name: str) -> bytes | None:
        """A file of an entry; None when there is none, or when it is damaged (and now gone)."""
        entry = self.path(key)
        seen = _identity(entry)
        if seen is None:
            return None
        with suppress(OSError, ValueError, TypeError):
            manifest = json.loads((entry / _MANIFEST).read_text(encoding="utf-8"))
            if name not in manifest:
                return None
            size_bytes, checksum = manifest[name]
            content = (entry / name).read_bytes()
            if len(content) == size_bytes and _checksum(content) == checksum:
                self.touch(key)
                return content
        # Unless it was removed while it was read, and by now a good one is in its place.
        if _identity(entry) == seen:
            self.remove(key)
        return None

    def has(self, key: str) -> bool:
        """Whether there is an entry, damaged or not."""
        return (self.path(key) / _MANIFEST).exists()

    def is_intact(self, key: str) -> bool:
        """Whether all files of an entry are as they were written."""
        try:
            text = (self.path(key) / _MANIFEST).read_text(encoding="utf-8")
            names = list(json.loads(text))
        except (OSError, ValueError, TypeError):
            return False
        return all(self.read(key, name) is not None for name in names)


def _identity(directory: Path) -> tuple[int, int] | None:
    """What tells a directory from another of its name; None when there is none."""
    try:
        state = directory.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
