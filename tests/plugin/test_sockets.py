"""Requests as they come over a socket: bodies without an end, and pages under other names."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import msgspec
import pytest
from werkzeug.serving import make_server

from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.plugin.routes.documents import _MOST_BYTES
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.testing import draw, run_of
from tests.support.served_tab import BASE, Behave, Tab
from tests.support.waiting import eventually

SLOW = """
    cell 1ms
    step   |..........|..........|..........|
    main   |DDDDoo....|DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|.....KKKKK|
"""
NOTE = b'{"finding": "input-stall", "wont_fix": true, "text": "It is meant."}'
TUNNEL = "a1b2-203-0-113-7.ngrok-free.app"


class Server:
    """The tab behind the server that TensorBoard uses, on a free port."""

    def __init__(self, tab: Tab) -> None:
        self.tab = tab
        self.server = make_server("127.0.0.1", 0, tab.app, threaded=True)
        self.port: int = self.server.port
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
        self.tab.plugin.close()
        self.tab.queue.close()

    def send(
        self, method: str, path: str, headers: dict[str, str], body: bytes = b""
    ) -> tuple[int, Any]:
        """Send a request, and no more than that, until the answer is there."""
        lines = [f"{method} {BASE}/api/v1/{path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
            answer = HTTPResponse(connection, method=method)
            answer.begin()
            return answer.status, json.loads(answer.read())

    def page(self, host: str, origin: str | None = None, client: str = "tab") -> dict[str, str]:
        """What a browser sends for a page of the tab: from another host, no `Sec-Fetch-Site`."""
        return {
            "Host": host,
            "Origin": origin or f"http://{host}",
            "User-Agent": "Mozilla/5.0",
            "X-Perf-Advisor": client,
        }

    def note(self, headers: dict[str, str], body: bytes = NOTE) -> tuple[int, Any]:
        length = {"Content-Length": str(len(body))}
        path = f"captures/{self.tab.only_id()}/note"
        return self.send("POST", path, {**headers, **length}, body)

    def cancel(self, headers: dict[str, str]) -> tuple[int, Any]:
        path = f"captures/{self.tab.only_id()}/cancel"
        return self.send("POST", path, {**headers, "Content-Length": "0"})


def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **flags: Any) -> Server:
    """A server with one analyzed capture."""
    monkeypatch.setenv("PERFADVISOR_DATA_DIR", str(tmp_path / "data"))
    tab = Tab(tmp_path, monkeypatch, **flags)
    tab.put("run")
    report = build_report(analyze_run(run_of(draw(SLOW)), Config()), Config())
    tab.store(tab.only_id(), report__json=msgspec.json.encode(report))
    return Server(tab)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = serve(tmp_path, monkeypatch)
    yield made
    made.close()


@pytest.fixture
def allowing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = serve(tmp_path, monkeypatch, perfadvisor_write_hosts=f"gpu-box, https://{TUNNEL}")
    yield made
    made.close()


# --- bodies ---------------------------------------------------------------------------------------


def test_a_body_without_an_end_is_refused_when_it_is_too_long(server: Server) -> None:
    """The answer comes while the body is still being sent: nothing waits for its end."""
    headers = {**server.page(f"127.0.0.1:{server.port}"), "Transfer-Encoding": "chunked"}
    path = f"captures/{server.tab.only_id()}/note"
    for beginning in (
        b"%x\r\n" % (400 << 20) + b"x" * (_MOST_BYTES + 1),  # one chunk of 400 MiB
        b"1000\r\n" + b"x" * 0x1000 + b"\r\n" + b"4000\r\n" + b"x" * (_MOST_BYTES + 1 - 0x1000),
    ):
        status, answer = server.send("POST", path, headers, beginning)
        assert status == 413
        assert answer["error"]["message"] == "the request has more than 16,384 bytes."


def test_a_body_in_chunks_is_a_note(server: Server) -> None:
    headers = {**server.page(f"127.0.0.1:{server.port}"), "Transfer-Encoding": "chunked"}
    body = b"".join(b"%x\r\n%s\r\n" % (1, NOTE[at : at + 1]) for at in range(len(NOTE)))
    path = f"captures/{server.tab.only_id()}/note"
    status, answer = server.send("POST", path, headers, body + b"0\r\n\r\n")
    assert (status, answer) == (200, {"wont_fix": True, "text": "It is meant."})


@pytest.mark.parametrize("body", [b"zz\r\n", b"-5\r\n", b"2\r\nabc\r\n", b"\r\n"])
def test_damaged_chunks_are_no_bug(server: Server, body: bytes) -> None:
    headers = {**server.page(f"127.0.0.1:{server.port}"), "Transfer-Encoding": "chunked"}
    path = f"captures/{server.tab.only_id()}/note"
    assert server.send("POST", path, headers, body)[0] == 400


def test_a_length_beyond_the_limit_is_refused_before_the_body(server: Server) -> None:
    headers = {**server.page(f"127.0.0.1:{server.port}"), "Content-Length": str(400 << 20)}
    path = f"captures/{server.tab.only_id()}/note"
    assert server.send("POST", path, headers)[0] == 413


def test_a_body_that_nobody_may_send_is_not_read(server: Server) -> None:
    headers = {**server.page("evil.example"), "Transfer-Encoding": "chunked"}
    path = f"captures/{server.tab.only_id()}/note"
    assert server.send("POST", path, headers)[0] == 403


# --- names of pages -------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "tb.localhost", "127.8.8.8"])
def test_pages_at_loopback_names_write(server: Server, host: str) -> None:
    headers = server.page(f"{host}:{server.port}")
    assert server.note(headers)[0] == 200
    assert server.cancel(headers) == (200, {"is_canceled": False})


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.5"]
)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"Sec-Fetch-Site": "same-origin"},
        {"X-Forwarded-Host": "localhost"},
        {"Referer": "http://localhost/"},
        {"Origin": "null"},
        {"Origin": ""},
    ],
)
def test_a_page_whose_name_was_made_to_lead_here_writes_nothing(
    server: Server, host: str, more: dict[str, str]
) -> None:
    """DNS rebinding: for the browser, the page is of the same origin as the server."""
    headers = {**server.page(f"{host}:{server.port}"), **more}
    if more.get("Origin") == "":
        del headers["Origin"]
    assert server.note(headers)[0] == 403
    assert server.cancel(headers)[0] == 403
    report = server.tab.get(f"api/v1/captures/{server.tab.only_id()}/report").json
    assert not any(finding["remark"] for finding in report["findings"])


@pytest.mark.parametrize("origin", [f"https://{TUNNEL}", f"http://{TUNNEL}:8080"])
def test_the_tab_behind_a_tunnel_is_read_and_says_how_to_write(server: Server, origin: str) -> None:
    headers = {**server.page(TUNNEL, origin), "Sec-Fetch-Site": "same-origin"}
    reading = {name: value for name, value in headers.items() if name != "Origin"}
    status, listed = server.send("GET", "captures", reading)
    assert status == 200
    hint = f"Start TensorBoard with `--perfadvisor_write_hosts={TUNNEL}`."
    assert (listed["allows_notes"], listed["notes_hint"]) == (False, hint)
    capture = listed["captures"][0]["id"]
    assert server.send("GET", f"captures/{capture}/report", reading)[0] == 200
    for status, answer in (server.note(headers), server.cancel(headers)):
        assert status == 403
        assert answer["error"]["hint"] == hint


def test_behind_a_proxy_that_changes_the_host(server: Server) -> None:
    """Its own page may stop what it waits for, and says how to write notes."""
    headers = server.page(f"localhost:{server.port}", "https://hub.example")
    assert server.cancel(headers) == (200, {"is_canceled": False})
    status, answer = server.note(headers)
    assert (status, answer["error"]["hint"]) == (
        403,
        "Start TensorBoard with `--perfadvisor_write_hosts=hub.example`.",
    )
    reading = {**headers, "Referer": "https://hub.example/user/me/proxy/6006/"}
    del reading["Origin"]
    assert server.send("GET", "captures", reading)[1]["allows_notes"] is False


@pytest.mark.parametrize(
    "host", ["gpu-box:6006", TUNNEL, TUNNEL.upper(), f"{TUNNEL}.", "localhost"]
)
def test_the_flag_names_hosts_that_write(allowing: Server, host: str) -> None:
    headers = allowing.page(host)
    assert allowing.note(headers)[0] == 200
    assert allowing.cancel(headers)[0] == 200
    assert allowing.send("GET", "captures", headers)[1]["allows_notes"] is True


def test_the_flag_names_no_other_host(allowing: Server) -> None:
    headers = allowing.page("evil.example")
    for status, answer in (allowing.note(headers), allowing.cancel(headers)):
        assert status == 403
        assert answer["error"]["hint"] == (
            f"Start TensorBoard with `--perfadvisor_write_hosts={TUNNEL},evil.example,gpu-box`."
        )


@pytest.mark.parametrize("origin", ["http://[", "http://]:x", "//", "http://a b;c/"])
def test_addresses_that_are_none_are_no_bug(server: Server, origin: str) -> None:
    headers = server.page("evil.example", origin)
    del headers["X-Perf-Advisor"]
    assert server.note(headers)[0] == 403


# --- who waits ------------------------------------------------------------------------------------


def test_an_analysis_goes_on_until_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behave: Behave
) -> None:
    log = behave("gate")
    tab = Tab(tmp_path, monkeypatch)
    tab.put("run")
    server = Server(tab)
    try:
        host = f"127.0.0.1:{server.port}"
        first, second = (server.page(host, client=name) for name in ("first", "second"))
        report = f"captures/{tab.only_id()}/report"
        for headers in (first, second):
            assert server.send("GET", report, headers)[0] == 202
        eventually(lambda: server.send("GET", report, second)[1]["stage"] == "checking rules")
        assert server.cancel(first) == (200, {"is_canceled": False, "others_waiting": 1})
        # Looking at it is not waiting for it.
        assert server.send("GET", report, first)[1]["status"] == "running"
        assert server.cancel(second) == (200, {"is_canceled": True})
        for headers in (first, second):
            assert server.send("GET", report, headers)[0] == 409
        # Who never gave it up is not told that it was canceled: it starts again.
        third = server.page(host, client="third")
        assert server.send("GET", report, third)[0] == 202
        eventually(lambda: len(log.read_text().splitlines()) == 2)
        assert server.send("GET", f"{report}?retry=1", first)[0] == 202
        assert server.cancel(third) == (200, {"is_canceled": False, "others_waiting": 1})
        log.with_name("gate").touch()
        eventually(lambda: server.send("GET", report, first)[0] == 200)
    finally:
        server.close()
