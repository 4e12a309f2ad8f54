"""Fetches remote files in ranges.

Remote files on the local disk: each version of a file is downloaded once.

They are stored in a bounded directory of the user's cache. The file caches of fsspec have no size
limit, and processes that share one overwrite each other's metadata.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from tb_perfadvisor.errors import PerfAdvisorError, StoreError
from tb_perfadvisor.ingest.files.containment import BoundedDirectory, private_directory
from tb_perfadvisor.ingest.files.remote.listing import PARALLEL_REQUESTS
from tb_perfadvisor.ingest.files.remote.store import Stamp, Store, explain
from tb_perfadvisor.ingest.files.tree import FileEntry
from tb_perfadvisor.plain_text import printable_name

MAX_SIZE_VARIABLE = "PERFADVISOR_FILE_CACHE_GIB"
# Dozens of large profiles; the smallest cloud shells have 5 GB in total.
DEFAULT_MAX_BYTES = 4 << 30

_SUBDIRECTORY = "files"
_ATTEMPTS = 2
_MOST_GIB = 2**32  # sizes have 64 bits, one of which is the sign


class FileCache(BoundedDirectory):
    """Cached files: an entry holds one file, named by its size in bytes.

    The size reveals a file that was truncated by a crash of the machine.
    """

    def open(self, key: str) -> BinaryIO | None:
        """Open a file if it is cached and complete."""
        try:
            (path,) = self.path(key).iterdir()
            stream = path.open("rb")
        except (OSError, ValueError):
            return None
        if os.fstat(stream.fileno()).st_size != int(path.name):
            stream.close()
            self.remove(key)
            return None
        self.touch(key)
        return stream

    def is_intact(self, key: str) -> bool:
        """Whether the entry holds a complete file."""
        stream = self.open(key)
        if stream is None:
            return False
        stream.close()
        return True

    def add(self, key: str, content: bytes) -> None:
        """Cache a small file without evicting others; do without if the disk is full."""
        with suppress(OSError):
            staged = self.stage()
            try:
                (staged / str(len(content))).write_bytes(content)
                self.place(staged, key)
            except OSError:
                self.discard(staged)


@contextmanager
def open_fetched(
    root: str, path: str, version: str = "", size_bytes: int | None = None
) -> Iterator[BinaryIO]:
    """Download a remote file, unless it is cached, and open it.

    The path is relative to the root, with forward slashes. Without the listed version or size, the
    store is queried.

    Raises:
        StoreError: If the store denies access, cannot be reached, or interrupts the transfer.
    """
    store = Store(root)
    if version and size_bytes is not None:
        stamp = Stamp(size_bytes, 0, version)
    else:
        stamp = _current_stamp(store, path)
    cache = _file_cache()
    key = _key(store, path, stamp)
    with ExitStack() as cleanup:
        stream = cache.open(key) if cache is not None and stamp.version else None
        yield cleanup.enter_context(stream or _fetch(store, path, stamp, key, cache, cleanup))


def fetch_heads(
    root: str, entries: Sequence[FileEntry], head_bytes: int
) -> Iterator[bytes | PerfAdvisorError]:
    """Read the first bytes of remote files in parallel, or the error for each file.

    They are cached too, so that other processes need not request them again.
    """
    if not entries:
        return
    store = Store(root)
    cache = _file_cache()

    def read(entry: FileEntry) -> bytes | PerfAdvisorError:
        try:
            return _head(store, cache, entry, head_bytes)
        except FileNotFoundError as error:
            return explain(error, store.scheme, where=entry.path)
        except PerfAdvisorError as error:
            return error

    with ThreadPoolExecutor(PARALLEL_REQUESTS) as pool:
        # In batches: results stay in memory until they are consumed.
        for start in range(0, len(entries), PARALLEL_REQUESTS):
            yield from pool.map(read, entries[start : start + PARALLEL_REQUESTS])
    if cache is not None:
        cache.evict()


def _head(store: Store, cache: FileCache | None, entry: FileEntry, head_bytes: int) -> bytes:
    if entry.size_bytes == 0:
        return b""  # stores reject range requests for empty files
    stamp = Stamp(entry.size_bytes, entry.mtime_ns, entry.version)
    is_whole = entry.size_bytes <= head_bytes
    file_key = _key(store, entry.system_path, stamp)
    head_key = file_key if is_whole else _key(store, entry.system_path, stamp, head_bytes)
    if cache is not None and entry.version:
        for key in (file_key, head_key):
            stream = cache.open(key)
            if stream is not None:
                with stream:
                    return stream.read(head_bytes)
    head = store.head(entry.system_path, head_bytes)
    is_as_listed = len(head) == min(entry.size_bytes, head_bytes)
    if cache is not None and entry.version and is_as_listed:
        cache.add(head_key, head)
    return head


def _fetch(
    store: Store,
    path: str,
    stamp: Stamp,
    key: str,
    cache: FileCache | None,
    cleanup: ExitStack,
) -> BinaryIO:
    """Download a file, cache it if possible, and open it."""
    size_bytes = stamp.size_bytes or 0
    is_cacheable = cache is not None and bool(stamp.version) and size_bytes <= cache.max_bytes
    if cache is not None:
        if is_cacheable:
            cache.evict(reserve_bytes=size_bytes)
        staged = cache.stage()
        cleanup.callback(cache.discard, staged)
    else:
        staged = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="perf_advisor_")))
    target = staged / "content"
    for attempt in range(_ATTEMPTS):
        try:
            store.download(path, os.fspath(target))
        except FileNotFoundError as error:
            raise explain(error, store.scheme, where=printable_name(path)) from error
        actual_bytes = target.stat().st_size
        if stamp.size_bytes is None or actual_bytes == stamp.size_bytes:
            break
        # The file changed since it was listed, the store decompresses it while sending, or the
        # transfer was interrupted.
        stamp = _current_stamp(store, path)
        if stamp.is_encoded or stamp.size_bytes in (None, actual_bytes):
            key = _key(store, path, stamp)
            break
        if attempt == _ATTEMPTS - 1:
            raise StoreError(
                f"the transfer broke off after {actual_bytes:,} of {stamp.size_bytes:,} bytes.",
                where=printable_name(path),
                hint="Try again.",
            )
    if cache is not None and is_cacheable:
        target = target.rename(staged / str(actual_bytes))
        cache.commit(staged, key)
        stream = cache.open(key)
        if stream is not None:
            return stream
        # Another process evicted it already.
        return _fetch(store, path, stamp, key, None, cleanup)
    return target.open("rb")


def _current_stamp(store: Store, path: str) -> Stamp:
    try:
        return store.stamp(path)
    except FileNotFoundError as error:
        raise explain(error, store.scheme, where=printable_name(path)) from error


def _key(store: Store, path: str, stamp: Stamp, head_bytes: int | None = None) -> str:
    text = json.dumps([store.identity(path), stamp.size_bytes, stamp.version, head_bytes])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _file_cache() -> FileCache | None:
    """The cache of remote files; None if its directory cannot be written."""
    try:
        return FileCache(private_directory() / _SUBDIRECTORY, max_bytes=_max_bytes())
    except OSError:
        return None


def _max_bytes() -> int:
    text = os.environ.get(MAX_SIZE_VARIABLE, "")
    try:
        gib = float(text)
    except ValueError:
        return DEFAULT_MAX_BYTES
    return int(min(gib, _MOST_GIB) * (1 << 30)) if 0 <= gib < math.inf else DEFAULT_MAX_BYTES


_LAST_PARTS = 3
"""Keep the latest parts, because a digest reads them again."""


@contextmanager
def open_ranges(root: str, path: str, size_bytes: int) -> Iterator[BinaryIO]:
    """Open a remote file so that each read requests its bytes, and no others.

    The path is relative to the root, with forward slashes. The size is the listed one: what was
    appended since then is not read.

    Raises:
        StoreError: On reading: if the store denies access, cannot be reached, or sends other bytes
            than those requested.
    """
    yield cast("BinaryIO", _Ranges(Store(root), path, size_bytes))


class _Ranges(io.RawIOBase):
    def __init__(self, store: Store, path: str, size_bytes: int) -> None:
        self._store = store
        self._path = path
        self._size_bytes = size_bytes
        self._at = 0
        self._parts: deque[tuple[int, bytes]] = deque(maxlen=_LAST_PARTS)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size_bytes}[whence]
        self._at = origin + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size_bytes)
        content = self._part(self._at, end) if end > self._at else b""
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)

    def _part(self, start: int, end: int) -> bytes:
        for begin, content in self._parts:
            if begin <= start and end <= begin + len(content):
                return content[start - begin : end - begin]
        try:
            content = self._store.read_range(self._path, start, end)
        except FileNotFoundError as error:
            where = printable_name(self._path)
            raise explain(error, self._store.scheme, where=where) from error
        if len(content) != end - start:
            raise StoreError(
                f"the store sent {len(content):,} bytes instead of {end - start:,}.",
                where=printable_name(self._path),
                hint="Try again.",
            )
        self._parts.append((start, content))
        return content
