"""What requests say, and responses: JSON, errors as JSON, downloads, and the frontend's files."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from tensorboard.backend import http_util
from werkzeug import wrappers
from werkzeug.exceptions import HTTPException

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.plugin.catalog import Entry

STATIC_DIRECTORY = Path(__file__).resolve().parent.parent / "static"

# TensorBoard forbids content sniffing, so types must be exact. Other files are not served.
_CONTENT_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".map": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
    ".txt": "text/plain",
}


_KEPT_S = 365 * 24 * 3600
"""A year, the most that caches are asked to keep something (RFC 9111)."""


class ApiError(Exception):
    """An error response with an HTTP status."""

    def __init__(self, status: int, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.where = where
        self.hint = hint


class NotReady(Exception):  # noqa: N818 - no error
    """What is asked for is being made: a response that says how far it is."""

    def __init__(self, progress: dict[str, Any]) -> None:
        super().__init__()
        self.progress = progress


def read_body(request: wrappers.Request, most_bytes: int) -> bytes:
    """The body of a request; no more of it is read than it may have, whatever its headers say."""
    too_long = ApiError(413, f"the request has more than {most_bytes:,} bytes.")
    if (request.content_length or 0) > most_bytes:
        raise too_long
    content = b""
    try:
        while piece := request.stream.read(most_bytes + 1 - len(content)):
            content += piece
            if len(content) > most_bytes:
                raise too_long
    except (OSError, HTTPException) as error:
        raise ApiError(400, "the request ends too early, or its parts are damaged.") from error
    return content


def respond(
    request: wrappers.Request,
    content: Any,
    *,
    status: int = 200,
    content_type: str = "application/json",
    headers: list[tuple[str, str]] | None = None,
    kept_s: int = 0,
) -> wrappers.Response:
    """Respond with TensorBoard's security headers; encode anything but text and bytes as JSON.

    A browser may keep the answer for `kept_s` seconds.
    """
    if not isinstance(content, str | bytes):
        content = msgspec.json.encode(content)
    response: wrappers.Response = http_util.Respond(
        request, content, content_type, code=status, headers=headers, expires=kept_s
    )
    return response


def respond_error(
    request: wrappers.Request, error: ApiError | PerfAdvisorError, *, status: int = 422
) -> wrappers.Response:
    """Respond with an error in the form that the tab expects."""
    code = error.status if isinstance(error, ApiError) else status
    body = {"error": {"message": error.message, "where": error.where, "hint": error.hint}}
    headers = [("Allow", "GET, HEAD")] if code == 405 else None
    return respond(request, body, status=code, headers=headers)


def respond_file(
    request: wrappers.Request, name: str, directory: Path = STATIC_DIRECTORY
) -> wrappers.Response:
    """Respond with a file of the frontend bundle.

    The name is looked up in the directory's listing and never joined to a path.
    """
    try:
        files = {path.name: path for path in directory.iterdir() if path.is_file()}
    except OSError:
        files = {}
    content_type = _CONTENT_TYPES.get(Path(name).suffix)
    path = files.get(name)
    if path is None or content_type is None:
        if not files:
            hint = "Build it with `npm run build` in frontend/, or install a released package."
            raise ApiError(404, "the frontend bundle is not installed.", where="static", hint=hint)
        raise ApiError(404, "there is no such file.", where="static")
    content = path.read_bytes()
    # The address that TensorBoard's page loads names the content, so it never becomes stale.
    is_named = request.args.get("v") == _version_of(content)
    kept_s = _KEPT_S if is_named else 0
    return respond(request, content, content_type=content_type, kept_s=kept_s)


def bundle_address(directory: Path = STATIC_DIRECTORY) -> str:
    """The address of the bundle with the version of its content, if it is installed."""
    try:
        file = (directory / "index.js").stat()
        version = _bundle_version(directory, file.st_mtime_ns, file.st_size)
    except OSError:
        return "/static/index.js"
    return f"/static/index.js?v={version}"


@lru_cache(maxsize=1)
def _bundle_version(directory: Path, _mtime_ns: int, _size_bytes: int) -> str:
    return _version_of((directory / "index.js").read_bytes())


def _version_of(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()


def integer(request: wrappers.Request, name: str, default: int, least: int) -> int:
    """A whole number from the query."""
    text = request.args.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least or value > 2**62:
        raise ApiError(400, f"{name} must be a whole number of at least {least}.")
    return value


def optional_integer(request: wrappers.Request, name: str) -> int | None:
    """A whole number of at least 0 from the query; None if it is not there."""
    return integer(request, name, 0, 0) if name in request.args else None


def time_range(request: wrappers.Request, from_ns: int, to_ns: int) -> tuple[int, int]:
    """The range of time in the query, by default the one given."""
    from_ns = integer(request, "from_ns", from_ns, 0)
    to_ns = integer(request, "to_ns", max(to_ns, from_ns + 1), 0)
    if to_ns <= from_ns:
        raise ApiError(400, "to_ns must be larger than from_ns.")
    return from_ns, to_ns


def attachment(entry: Entry, ending: str) -> tuple[str, str]:
    """The header that names a download, with safe characters only."""
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{entry.run}_{entry.capture.session}").strip("._")
    return "Content-Disposition", f'attachment; filename="perf_advisor_{stem}{ending}"'
