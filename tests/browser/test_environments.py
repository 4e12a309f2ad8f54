"""The tab wherever TensorBoard is viewed: prefixes, proxies, frames of other sites, plain http.

Each environment is a real TensorBoard in a real Chromium. In each, `walk` uses every feature of
the tab once.
"""

from __future__ import annotations

import gzip
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qsl, unquote
from urllib.request import Request, urlopen

import pytest

from tests.support.browser import (
    API,
    ROOT,
    WINDOW,
    Visitor,
    capture_of,
    captures_at,
    change_of,
    downloaded,
    ended_after,
    eventually,
    free_port,
    link,
    open_part,
    report_at,
    serving,
    wait_until,
)

RUN, OTHER, XPLANE = "pytorch_input_slow", "pytorch_input_fixed", "tensorflow_input_slow"
FINDING = "loader-in-main-process"
DENIED_STORAGE = """
if (location.pathname.includes("plugin_entry") && location.search.includes("perf_advisor")) {
  for (const name of ["localStorage", "sessionStorage", "indexedDB", "caches"]) {
    Object.defineProperty(window, name, {
      get() { throw new DOMException("The operation is insecure.", "SecurityError"); },
    });
  }
}
"""


def copy_logs(directory: Path) -> Path:
    for run in (RUN, OTHER, XPLANE):
        shutil.copytree(ROOT / "demo_logs" / run, directory / "logs" / run)
    return directory / "logs"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return copy_logs(tmp_path)


@pytest.fixture(scope="module")
def plain_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A TensorBoard without further options, shared by the tests that need nothing else."""
    logs = copy_logs(tmp_path_factory.mktemp("plain"))
    with serving("--logdir", str(logs), cache=tmp_path_factory.mktemp("cache")) as address:
        yield address


@pytest.fixture
def resident(chromium: Callable[..., Any], tmp_path: Path) -> Iterator[Visitor]:
    """A visitor whose browser gives storage to frames of other sites.

    Without it, as in private windows, TensorBoard itself does not start.
    """
    preferences = {"profile": {"cookie_controls_mode": 0, "block_third_party_cookies": False}}
    profile = tmp_path / "profile"
    (profile / "Default").mkdir(parents=True)
    (profile / "Default" / "Preferences").write_text(json.dumps(preferences))
    made = Visitor(chromium(str(profile), **WINDOW))
    yield made
    made.context.close()
    # Chromium logs that it denies the clipboard; the tab then copies by selection.
    assert [line for line in made.errors if "Clipboard API has been blocked" not in line] == []


def walk(
    visitor: Visitor,
    url: str,
    server: str,
    *,
    run: str = RUN,
    other: str = OTHER,
    is_proposed: bool = True,
    outer: str = "",
) -> None:
    """Uses every feature of the tab once.

    Args:
        visitor: The browser.
        url: The URL of TensorBoard, or with `outer` of the page around it, up to the hash.
        server: The URL at which the test itself reaches TensorBoard.
        run: The run to show.
        other: The run to compare it with.
        is_proposed: Whether the tab proposes that one, as its name or folder is like the first's.
        outer: The selector of the frame, on another site's page, that TensorBoard is in.
    """
    capture, page = capture_of(server, run)["id"], visitor.page
    report = report_at(server, capture)
    finding = next(item for item in report["findings"] if item["rule_id"] == FINDING)
    page.goto(url + link(capture, finding=FINDING))
    tab = visitor.tab(outer) if outer else visitor.tab()
    tab.get_by_role("heading", level=1, name=report["headline"]).wait_for()

    # The link opens the finding, and its timeline is fetched and drawn.
    row = tab.get_by_role("button", name=re.compile(re.escape(change_of(finding)))).first
    assert row.get_attribute("aria-expanded") == "true"
    tab.locator(".timeline canvas[data-drawn]").first.wait_for()
    open_part(tab.locator(f"#finding-{FINDING}"), "Evidence")
    tab.locator(f"#finding-{FINDING} .event-button").first.click()
    tab.get_by_text(re.compile("around the event")).first.wait_for()
    tab.get_by_role("button", name="Zoom out").first.click()
    open_part(tab.locator(f"#finding-{FINDING}"), "Change")

    # Code can be copied, with or without the clipboard API.
    tab.locator(".finding-body .copy").first.click()
    tab.locator(".copy").filter(has_text="Copied").first.wait_for()

    # Downloads work.
    excerpt = downloaded(page, tab.get_by_role("link", name="Perfetto trace").first)
    events = json.loads(gzip.decompress(excerpt))["traceEvents"]
    assert "affected time" in {event["args"].get("name") for event in events}
    tab.get_by_text("Export", exact=True).click()
    markdown = downloaded(page, tab.get_by_role("link", name="Markdown"))
    assert report["headline"].encode() in markdown

    # The other pages load.
    views = tab.get_by_role("navigation")
    views.get_by_role("link", name="Input").click()
    tab.get_by_role("heading", level=1, name=re.compile("The step waits")).wait_for()
    views.get_by_role("link", name="Compare").click()
    if not is_proposed:
        tab.get_by_role("checkbox", name=other).click()
    tab.get_by_role("heading", level=2, name="All runs").wait_for()
    tab.locator(".choice-runs summary").click()
    assert tab.get_by_role("checkbox", name=other).is_checked()

    if not outer:
        # The URL names the page, and a reload returns to it.
        assert "p.perf_advisor.view=compare" in page.url
        page.reload()
        tab.get_by_role("heading", level=2, name="All runs").wait_for()
    views.get_by_role("link", name="Runs").click()
    tab.get_by_role("link", name="About", exact=True).click()
    tab.get_by_role("heading", name=re.compile("^What is checked")).wait_for()


@pytest.mark.nightly
def test_below_a_path_prefix(logs: Path, board: Callable[..., str], visitor: Visitor) -> None:
    server = board("--logdir", str(logs), prefix="/team/tb")
    assert server.endswith("/team/tb")
    walk(visitor, f"{server}/", server)


@pytest.mark.nightly
def test_with_several_named_log_directories(
    logs: Path, board: Callable[..., str], visitor: Visitor
) -> None:
    server = board("--logdir_spec", f"first:{logs / RUN},second:{logs}")
    runs = {capture["run"] for capture in captures_at(server)}
    assert runs >= {"first", f"second/{RUN}", f"second/{OTHER}"}
    walk(visitor, f"{server}/", server, run="first", other=f"second/{OTHER}", is_proposed=False)


@pytest.mark.nightly
def test_without_the_fast_loader(logs: Path, board: Callable[..., str], visitor: Visitor) -> None:
    server = board("--logdir", str(logs), "--load_fast=false")
    walk(visitor, f"{server}/", server)


@pytest.mark.nightly
def test_with_a_read_only_log_directory(
    logs: Path, board: Callable[..., str], visitor: Visitor
) -> None:
    mount = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
    script = (
        f"mount --bind '{logs}' '{logs}' && mount -o remount,bind,ro '{logs}' "
        f"&& ! touch '{logs}/x' 2>/dev/null"
    )
    is_mounted = (
        shutil.which("unshare")
        and not subprocess.run([*mount, script], check=False, stderr=subprocess.DEVNULL).returncode
    )
    within: tuple[str, ...] = (*mount, f'{script} && exec "$@"', "sh")
    if not is_mounted:
        within = ()
        for path in (logs, *logs.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        if os.access(logs, os.W_OK):
            pytest.skip("this user can write everywhere and cannot mount read-only")
    before = sorted(logs.rglob("*"))
    server = board("--logdir", str(logs), within=within)
    walk(visitor, f"{server}/", server)
    assert sorted(logs.rglob("*")) == before


@pytest.mark.nightly
def test_over_plain_http_from_another_host(plain_server: str, visitor: Visitor) -> None:
    """No secure context: no clipboard, no randomUUID, no subtle cryptography."""
    url = plain_server.replace("127.0.0.1", "perf.example")
    walk(visitor, f"{url}/", plain_server)
    assert visitor.page.evaluate("[isSecureContext, navigator.clipboard, crypto.randomUUID]") == [
        False,
        None,
        None,
    ]


def nginx_at(port: int, upstream: int, directory: Path) -> list[str]:
    """Configure an nginx that strips a prefix and changes the host, as ngrok and gateways do."""
    (directory / "tmp").mkdir()
    temporary = "".join(
        f"{kind}_temp_path {directory}/tmp;\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (directory / "nginx.conf").write_text(f"""
daemon off;
master_process off;
pid {directory}/nginx.pid;
error_log {directory}/error.log;
events {{}}
http {{
  access_log off;
  {temporary}
  server {{
    listen 127.0.0.1:{port};
    location /hub/user/me/ {{
      proxy_pass http://127.0.0.1:{upstream}/;
      proxy_set_header Host a1b2-203-0-113-7.ngrok-free.example;
      proxy_http_version 1.1;
    }}
  }}
}}
""")
    return ["-p", str(directory), "-c", str(directory / "nginx.conf"), "-e", "stderr"]


@pytest.fixture
def behind_nginx(plain_server: str, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The port and prefix of nginx, and the URL of the TensorBoard behind it."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if nginx is None:
        pytest.skip("no nginx on this machine")
    port, directory = free_port(), tmp_path / "nginx"
    directory.mkdir()
    arguments = nginx_at(port, int(plain_server.rpartition(":")[2]), directory)
    process = subprocess.Popen([nginx, *arguments], stderr=subprocess.DEVNULL)
    with ended_after(process):
        wait_until(lambda: bool(captures_at(f"http://127.0.0.1:{port}/hub/user/me")), process)
        yield f"{port}/hub/user/me", plain_server


def test_behind_nginx_with_a_prefix_and_another_host(
    behind_nginx: tuple[str, str], visitor: Visitor
) -> None:
    proxy, server = behind_nginx
    walk(visitor, f"http://127.0.0.1:{proxy}/", server)


def test_behind_nginx_at_plain_http_an_analysis_can_be_canceled(
    behind_nginx: tuple[str, str], visitor: Visitor
) -> None:
    """The browser sends no Sec-Fetch-Site there, and the host is not the one it knows."""
    proxy, server = behind_nginx
    url = f"http://perf.example:{proxy}/"
    walk(visitor, url, server)
    answer = (
        visitor.tab()
        .locator("body")
        .evaluate(
            """async (body, path) => {
          const url = new URL(path, new URL("./data/plugin/perf_advisor/", parent.location.href));
          const headers = { "X-Perf-Advisor": "tab" };
          const response = await fetch(url, { method: "POST", headers });
          return [response.status, await response.json()];
        }""",
            f"api/v1/captures/{capture_of(server, RUN)['id']}/cancel",
        )
    )
    assert answer == [200, {"is_canceled": False}]


def test_the_profile_tab_is_linked_through_nginx(
    behind_nginx: tuple[str, str], visitor: Visitor
) -> None:
    """Links have the right run, host, tool and time range."""
    proxy, server = behind_nginx
    url, page = f"http://127.0.0.1:{proxy}/", visitor.page
    capture = capture_of(server, XPLANE)
    if not capture["profile_run"]:
        pytest.skip("the profile plugin is not installed")
    report = report_at(server, capture["id"])
    finding = next(item for item in report["findings"] if item["rule_id"] == "input-stall")
    event = finding["evidence"][0]["rows"][0]
    page.goto(url + link(capture["id"], finding="input-stall"))
    tab = visitor.tab()
    open_part(tab.locator("#finding-input-stall"), "Evidence")
    tab.locator("#finding-input-stall .event-button").first.click()
    tab.get_by_text(re.compile("around the event")).first.wait_for()
    viewer = tab.get_by_role("link", name="Trace viewer").first
    viewer.wait_for()
    target = viewer.get_attribute("href")

    queries: list[dict[str, str]] = []

    def note(answer: Any) -> None:
        address, _, query = answer.url.partition("?")
        # Count only requests through the proxy, below its prefix.
        if answer.ok and address == f"{url}data/plugin/profile/data":
            queries.append(dict(parse_qsl(query)))

    page.on("response", note)
    open_part(tab.locator("#finding-input-stall"), "About")
    tab.get_by_role("link", name=re.compile("^Profile tab: input pipeline")).first.click()
    profile = page.frame_locator("iframe[src*='name=profile']")
    profile.get_by_text("Input Pipeline Analysis").first.wait_for()
    eventually(page, lambda: bool(queries))
    assert (queries[0]["run"], queries[0]["host"], queries[0]["tag"]) == (
        capture["profile_run"],
        capture["profile_host"],
        "input_pipeline_analyzer",
    )

    queries.clear()
    page.goto(target)
    eventually(page, lambda: bool(queries))
    assert (queries[0]["run"], queries[0]["host"], queries[0]["tag"]) == (
        capture["profile_run"],
        capture["profile_host"],
        "trace_viewer@",
    )
    # The viewer fetches somewhat more than it shows, with the event in the middle.
    middle_ms = (event["start_ns"] + event["duration_ns"] / 2) / 1e6
    from_ms, to_ms = (float(queries[0][name]) for name in ("start_time_ms", "end_time_ms"))
    assert (from_ms + to_ms) / 2 == pytest.approx(middle_ms, abs=event["duration_ns"] / 2e6)
    assert to_ms - from_ms < 8 * event["duration_ns"] / 1e6


class _Notebook(http.server.BaseHTTPRequestHandler):
    """A page of another site with TensorBoard in a frame, as in Colab and Jupyter."""

    def do_GET(self) -> None:
        source, _, sandbox = unquote(self.path.removeprefix("/?")).partition("|")
        attribute = f'sandbox="{sandbox.replace("+", " ")}"' if sandbox else ""
        page = (
            f'<!doctype html><title>notebook</title><iframe id="out" {attribute} '
            'width="1200" height="900"></iframe>'
            f"<script>out.src = 'http://{source}' + location.hash</script>"
        )
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(page.encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def notebook() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Notebook)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    # A different site than 127.0.0.1, and a secure context, as notebooks are.
    yield f"http://localhost:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "sandbox",
    ["", "allow-scripts+allow-same-origin+allow-downloads"],
    ids=["plain", "sandboxed"],
)
def test_inside_a_frame_of_another_site(
    plain_server: str, resident: Visitor, notebook: str, sandbox: str
) -> None:
    """The tab works without storage and clipboard, and with a parent window it cannot access."""
    resident.context.add_init_script(DENIED_STORAGE)
    source = plain_server.removeprefix("http://") + "/?tensorboardColab=true"
    walk(resident, f"{notebook}/?{source}|{sandbox}", plain_server, outer="#out")
    tab = resident.tab("#out").locator("body")
    assert (
        tab.evaluate("() => { try { return !!localStorage } catch (error) { return error.name } }")
        == "SecurityError"
    )
    resident.context.grant_permissions(["clipboard-read"], origin=notebook)
    resident.page.evaluate("window.focus()")
    copied = resident.page.evaluate("navigator.clipboard.readText()")
    assert "DataLoader(" in copied
    denied = tab.evaluate("navigator.clipboard.writeText('x').then(() => '', ({name}) => name)")
    assert denied == "NotAllowedError"


def test_other_sites_cannot_cancel(plain_server: str) -> None:
    url = f"{plain_server}/{API}/captures/{captures_at(plain_server)[0]['id']}/cancel"
    request = Request(url, method="POST", headers={"Origin": "https://elsewhere.example"})
    with pytest.raises(HTTPError) as refused:
        urlopen(request, timeout=10)
    with refused.value as answer:
        assert answer.code == 403
