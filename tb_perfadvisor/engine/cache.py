"""Results kept between starts: a bounded folder that several processes may share.

An entry is a directory of files, named by a key that depends on everything that can change
the result. It is written elsewhere on the same file system and renamed into place, so a reader
sees all of it or nothing; a manifest with checksums tells a damaged entry from a good one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tb_perfadvisor.ingest.discovery import Capture

DIRECTORY_VARIABLE = "PERFADVISOR_CACHE_DIR"
DEFAULT_MAX_BYTES = 1 << 30  # some hundreds of results; small beside the profiles themselves

RULES_GROUP = "perfadvisor_rules"
"""The registry's group, named here because TensorBoard's process must not import the rules."""

_MANIFEST = "manifest.json"
# No analysis runs for a day: what is older was left behind by a process that died.
_STALE_STAGING_S = 24 * 3600


@dataclass(frozen=True, slots=True)
class FileStamp:
    """What tells one state of a file from another without reading it."""

    path: str
    size_bytes: int
    version: str
    """Modification time, or the entity tag of a remote file."""


def default_directory() -> Path:
    """Where results are kept: the environment's choice, else the user's cache directory."""
    chosen = os.environ.get(DIRECTORY_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("tb_perfadvisor", appauthor=False))


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
        [FileStamp(file.path, file.size_bytes, str(file.mtime_ns)) for file in capture.files],
        config=json.dumps([root, config]),
        code=code_fingerprint(),
    )


@lru_cache(maxsize=1)
def code_fingerprint() -> str:
    """A digest of the package's modules and tables (the hardware's among them).

    The contents, not only the version number: an editable installation changes without one.
    Of packages that add rules, the version.
    """
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.toml")]):
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    for entry in entry_points(group=RULES_GROUP):
        version = entry.dist.version if entry.dist is not None else ""
        digest.update(f"{entry.name}={entry.value}={version}".encode())
    return digest.hexdigest()


class ResultCache:
    """The entries of one directory, bounded in size: the least recently used goes first."""

    def __init__(self, directory: Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        """Use a directory, made at once so that an unwritable one is known early.

        Raises:
            OSError: When the directory cannot be made or written to.
        """
        self._entries = directory / "entries"
        self._staging = directory / "staging"
        self._max_bytes = max_bytes
        for path in (directory, self._entries, self._staging):
            # Private: results name files and functions of the user's programs.
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = self.stage()
        probe.rmdir()

    def stage(self) -> Path:
        """A new empty directory in which to write an entry before `commit`."""
        return Path(tempfile.mkdtemp(dir=self._staging))

    def commit(self, staged: Path, key: str) -> None:
        """Make a staged directory the entry of a key, and keep the size within its bound.

        When another process was first, its entry stays and ours is dropped: they are equal.
        """
        manifest = {
            path.name: [path.stat().st_size, _checksum(path.read_bytes())]
            for path in sorted(staged.iterdir())
        }
        (staged / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        target = self._entries / key
        try:
            staged.rename(target)
        except OSError:
            if not self.is_intact(key):
                self.remove(key)
                with suppress(OSError):
                    staged.rename(target)
            self.discard(staged)
        self._touch(key)
        self.evict()

    def discard(self, staged: Path) -> None:
        """Drop a staged directory."""
        shutil.rmtree(staged, ignore_errors=True)

    def read(self, key: str, name: str) -> bytes | None:
        """A file of an entry; None when there is none, or when it is damaged (and now gone)."""
        entry = self._entries / key
        try:
            manifest = json.loads((entry / _MANIFEST).read_text(encoding="utf-8"))
            if name not in manifest:
                return None
            size_bytes, checksum = manifest[name]
            content = (entry / name).read_bytes()
            if len(content) == size_bytes and _checksum(content) == checksum:
                self._touch(key)
                return content
        except (OSError, ValueError, TypeError):
            if not entry.exists():
                return None
        self.remove(key)
        return None

    def has(self, key: str) -> bool:
        """Whether there is an entry, damaged or not."""
        return (self._entries / key / _MANIFEST).exists()

    def is_intact(self, key: str) -> bool:
        """Whether all files of an entry are as they were written."""
        try:
            text = (self._entries / key / _MANIFEST).read_text(encoding="utf-8")
            names = list(json.loads(text))
        except (OSError, ValueError, TypeError):
            return False
        return all(self.read(key, name) is not None for name in names)

    def remove(self, key: str) -> None:
        """Drop an entry, if there is one."""
        # Renamed first: nobody may read an entry that is half deleted.
        trash = self._staging / f"removed-{uuid.uuid4().hex}"
        with suppress(OSError):
            (self._entries / key).rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def evict(self) -> None:
        """Drop the least recently used entries beyond the bound, and what crashes left behind.

        The most recent entry stays whatever its size, or it would be computed for ever.
        """
        entries: list[tuple[float, int, str]] = []
        for entry in _children(self._entries):
            with suppress(OSError):
                used_at = entry.stat().st_mtime
                entries.append(
                    (used_at, sum(p.stat().st_size for p in entry.iterdir()), entry.name)
                )
        entries.sort(reverse=True)
        total_bytes = 0
        for position, (_, size_bytes, key) in enumerate(entries):
            total_bytes += size_bytes
            if position and total_bytes > self._max_bytes:
                self.remove(key)
        horizon = time.time() - _STALE_STAGING_S
        for staged in _children(self._staging):
            with suppress(OSError):
                if staged.stat().st_mtime < horizon:
                    self.discard(staged)

    def _touch(self, key: str) -> None:
        with suppress(OSError):
            os.utime(self._entries / key)


def _children(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
