"""A server on loopback that keeps comments as the APIs of GitHub and GitLab do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread


class Server(HTTPServer):
    """Keeps comments."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.comments: list[dict[str, object]] = [{"id": 7, "body": "Looks good to me"}]
        self.requests: list[tuple[str, str, str]] = []
        """Methods, paths and tokens."""

    def variables(self, kind: str, directory: Path) -> dict[str, str]:
        """What a runner of `github` or `gitlab` sets for a job about change 42."""
        event = directory / "event.json"
        event.write_text('{"pull_request": {"number": 42}}', encoding="utf-8")
        url = f"http://127.0.0.1:{self.server_port}"
        return {
            "github": {
                "GITHUB_EVENT_PATH": str(event),
                "GITHUB_API_URL": url,
                "GITHUB_REPOSITORY": "me/repo",
            },
            "gitlab": {
                "CI_MERGE_REQUEST_IID": "42",
                "CI_API_V4_URL": url,
                "CI_PROJECT_ID": "3",
                "GITLAB_TOKEN": "secret",
            },
        }[kind]


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def _answer(self, method: str) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        token = self.headers.get("Authorization") or self.headers.get("PRIVATE-TOKEN") or ""
        self.server.requests.append((method, self.path, token))
        comments = self.server.comments
        if method == "POST":
            comments.append({"id": 8, "body": body["body"]})
        elif method in ("PATCH", "PUT"):
            (known,) = [each for each in comments if self.path.endswith(f"/{each['id']}")]
            known["body"] = body["body"]
        text = json.dumps(comments).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PATCH(self) -> None:
        self._answer("PATCH")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def serving() -> Iterator[Server]:
    """Serve on a free port."""
    with Server() as server:
        thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
