"""A store of remote files, and what it refuses.

Turns exceptions of a store's client into an error for the user, with a hint.

Exceptions are recognized by their class names and the status codes of the store's responses, so
that no client has to be installed.
"""

from __future__ import annotations

import datetime
import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from msgspec import Struct

from tb_perfadvisor.errors import NothingFoundError, PerfAdvisorError, StoreError, UsageError
from tb_perfadvisor.extras import install_command
from tb_perfadvisor.patterns import regex

S3 = ("s3", "s3a")
GCS = ("gs", "gcs")

_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError"}
_STALE_CREDENTIALS = {
    *("ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "InvalidToken"),
    *("SignatureDoesNotMatch", "TokenRefreshRequired", "RequestTimeTooSkewed"),
    *("RefreshError", "NonRetryableError", "TokenRetrievalError", "SSOTokenLoadError"),
    *("UnauthorizedSSOTokenError", "CredentialRetrievalError", "ProfileNotFound"),
}
_WRONG_REGION = {
    *("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"),
    *("301", "307"),
}
_FORBIDDEN = {"AccessDenied", "AllAccessDisabled", "AccountProblem", "403"}
_BUSY = {"SlowDown", "ServiceUnavailable", "TooManyRequests", "429", "503"}
_UNREACHABLE = {
    *("EndpointConnectionError", "ConnectTimeoutError", "ReadTimeoutError", "ProxyError"),
    *("ConnectionClosedError", "HTTPClientError", "SSLError", "ClientConnectorError"),
    *("ServerDisconnectedError", "ClientOSError", "TransportError", "gaierror"),
    *("FSTimeoutError", "TimeoutError", "ConnectionError", "ConnectionRefusedError"),
}
_BROKEN_OFF = {
    *("ClientPayloadError", "ContentLengthError", "IncompleteReadError", "IncompleteRead"),
    *("ResponseStreamingError", "ChecksumError", "ConnectionResetError"),
}
_REGION = regex(r"expecting '([a-z0-9-]+)'")

_SIGN_IN = {
    **dict.fromkeys(
        S3,
        "Run `aws configure` or `aws sso login`, or set AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY.",
    ),
    **dict.fromkeys(
        GCS,
        "Run `gcloud auth application-default login`, or let GOOGLE_APPLICATION_CREDENTIALS name "
        "the key file of a service account.",
    ),
}
_MAY_LIST = {
    **dict.fromkeys(S3, "Grant s3:ListBucket on the bucket and s3:GetObject on its objects."),
    **dict.fromkeys(
        GCS,
        "Grant roles/storage.objectViewer on the bucket: storage.objects.list and "
        "storage.objects.get.",
    ),
}
_MAY_READ = {
    **dict.fromkeys(
        S3, "Grant s3:GetObject on it, and kms:Decrypt if a key of yours encrypts the bucket."
    ),
    **dict.fromkeys(GCS, "Grant roles/storage.objectViewer on the bucket: storage.objects.get."),
}
_ELSEWHERE = "Give the store's credentials to fsspec: see its page on configuration."


def is_without_credentials(error: BaseException) -> bool:
    """Whether a client found no credentials, which a public bucket does not need."""
    return not _NO_CREDENTIALS.isdisjoint(_codes(error))


def is_missing_bucket(error: BaseException) -> bool:
    """Whether the bucket does not exist."""
    return "NoSuchBucket" in _codes(error)


def explain(
    error: BaseException, scheme: str, *, where: str, is_listing: bool = False
) -> PerfAdvisorError:
    """The error for the user.

    `where` is the URL, or the file's path relative to it.
    """
    codes = _codes(error)
    text = " ".join(str(cause) for cause in _chain(error))

    def refused(message: str, hint: str) -> StoreError:
        return StoreError(message, where=where, hint=hint)

    if "NoSuchBucket" in codes:
        return NothingFoundError("there is no such bucket.", where=where, hint=_look_at(scheme))
    if codes & _NO_CREDENTIALS or "Anonymous caller" in text:
        return refused("the store wants credentials, and there are none.", _sign_in(scheme))
    if codes & _STALE_CREDENTIALS or "401" in codes:
        names = ", ".join(sorted(codes & _STALE_CREDENTIALS)) or "401"
        return refused(f"the store does not accept the credentials ({names}).", _sign_in(scheme))
    if codes & _WRONG_REGION:
        match = _REGION.search(text)
        region = match.group(1) if match else "REGION"
        return refused(
            "the bucket is in another region than the one that is set.",
            f"Set AWS_DEFAULT_REGION={region}.",
        )
    if "requester pays" in text:
        return refused(
            "the bucket is one whose requester pays.",
            f"Set FSSPEC_{scheme.upper()}_REQUESTER_PAYS=true to agree.",
        )
    if codes & _FORBIDDEN or isinstance(error, PermissionError) or text.startswith("Forbidden"):
        if is_listing:
            hint = _MAY_LIST.get(scheme, _ELSEWHERE)
            return refused("the credentials do not allow to list the files.", hint)
        return refused(
            "the credentials do not allow to read the file.", _MAY_READ.get(scheme, _ELSEWHERE)
        )
    if isinstance(error, FileNotFoundError):
        if is_listing:
            return NothingFoundError("there is no such file or directory.", where=where)
        return refused("the file is no longer there.", "Look again what there is.")
    if codes & _BUSY:
        return refused("the store is too busy to answer.", "Try again in a minute.")
    if codes & _BROKEN_OFF:
        return refused("the transfer broke off.", "Try again.")
    if codes & _UNREACHABLE:
        return refused("the store cannot be reached.", _look_at(scheme, "the network, the proxy"))
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return refused(
            "there is no room for the file in the cache directory.",
            "Let PERFADVISOR_CACHE_DIR name a directory on a larger disk.",
        )
    names = ", ".join(sorted(code for code in codes if code not in _PLAIN)) or "an unknown error"
    return refused(f"the store failed ({names}).", "Try again.")


# Uninformative names, left out if there are others.
_PLAIN = {"OSError", "Exception", "ClientError", "ValueError", "RuntimeError"}


def _sign_in(scheme: str) -> str:
    return _SIGN_IN.get(scheme, _ELSEWHERE)


def _look_at(scheme: str, things: str = "its name") -> str:
    endpoint = {"s3": "AWS_ENDPOINT_URL", "gs": "STORAGE_EMULATOR_HOST"}.get(scheme)
    return f"Check {things}" + (f" and, if it is set, {endpoint}." if endpoint else ".")


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _codes(error: BaseException) -> set[str]:
    """Class names of the exception and its causes, and status codes of responses."""
    codes = set()
    for cause in _chain(error):
        codes |= {kind.__name__ for kind in type(cause).__mro__[:-2]}
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            codes.add(str(response.get("Error", {}).get("Code", "")))
        status = getattr(cause, "status" if hasattr(cause, "status") else "code", None)
        if isinstance(status, int | str):
            codes.add(str(status))
    return codes - {""}


_T = TypeVar("_T")

_EXTRAS = {**dict.fromkeys(S3, "s3"), **dict.fromkeys(GCS, "gcs")}
# Buckets that were read anonymously because there were no credentials.
_public: set[str] = set()


class Stamp(Struct, frozen=True):
    """A file's size and version in the store."""

    size_bytes: int | None
    """None if the store does not report it."""
    mtime_ns: int
    version: str
    """Entity tag or generation, otherwise the time of the last change; empty without either."""
    is_encoded: bool = False
    """Whether the store decompresses the file while sending, so the size differs."""


class Store:
    """A directory or a file behind a URL."""

    def __init__(self, url: str) -> None:
        """Open the store without a request."""
        self.url = url if url.endswith("://") else url.rstrip("/")
        self.scheme = url.split(":", 1)[0].lower()
        self._bucket = "/".join(self.url.split("/")[:3])
        self.filesystem, self.base = self._connect(is_anonymous=self._bucket in _public)

    def ask(self, request: Callable[[Any], _T], *, where: str = "", is_listing: bool = False) -> _T:
        """Run a request on the file system.

        If there are no credentials, try again anonymously: the bucket may be public.

        `request` is called with fsspec's file system. Error messages name `where`, by default the
        URL.

        Raises:
            FileNotFoundError: If the path does not exist.
            PerfAdvisorError: If the store denies access or cannot be reached.
        """
        try:
            return request(self.filesystem)
        except Exception as error:
            failure = error
        if self.scheme in S3 and self._bucket not in _public and is_without_credentials(failure):
            anonymous, _ = self._connect(is_anonymous=True)
            with suppress(Exception):
                response = request(anonymous)
                _public.add(self._bucket)
                self.filesystem = anonymous
                return response
        if isinstance(failure, FileNotFoundError) and not is_missing_bucket(failure):
            raise failure
        if isinstance(failure, PerfAdvisorError):
            raise failure
        raise explain(
            failure, self.scheme, where=where or self.url, is_listing=is_listing
        ) from failure

    def full_path(self, path: str) -> str:
        """A path below the root, in the form that the file system expects."""
        return f"{self.base.rstrip('/')}/{path}" if self.base.strip("/") else self.base + path

    def identity(self, path: str) -> str:
        """A name for a file that does not depend on the root."""
        return f"{self.url} {path}" if "::" in self.url else f"{self.scheme} {self.full_path(path)}"

    def stamp(self, path: str) -> Stamp:
        """Query a file's size and version.

        Raises:
            FileNotFoundError: If the file does not exist.
            PerfAdvisorError: If the store denies access or cannot be reached.
        """
        full = self.full_path(path)
        return stamp_of(self.ask(lambda filesystem: filesystem.info(full), where=path))

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Read a part of a file, in one request if the store supports it.

        `end` is the position after the last byte; it may be beyond the end of the file. From a
        store that ignores ranges, the whole file is returned.

        Raises:
            FileNotFoundError: If the file does not exist.
            PerfAdvisorError: If the store denies access or cannot be reached.
        """
        full = self.full_path(path)

        def read(filesystem: Any) -> bytes:
            if self.scheme in GCS:
                # `cat_file` of gcsfs requests the size twice before it reads.
                headers = {"Range": f"bytes={start}-{end - 1}"}
                return bytes(filesystem.call("GET", filesystem.url(full), headers=headers)[1])
            return bytes(filesystem.cat_file(full, start=start, end=end))

        return self.ask(read, where=path)

    def head(self, path: str, head_bytes: int) -> bytes:
        """Read the first bytes of a file; see `read_range`."""
        return self.read_range(path, 0, head_bytes)[:head_bytes]

    def download(self, path: str, target: str) -> None:
        """Download a file.

        Raises:
            FileNotFoundError: If the file does not exist.
            PerfAdvisorError: If the store denies access or cannot be reached, or the transfer
                breaks off.
        """
        full = self.full_path(path)
        self.ask(lambda filesystem: filesystem.get_file(full, target), where=path)

    def _connect(self, *, is_anonymous: bool) -> tuple[Any, str]:
        import fsspec

        options: dict[str, Any] = {}
        if self.scheme in S3 + GCS:
            # An old listing may be outdated.
            options["use_listings_cache"] = False
        elif "::" in self.url:
            # A cached instance would never notice that the archive changed.
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
            # Some file systems connect immediately, or read an archive.
            raise explain(error, self.scheme, where=self.url, is_listing=True) from error
        return filesystem, str(base)


def stamp_of(info: dict[str, Any]) -> Stamp:
    """A stamp from fsspec's info about a file, whose keys differ between stores."""
    mtime_ns = 0
    for key in ("mtime", "updated", "LastModified", "last_modified", "modified", "created"):
        mtime_ns = _unix_ns(info.get(key))
        if mtime_ns:
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


def _unix_ns(value: Any) -> int:
    if isinstance(value, str):
        try:
            value = datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            return 0
    if isinstance(value, datetime.datetime):
        value = value.timestamp()
    return int(value * 1e9) if isinstance(value, int | float) else 0


def _google(options: dict[str, Any]) -> Any:
    """Google Cloud Storage through its JSON API.

    The class for zonal buckets, which gcsfs prefers, first queries the type of bucket over gRPC,
    and waits a minute if a firewall blocks gRPC.
    """
    # gcsfs logs a traceback for every error; we report errors in one sentence.
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
            hint=install_command(extra),
        )
    return UsageError(f"{scheme}:// cannot be opened here: {error}", where=url)
