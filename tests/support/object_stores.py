"""Object stores on the loopback interface that record requests and can misbehave."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit
from urllib.request import Request, urlopen

S3_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    # Ignore credentials of this machine and of clouds.
    "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_MAX_ATTEMPTS": "1",
}
GCS_ENVIRONMENT = {
    "GOOGLE_APPLICATION_CREDENTIALS": "",
    "CLOUDSDK_CONFIG": "/nonexistent",
    "NO_GCE_CHECK": "true",
    "FSSPEC_GS_TOKEN": "anon",
}


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    query: Mapping[str, str]


@dataclass
class Answer:
    """A response that replaces the store's."""

    status: int
    body: bytes = b""
    content_type: str = "application/xml"
    headers: Mapping[str, str] = field(default_factory=dict)


Misbehavior = Callable[[Asked], "Answer | Cut | None"]


@dataclass(frozen=True)
class Cut:
    """Send only the beginning of the store's response."""

    share: float
    is_announced: bool
    """Whether the length that is announced is the cut one, as a careless proxy would have it."""


class ObjectStore:
    """A running store."""

    def __init__(self, scheme: str, url: str) -> None:
        self.scheme = scheme
        self.url = url
        """Of its interface."""
        self.requests: list[Asked] = []
        self.buckets: set[str] = set()
        self._misbehavior: Misbehavior | None = None

    def put(self, bucket: str, key: str, content: bytes) -> None:
        """Store an object; its bucket is created if necessary."""
        raise NotImplementedError

    def wipe(self) -> None:
        """Delete all objects."""
        raise NotImplementedError

    def misbehave(self, how: Misbehavior | None) -> None:
        """Replace the responses for which `how` returns a replacement."""
        self._misbehavior = how

    def take(self, asked: Asked) -> Answer | Cut | None:
        """Record a request; returns a replacement for the response, if any."""
        self.requests.append(asked)
        return self._misbehavior(asked) if self._misbehavior else None

    def asked(self) -> list[str]:
        """The requests since the last call, abbreviated: method and target."""
        requests = [_in_short(request) for request in self.requests]
        self.requests.clear()
        return requests


def _in_short(asked: Asked) -> str:
    path = unquote(asked.path)
    if "list-type" in asked.query or path.endswith("/o"):
        return "LIST " + asked.query.get("prefix", "")
    return f"{asked.method} {path.rpartition('/')[2]}"


def s3_error(status: int, code: str, message: str = "No.", **more: str) -> Answer:
    """An error response of S3."""
    extra = "".join(f"<{name}>{value}</{name}>" for name, value in more.items())
    body = f"<Error><Code>{code}</Code><Message>{message}</Message>{extra}</Error>"
    return Answer(status, b'<?xml version="1.0" encoding="UTF-8"?>\n' + body.encode())


def gcs_error(status: int, message: str) -> Answer:
    """An error response of Google Cloud Storage."""
    body = {"error": {"code": status, "message": message}}
    return Answer(status, json.dumps(body).encode(), "application/json")


class _S3(ObjectStore):
    def put(self, bucket: str, key: str, content: bytes) -> None:
        if bucket not in self.buckets:
            self.buckets.add(bucket)
            _send("PUT", f"{self.url}/{bucket}", Authorization=_SIGNED)
        _send("PUT", f"{self.url}/{bucket}/{quote(key)}", content, Authorization=_SIGNED)

    def wipe(self) -> None:
        self.buckets.clear()
        _send("POST", f"{self.url}/moto-api/reset")


class _GoogleCloudStorage(ObjectStore):
    def put(self, bucket: str, key: str, content: bytes) -> None:
        if bucket not in self.buckets:
            self.buckets.add(bucket)
            body = json.dumps({"name": bucket}).encode()
            _send("POST", f"{self.url}/storage/v1/b", body, content_type="application/json")
        query = urlencode({"uploadType": "media", "name": key})
        _send("POST", f"{self.url}/upload/storage/v1/b/{bucket}/o?{query}", content)

    def wipe(self) -> None:
        self.buckets.clear()
        _send("GET", f"{self.url}/wipe")


# Not verified, but a request without credentials is anonymous.
_SIGNED = "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request"


def _send(method: str, url: str, content: bytes = b"", **headers: str) -> None:
    named = {name.replace("_", "-").title(): value for name, value in headers.items()}
    named.setdefault("Content-Type", "application/octet-stream")
    request = Request(url, data=content, method=method, headers=named)
    with urlopen(request, timeout=30) as answer:
        answer.read()


@contextmanager
def s3_server() -> Iterator[ObjectStore]:
    """Moto's S3, in a thread."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    application = DomainDispatcherApplication(create_backend_app)

    def recorded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        query = {name: values[0] for name, values in parse_qs(environ["QUERY_STRING"]).items()}
        asked = Asked(environ["REQUEST_METHOD"], environ["PATH_INFO"], query)
        answer = store.take(asked) if asked.method in ("GET", "HEAD") else None
        if isinstance(answer, Answer):
            headers = {"Content-Type": answer.content_type, **answer.headers}
            headers["Content-Length"] = str(len(answer.body))
            start_response(f"{answer.status} No", list(headers.items()))
            return [] if asked.method == "HEAD" else [answer.body]
        if isinstance(answer, Cut):
            return _cut(application, environ, start_response, answer)
        return application(environ, start_response)

    class Quiet(WSGIRequestHandler):
        def log(self, *_: object) -> None:
            pass

    server = make_server("127.0.0.1", 0, recorded, threaded=True, request_handler=Quiet)
    store = _S3("s3", f"http://127.0.0.1:{server.server_port}")
    with _running(server):
        store.wipe()
        yield store


def _cut(
    application: Any, environ: dict[str, Any], start_response: Callable[..., Any], cut: Cut
) -> list[bytes]:
    """The beginning of a response, after which the server closes the connection."""
    responses: list[Any] = []
    body = b"".join(application(environ, lambda *arguments: responses.append(arguments)))
    status, headers = responses[0][:2]
    part = body[: int(len(body) * cut.share)]
    length = len(part) if cut.is_announced else len(body)
    others = [(name, value) for name, value in headers if name.lower() != "content-length"]
    start_response(status, [*others, ("Content-Length", str(length))])
    return [part]


@contextmanager
def gcs_server() -> Iterator[ObjectStore]:
    """The emulator of Google Cloud Storage, in a thread."""
    from gcp_storage_emulator.server import RequestHandler
    from gcp_storage_emulator.storage import Storage

    class Recording(RequestHandler):  # type: ignore[misc] # it has no types
        def do_GET(self) -> None:  # noqa: N802 - the base's name
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            answer = store.take(Asked("GET", parts.path, query))
            if isinstance(answer, Answer):
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.content_type)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)
            else:
                super().do_GET()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            # gcsfs sends two requests at once and may drop one. The base prints a traceback.
            if not isinstance(sys.exc_info()[1], ConnectionError):
                super().handle_error(request, client_address)

    storage = Storage(use_memory_fs=True)
    server = Server(("127.0.0.1", 0), partial(Recording, storage))
    store = _GoogleCloudStorage("gs", f"http://127.0.0.1:{server.server_port}")
    with _running(server):
        yield store


@contextmanager
def _running(server: Any) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
