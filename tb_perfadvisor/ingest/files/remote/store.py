"""One root in a remote store, through fsspec."""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from msgspec import Struct

from tb_perfadvisor.errors import PerfAdvisorError, UsageError
from tb_perfadvisor.ingest.files.remote.refusals import (
    GCS,
    S3,
    explain,
    is_missing_bucket,
    is_without_credentials,
)

_T = TypeVar("_T")

_EXTRAS = {**dict.fromkeys(S3, "s3"), **dict.fromkeys(GCS, "gcs")}
# Buckets that could be read without credentials when there were none.
_public: set[str] = set()


class Stamp(Struct, frozen=True):
    """What a store says of the state of a file."""

    size_bytes: int | None
    """None where the store does not tell."""
    mtime_ns: int
    version: str
    """Entity tag or generation, else the time of the last change; empty where it tells neither."""
    is_encoded: bool = False
    """Whether the store undoes a compression while sending: the size is then another."""


class Store:
    """A directory or a file behind a URL."""

    def __init__(self, url: str) -> None:
        """Open the URL's kind of store; nothing is asked of it yet.

        Raises:
            UsageError: When the URL's kind cannot be opened here.
        """
        self.url = url if url.endswith("://") else url.rstrip("/")
        self.scheme = url.split(":", 1)[0].lower()
        self._bucket = "/".join(self.url.split("/")[:3])
        self.filesystem, self.base = self._connect(is_anonymous=self._bucket in _public)

    def ask(
        self, question: Callable[[Any], _T], *, where: str = "", is_listing: bool = False
    ) -> _T:
        """Put a question to the file system.

        Without credentials it is put a second time as anybody might, for public buckets.

        Args:
            question: Called with fsspec's file system.
            where: The file in question; the URL by default.
            is_listing: For the error's words: whether files are listed, or one is read.

        Raises:
            FileNotFoundError: When it is about something that is not there.
            PerfAdvisorError: When the store refuses, or cannot be reached.
        """
        try:
            return question(self.filesystem)
        except Exception as error:
            failure = error
        if self.scheme in S3 and self._bucket not in _public and is_without_credentials(failure):
            anonymous, _ = self._connect(is_anonymous=True)
            with suppress(Exception):
                answer = question(anonymous)
                _public.add(self._bucket)
                self.filesystem = anonymous
                return answer
        if isinstance(failure, FileNotFoundError) and not is_missing_bucket(failure):
            raise failure
        if isinstance(failure, PerfAdvisorError):
            raise failure
        raise explain(
            failure, self.scheme, where=where or self.url, is_listing=is_listing
        ) from failure

    def full_path(self, path: str) -> str:
        """A path below the root as the file system takes it."""
        return f"{self.base.rstrip('/')}/{path}" if self.base.strip("/") else self.base + path

    def identity(self, path: str) -> str:
        """A name for a file that is the same from whatever root it is seen."""
        return f"{self.url} {path}" if "::" in self.url else f"{self.scheme} {self.full_path(path)}"

    def stamp(self, path: str) -> Stamp:
        """What the store says of one file.

        Raises:
            FileNotFoundError: When there is none.
            PerfAdvisorError: When the store refuses, or cannot be reached.
        """
        full = self.full_path(path)
        return stamp_of(self.ask(lambda filesystem: filesystem.info(full), where=path))

    def head(self, path: str, head_bytes: int) -> bytes:
        """The first bytes of a file, in one request where the store can.

        Raises:
            FileNotFoundError: When there is no such file.
            PerfAdvisorError: When the store refuses, or cannot be reached.
        """
        full = self.full_path(path)

        def read(filesystem: Any) -> bytes:
            if self.scheme in GCS:
                # Its own `cat_file` asks twice for the size before it reads.
                headers = {"Range": f"bytes=0-{head_bytes - 1}"}
                content = filesystem.call("GET", filesystem.url(full), headers=headers)[1]
            else:
                content = filesystem.cat_file(full, start=0, end=head_bytes)
            return bytes(content[:head_bytes])  # some send all whatever is asked for

        return self.ask(read, where=path)

    def download(self, path: str, target: str) -> None:
        """Write a file to the disk.

        Raises:
            FileNotFoundError: When there is no such file.
            PerfAdvisorError: When the store refuses, cannot be reached, or breaks off.
        """
        full = self.full_path(path)
        self.ask(lambda filesystem: filesystem.get_file(full, target), where=path)

    def _connect(self, *, is_anonymous: bool) -> tuple[Any, str]:
        import fsspec

        options: dict[str, Any] = {}
        if self.scheme in S3 + GCS:
            # What was listed a while ago would be taken for what there is.
            options["use_listings_cache"] = False
        elif "::" in self.url:
            # Archives are read when they are opened, and would be what they were for ever.
            options["skip_instance_cache"] = True
        if is_anonymous:
            options["anon"] = True
        try:
            if self.scheme in GCS:
                return _google(options), self.url.split("://", 1)[1]
            filesystem, base = fsspec.core.url_to_fs(self.url, **options)
            filesystem.invalidate_cache()
        except (ImportError, ValueError, TypeError) as error:
            raise _unusable(self.scheme, self.url, error) from error
        except Exception as error:
            # Some connect at once, and archives are read.
            raise explain(error, self.scheme, where=self.url, is_listing=True) from error
        return filesystem, str(base)


def stamp_of(info: dict[str, Any]) -> Stamp:
    """A stamp from what fsspec calls a file's info: each store has its own names for things."""
    mtime_ns = 0
    for key in ("mtime", "updated", "LastModified", "last_modified", "modified", "created"):
        moment = _moment_ns(info.get(key))
        if moment:
            mtime_ns = moment
            break
    version = next(
        (
            str(info[key])
            for key in ("generation", "ETag", "etag", "Content-MD5", "Last-Modified")
            if info.get(key)
        ),
        str(mtime_ns) if mtime_ns else "",
    )
    size = info.get("size")
    is_encoded = info.get("contentEncoding") == "gzip"
    return Stamp(int(size) if size is not None else None, mtime_ns, version, is_encoded)


def _moment_ns(value: Any) -> int:
    if isinstance(value, str):
        try:
            value = datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            return 0
    if isinstance(value, datetime.datetime):
        value = value.timestamp()
    return int(value * 1e9) if isinstance(value, int | float) else 0


def _google(options: dict[str, Any]) -> Any:
    """Google Cloud Storage, by its plain interface.

    The one for zonal buckets, which gcsfs prefers, first asks over gRPC what kind of bucket it
    has, and waits a minute where a firewall lets no gRPC pass.
    """
    # It logs the traceback of whatever it raises; we say in a sentence what is wrong.
    logger = logging.getLogger("gcsfs")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
    if os.environ.get("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"):
        import fsspec

        return fsspec.filesystem("gs", **options)
    from gcsfs.core import GCSFileSystem

    return GCSFileSystem(**options)


def _unusable(scheme: str, url: str, error: Exception) -> UsageError:
    extra = _EXTRAS.get(scheme)
    if extra and isinstance(error, ImportError):
        return UsageError(
            f"{scheme}:// needs a package that is not installed or does not work ({error}).",
            where=url,
            hint=f"pip install 'tb_perfadvisor[{extra}]'",
        )
    return UsageError(f"{scheme}:// cannot be opened here: {error}", where=url)
