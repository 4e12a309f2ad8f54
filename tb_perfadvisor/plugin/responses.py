"""HTTP responses: JSON, errors as JSON, and the files of the frontend bundle."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from tensorboard.backend import http_util
from werkzeug import wrappers

from tb_perfadvisor.errors import PerfAdvisorError

STATIC_DIRECTORY = Path(__file__).resolve().parent.parent / "static"

TAB_HEADER = "X-Perf-Advisor"
"""Sent by the tab with each request of its own; links in the tab don't send it."""

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


TOKEN = secrets.token_hex(16)
"""Part of the tab's links to what is made on request; changes when TensorBoard starts."""

# What each browser calls itself, and no page can change.
_BROWSER = "Mozilla/"


class ApiError(Exception):
    """An error response with an HTTP status."""

    def __init__(self, status: int, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.where = where
        self.hint = hint


def respond(
    request: wrappers.Request,
    content: Any,
    *,
    status: int = 200,
    content_type: str = "application/json",
    headers: list[tuple[str, str]] | None = None,
) -> wrappers.Response:
    """Respond with TensorBoard's security headers; encode anything but text and bytes as JSON."""
    if not isinstance(content, str | bytes):
        content = msgspec.json.encode(content)
    response: wrappers.Response = http_util.Respond(
        request, content, content_type, code=status, headers=headers
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

    Raises:
        ApiError: If there is no such file.
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
    return respond(request, path.read_bytes(), content_type=content_type)


def require_same_origin(request: wrappers.Request) -> None:
    """Refuse a request that a page of another site sent, before it starts or stops anything.

    Raises:
        ApiError: If another site sent it.
    """
    if is_cross_origin(request):
        hint = "Open the tab in TensorBoard."
        raise ApiError(403, "requests from other sites are not allowed.", hint=hint)


def is_cross_origin(request: wrappers.Request) -> bool:
    """Whether a page of another site sent the request; programs other than browsers do not count.

    Browsers say so in `Sec-Fetch-Site`, which also works behind proxies that rewrite the host. Over
    plain http from another host they send only `Origin` or `Referer`, which are useless behind such
    a proxy. There the tab proves itself: by a header, which other sites can send only after a
    preflight request, or in its links by a token, which they cannot read. A browser that sends
    none of these may follow another site's wish.
    """
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site not in ("same-origin", "none")
    if request.headers.get(TAB_HEADER) or request.args.get("token") == TOKEN:
        return False
    origin = request.headers.get("Origin") or request.headers.get("Referer")
    if origin is None:
        return request.headers.get("User-Agent", "").startswith(_BROWSER)
    hosts = {request.host, request.headers.get("X-Forwarded-Host", "")} - {""}
    return urlsplit(origin).netloc not in hosts
