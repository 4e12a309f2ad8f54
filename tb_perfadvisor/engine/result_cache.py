"""A cache of results in a bounded directory that several processes may share.

The key of an entry depends on everything that can change the result. A manifest with checksums
reveals damaged entries.
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

from tb_perfadvisor.ingest.files.containment import BoundedDirectory
from tb_perfadvisor.rules import added_rules
from tb_perfadvisor.version import VERSION

if TYPE_CHECKING:
    from tb_perfadvisor.ingest.captures import Capture

DEFAULT_MAX_BYTES = 1 << 30  # several hundred results; small compared with the profiles themselves

_MANIFEST = "manifest.json"
_SKIPPED_FOLDERS = ("__pycache__", "static")


class FileStamp(Struct, frozen=True):
    """Identifies the state of a file without reading it."""

    path: str
    size_bytes: int
    version: str
    """The modification time, or the entity tag of a remote file."""


def result_key(files: Iterable[FileStamp], *, config: str = "", code: str) -> str:
    """The key of the result of some files: 64 hexadecimal digits.

    `files` are all of the capture, in any order. Equal texts of `config` mean equal settings.
    `code` identifies what computes the result: see `code_fingerprint`.
    """
    stamps = sorted((file.path, file.size_bytes, file.version) for file in files)
    text = json.dumps([stamps, config, code], ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def capture_key(root: str, capture: Capture, config: str) -> str:
    """The key of the result of a capture.

    `root` is what the paths of its files are relative to; the names of runs depend on it.
    """
    return result_key(
        [
            FileStamp(file.system_path, file.size_bytes, file.version or str(file.mtime_ns))
            for file in (*capture.files, *capture.attached)
        ],
        config=json.dumps([root, capture.files[0].boundary, config]),
        code=code_fingerprint(),
    )


@lru_cache(maxsize=1)
def code_fingerprint() -> str:
    """A digest of the version, and of the size and time of each module and table of the package.

    An editable installation changes without a new version. Size and modification time reveal
    changes, as they do for Python's byte code cache. Packages that add rules count by version.
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
    """Path and state of each module and table below a folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name not in _SKIPPED_FOLDERS:
                    yield from _code(entry.path)
            elif entry.name.endswith((".py", ".toml")):
                yield entry.path, entry.stat()


class ResultCache(BoundedDirectory):
    """Results by key."""

    def __init__(self, directory: Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        """Open a cache.

        Raises:
            OSError: If the directory cannot be created or written.
        """
        super().__init__(directory, max_bytes=max_bytes)

    def commit(self, staged: Path, key: str) -> None:
        """Store a staged directory as the result of a key, with a manifest of its files.

        Raises:
            OSError: If the disk is full; then the directory is deleted.
        """
        try:
            manifest = {
                path.name: [path.stat().st_size, _checksum(path.read_bytes())]
                for path in sorted(staged.iterdir())
            }
            (staged / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        except OSError:
            self.discard(staged)
            raise
        super().commit(staged, key)

    def read(self, key: str, name: str) -> bytes | None:
        """A file of an entry; None if it is missing, or damaged (then the entry is removed)."""
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
        # Do not remove an entry that another process has replaced in the meantime.
        if _identity(entry) == seen:
            self.remove(key)
        return None

    def has(self, key: str) -> bool:
        """Whether an entry exists, damaged or not."""
        return (self.path(key) / _MANIFEST).exists()

    def is_intact(self, key: str) -> bool:
        """Whether all files of an entry are undamaged."""
        try:
            text = (self.path(key) / _MANIFEST).read_text(encoding="utf-8")
            names = list(json.loads(text))
        except (OSError, ValueError, TypeError):
            return False
        return all(self.read(key, name) is not None for name in names)


def _identity(directory: Path) -> tuple[int, int] | None:
    """Identifies a directory, to notice if another one took its name; None if there is none."""
    try:
        state = directory.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
