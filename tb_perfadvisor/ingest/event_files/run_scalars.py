"""The scalars of a run, from a bounded cache that knows up to where the files were read.

Event files grow while a run trains. What was read of a file is kept with that position, and the
next reading goes on from there. A digest of the first and the last bytes before it shows whether
the file is still the same.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from zipfile import BadZipFile

import numpy as np
from msgspec import Struct

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.event_files.runs import EventRun
from tb_perfadvisor.ingest.files.access import open_file
from tb_perfadvisor.ingest.files.containment import BoundedDirectory, private_directory
from tb_perfadvisor.ingest.files.tree import FileEntry, is_url
from tb_perfadvisor.training.metrics import RunScalars, ScalarSeries, merge_series

if TYPE_CHECKING:
    from tb_perfadvisor.ingest.event_files.reader import ScalarReader

MAX_BYTES: Final = 1 << 30
"""Forty million points: more than a hundred long runs log."""
_SUBDIRECTORY: Final = "scalars"
_NAME: Final = "points.npz"
_LAYOUT: Final = "1"
"""Changes with what the reader keeps, and with how it is stored."""
_DIGEST_BYTES: Final = 4096
"""A writer's first record names the file's version, and the next ones its first times."""
_DAMAGED: Final = (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile)


class _Stored(Struct, frozen=True):
    """What was read of a file."""

    size_bytes: int
    """The file's when it was read."""
    version: str
    end: int
    digest: str
    series: dict[str, ScalarSeries]


class ScalarCache(BoundedDirectory):
    """What was read of event files, by their paths."""

    def __init__(self, directory: Path, *, max_bytes: int = MAX_BYTES) -> None:
        """Open the cache below a directory.

        Raises:
            OSError: If it cannot be created or written.
        """
        super().__init__(directory / _SUBDIRECTORY, max_bytes=max_bytes)

    def read_unchanged(self, root: str, entry: FileEntry) -> Mapping[str, ScalarSeries] | None:
        """The scalars of a file that has not changed since it was read; None if it may have."""
        stored = self._load(root, entry)
        if stored is None or (stored.size_bytes, stored.version) != _state(entry):
            return None
        self.touch(_key(root, entry))
        return stored.series

    def reader(self, root: str, entry: FileEntry, stream: BinaryIO) -> ScalarReader | None:
        """A reader that goes on where the file was read to; None if it is new, or another one."""
        stored = self._load(root, entry)
        if stored is None or _digest(stream, stored.end) != stored.digest:
            return None
        from tb_perfadvisor.ingest.event_files.reader import ScalarReader

        return ScalarReader(stored.end, stored.series)

    def write(
        self,
        root: str,
        entry: FileEntry,
        stream: BinaryIO,
        end: int,
        series: Mapping[str, ScalarSeries],
    ) -> None:
        """Store what was read of a file. If that fails, for example on a full disk, do without.

        `end` is the position behind the last record that was read, and `series` has the scalars up
        to there.
        """
        about = [*_state(entry), end, _digest(stream, end), list(series)]
        columns = list(series.values())
        content = io.BytesIO()
        np.savez(
            content,
            about=np.frombuffer(json.dumps(about).encode(), np.uint8),
            points=np.array([len(column) for column in columns], np.int64),
            step=_joined([column.step for column in columns], np.int64),
            unix_ns=_joined([column.unix_ns for column in columns], np.int64),
            value=_joined([column.value for column in columns], np.float64),
        )
        key = _key(root, entry)
        self.remove(key)
        self.store(key, _NAME, content.getbuffer())

    def _load(self, root: str, entry: FileEntry) -> _Stored | None:
        key = _key(root, entry)
        try:
            with (
                (self.path(key) / _NAME).open("rb") as stream,
                np.load(stream, allow_pickle=False) as content,
            ):
                return _decode({name: content[name] for name in content.files})
        except FileNotFoundError:
            return None
        except _DAMAGED:
            self.remove(key)
            return None


def open_scalar_cache() -> ScalarCache | None:
    """Open the cache in the user's cache directory; None if it cannot be written."""
    try:
        return ScalarCache(private_directory())
    except OSError:
        return None


def _decode(content: Mapping[str, Any]) -> _Stored:
    size_bytes, version, end, digest, tags = json.loads(content["about"].tobytes())
    ends = np.cumsum(content["points"])
    columns = [np.split(content[name], ends)[:-1] for name in ("step", "unix_ns", "value")]
    series = {tag: ScalarSeries(*points) for tag, *points in zip(tags, *columns, strict=True)}
    return _Stored(size_bytes, version, end, digest, series)


def _joined(columns: list[Any], dtype: Any) -> Any:
    return np.concatenate(columns) if columns else np.empty(0, dtype)


def _state(entry: FileEntry) -> tuple[int, str]:
    return entry.size_bytes, entry.version or str(entry.mtime_ns)


def _key(root: str, entry: FileEntry) -> str:
    text = json.dumps([_LAYOUT, root, entry.system_path, entry.boundary])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _digest(stream: BinaryIO, end: int) -> str:
    """A digest of the first and the last bytes before a position."""
    digest = hashlib.sha256()
    for start in (0, max(end - _DIGEST_BYTES, 0)):
        stream.seek(start)
        digest.update(stream.read(min(_DIGEST_BYTES, end - start)))
    return digest.hexdigest()


def read_run(
    run: EventRun,
    cache: ScalarCache | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> RunScalars:
    """All scalars of a run.

    Files that grew are read on from where the cache ends. `progress` is called with a stage and a
    share of it (0-1).

    Raises:
        StoreError: If a store denies access, or cannot be reached.
        UnreadableProfileError: If a file cannot be opened.
    """
    found: dict[str, list[ScalarSeries]] = defaultdict(list)
    all_bytes = max(run.size_bytes, 1)
    read_bytes = 0
    for file in run.files:
        if progress is not None:
            progress("reading scalars", read_bytes / all_bytes)
        for tag, series in _read_file(run.root, file.entry, cache).items():
            found[file.prefix + tag].append(series)
        read_bytes += file.entry.size_bytes
    return RunScalars({tag: merge_series(parts) for tag, parts in found.items()})


def _read_file(
    root: str, entry: FileEntry, cache: ScalarCache | None
) -> Mapping[str, ScalarSeries]:
    if cache is not None and (stored := cache.read_unchanged(root, entry)) is not None:
        return stored
    from tb_perfadvisor.ingest.event_files.reader import ScalarReader  # imports protobuf

    if cache is not None and is_url(root):
        # If the store serves no ranges, read the whole file. Its errors are the ones to show.
        with suppress(PerfAdvisorError):
            series = _read_on(root, entry, cache)
            if series is not None:
                return series
    with open_file(root, entry) as stream:
        reader = cache.reader(root, entry, stream) if cache is not None else None
        return _read(reader or ScalarReader(), root, entry, stream, cache)


def _read_on(root: str, entry: FileEntry, cache: ScalarCache) -> Mapping[str, ScalarSeries] | None:
    """Request only what was appended to a remote file; None if it is new, or another one."""
    from tb_perfadvisor.ingest.files.remote.fetched import open_ranges

    with open_ranges(root, entry.system_path, entry.size_bytes) as stream:
        reader = cache.reader(root, entry, stream)
        return None if reader is None else _read(reader, root, entry, stream, cache)


def _read(
    reader: ScalarReader,
    root: str,
    entry: FileEntry,
    stream: BinaryIO,
    cache: ScalarCache | None,
) -> Mapping[str, ScalarSeries]:
    reader.read(stream, entry.path)
    series = reader.series()
    if cache is not None:
        cache.write(root, entry, stream, reader.end, series)
    return series
