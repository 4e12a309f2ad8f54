"""Answers of the routes: JSON, errors as JSON, and the bundle's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from tensorboard.backend import http_util
from werkzeug import wrappers

from tb_perfadvisor.errors import PerfAdvisorError

STATIC_DIRECTORY = Path(__file__).resolve().parent.parent / "static"

OWN_HEADER = "X-Perf-Advisor"
"""Sent by the tab with what changes something."""

# TensorBoard forbids sniffing, so each type must be right; what is not here is not served.
_CONTENT_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".map": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
    ".txt": "text/plain",
}


class ApiError(Exception):
    """An answer that is none, with its status."""

    def __init__(self, status: int, message: str, *, where: str = "", hint: str = "") -> None:
        """Keep what the tab shows: what went wrong, where, and what to do next."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.where = where
        self.hint = hint


def answer(
    request: wrappers.Request,
    content: Any,
    *,
    status: int = 200,
    content_type: str = "application/json",
    headers: list[tuple[str, str]] | None = None,
) -> wrappers.Response:
    """An answer with TensorBoard's security headers; anything but text and bytes as JSON."""
    if not isinstance(content, str | bytes):
        content = msgspec.json.encode(content)
    response: wrappers.Response = http_util.Respond(
        request, content, content_type, code=status, headers=headers
    )
    return response


def answer_error(
    request: wrappers.Request, error: ApiError | PerfAdvisorError, *, status: int = 422
) -> wrappers.Response:
    """An error as the tab expects it."""
    code = error.status if isinstance(error, ApiError) else status
    body = {"error": {"message": error.message, "where": error.where, "hint": error.hint}}
    headers = [("Allow", "GET, HEAD")] if code == 405 else None
    return answer(request, body, status=code, headers=headers)


def answer_static(
    request: wrappers.Request, name: str, directory: Path = STATIC_DIRECTORY
) -> wrappers.Response:
    """A file of the bundle, if it is one of those that lie there: names are never joined.

    Raises:
        ApiError: When there is no such file.
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
            raise ApiError(404, "the tab's bundle is not installed.", where="static", hint=hint)
        raise ApiError(404, "there is no such file.", where="static")
    return answer(request, path.read_bytes(), content_type=content_type)


def is_cross_origin(request: wrappers.Request) -> bool:
    """Whether another site's page sent the request; a program that is no browser did not.

    Browsers tell in `Sec-Fetch-Site`, which also holds behind proxies that rewrite the host. On
    plain http to another machine they send only `Origin`, which such a proxy makes useless: there
    the tab's own header counts, which a page of another site may send only after asking us.
    """
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = request.headers.get("Origin")
    if origin is None or request.headers.get(OWN_HEADER):
        return False
    hosts = {request.host, request.headers.get("X-Forwarded-Host", "")} - {""}
    return urlsplit(origin).netloc not in hosts
