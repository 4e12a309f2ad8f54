"""Turns exceptions of a store's client into an error for the user, with a hint.

Exceptions are recognized by their class names and the status codes of the store's responses, so
that no client has to be installed.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

from tb_perfadvisor.errors import NothingFoundError, PerfAdvisorError, StoreError

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
_REGION = re.compile(r"expecting '([a-z0-9-]+)'")

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

    Args:
        error: The exception of the client.
        scheme: The URL's scheme.
        where: The URL, or the file's path relative to it.
        is_listing: Whether files were being listed rather than read.
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
