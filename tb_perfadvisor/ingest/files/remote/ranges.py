"""A remote file of which only the wanted parts are requested."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

from tb_perfadvisor.errors import StoreError
from tb_perfadvisor.ingest.files.remote.refusals import explain
from tb_perfadvisor.ingest.files.remote.store import Store
from tb_perfadvisor.plain_text import printable_name

_LAST_PARTS = 3
"""Keep the latest parts, because a digest reads them again."""


@contextmanager
def open_ranges(root: str, path: str, size_bytes: int) -> Iterator[BinaryIO]:
    """Open a remote file so that each read requests its bytes, and no others.

    Args:
        root: The URL that the path is relative to.
        path: The path, with forward slashes.
        size_bytes: The listed size. What was appended since then is not read.

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
