"""Requests to any route: methods, other sites, unknown ids, errors, prefixes."""

import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend import application
from werkzeug.test import Client

from tb_perfadvisor.plugin.routes import listing
from tests.support.served_tab import BASE, Tab, error_of


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://localhost"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        # Behind a proxy that rewrites the host, the browser's header decides.
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://hub.example"}, 200),
        ({"Origin": "https://hub.example", "X-Forwarded-Host": "hub.example"}, 200),
        # Other sites can send this header only after a preflight, which is refused.
        ({"Origin": "http://hub.example", "X-Perf-Advisor": "tab"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "X-Perf-Advisor": "tab"}, 403),
    ],
)
def test_cancel_rejects_other_sites(tab: Tab, headers: dict[str, str], status: int) -> None:
    tab.put("run")
    answer = tab.post(f"api/v1/captures/{tab.only_id()}/cancel", headers=headers)
    assert answer.status_code == status


def test_cancel_is_post_only(tab: Tab) -> None:
    tab.put("run")
    assert tab.get(f"api/v1/captures/{tab.only_id()}/cancel").status_code == 405


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.parametrize(
    "path", ["api/v1/captures", "api/v1/rules", "api/v1/doctor", "static/index.js"]
)
def test_other_methods_are_rejected(tab: Tab, method: str, path: str) -> None:
    answer = tab.client.open(f"{BASE}/{path}", method=method)
    assert answer.status_code == 405
    error_of(answer)


@pytest.mark.parametrize(
    "capture_id",
    ["0123456789ab", "..", "%2e%2e%2fetc%2fpasswd", "%2Fetc%2Fpasswd", "w0.pt.trace.json", "%00"],
)
@pytest.mark.parametrize("rest", ["report", "views/steps", "window", "search", "excerpt", "export"])
def test_unknown_captures_are_404(tab: Tab, capture_id: str, rest: str) -> None:
    tab.put("run")
    answer = tab.get(f"api/v1/captures/{capture_id}/{rest}")
    assert answer.status_code == 404
    assert "passwd" not in error_of(answer)["message"]


def test_unknown_routes_are_404_in_json(tab: Tab) -> None:
    for path in ("api/v1/nothing", "api/v1/captures/x/y/z"):
        assert error_of(tab.get(path))
        assert tab.get(path).status_code == 404


def test_text_is_compressed_on_request(tab: Tab) -> None:
    tab.put("run")
    answer = tab.get("api/v1/captures", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(answer.data))["captures"]


def test_internal_error_shows_no_traceback(tab: Tab, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: Any) -> None:
        raise ZeroDivisionError("/secret/path")

    monkeypatch.setattr(listing, "doctor", explode)
    answer = tab.get("api/v1/doctor")
    assert answer.status_code == 500
    found = re.fullmatch(
        r"the request failed because of a bug \(ZeroDivisionError, ([0-9a-f]{8})\)\.",
        error_of(answer)["message"],
    )
    assert found
    log = Path(os.environ["PERFADVISOR_CACHE_DIR"], "perfadvisor.log").read_text()
    assert found[1] in log
    assert "/secret/path" in log
    assert "secret" not in answer.text


def test_routes_work_below_a_prefix_and_an_experiment(tab: Tab) -> None:
    tab.put("run")
    prefixed = Client(application.TensorBoardWSGI([tab.plugin], path_prefix="/foo/api/v1"))
    assert prefixed.get(f"/foo/api/v1{BASE}/api/v1/captures").json["captures"]
    assert tab.client.get(f"/experiment/e1{BASE}/api/v1/captures").json["captures"]
