"""The page is complete, makes no requests, and treats names as data."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.contract.model import Rejected
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.report.formats import html
from tb_perfadvisor.report.formats.render import document, render
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.testing import draw, run_of

SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|
"""
HOSTILE = "</script><script>alert(1)</script><!--<script> \u2028\u2029 ]]> &lt; \\u003c \U0001f600"


def report(name: str) -> Report:
    trace = draw(SLOW, device="NVIDIA H100 80GB HBM3")
    return analyze(run_of(trace, name=name), Config(with_views=True))


class Page(HTMLParser):
    """Scripts of a page with their attributes, as a browser would split them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.metas: list[dict[str, str | None]] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag == "meta":
            self.metas.append(dict(attrs))

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] == ["script"] and data.strip():
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)


def answers(page: Page) -> dict[str, Any]:
    (text,) = [
        text for attributes, text in page.scripts if attributes.get("id") == "perf-advisor-answers"
    ]
    found: dict[str, Any] = json.loads(text)
    return found


def test_the_page_answers_all_requests_of_the_tab() -> None:
    first, second = report("a"), report("b")
    page = Page(render(document([first, second], [Rejected(path="x.pb", reason="cut")]), "html"))
    found = answers(page)
    listed = found["captures"]["captures"]
    assert [capture["run"] for capture in listed] == ["a", "b"]
    assert found["captures"]["rejected"] == [{"path": "x.pb", "reason": "cut"}]
    for expected, capture in zip((first, second), listed, strict=True):
        embedded = msgspec.convert(found[f"captures/{capture['id']}/report"], Report)
        assert embedded == msgspec.structs.replace(expected, id=capture["id"], views=None)
        assert expected.views is not None
        assert found[f"captures/{capture['id']}/views/steps"] == expected.views["steps"]
    assert found["rules/input-stall"]["page"].startswith("# input-stall")
    assert "input-stall" in {rule["id"] for rule in found["rules"]["rules"]}


def test_hostile_names_stay_in_the_data() -> None:
    plain, hostile = (Page(render(report(name), "html")) for name in ("a", HOSTILE))
    assert hostile.tags == plain.tags
    assert answers(hostile)["captures"]["captures"][0]["run"] == HOSTILE
    (text,) = [
        text
        for attributes, text in hostile.scripts
        if attributes.get("id") == "perf-advisor-answers"
    ]
    assert not set(text) & {"<", "\u2028", "\u2029"}


def test_the_policy_allows_the_bundle_and_nothing_else() -> None:
    text = render(report("a"), "html")
    page = Page(text)
    (policy,) = [
        meta["content"]
        for meta in page.metas
        if meta.get("http-equiv") == "Content-Security-Policy"
    ]
    (module,) = [text for attributes, text in page.scripts if attributes.get("type") == "module"]
    digest = base64.b64encode(hashlib.sha256(module.encode()).digest()).decode()
    assert policy is not None
    rules = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest}'"
    assert "connect-src" not in rules
    # There is nothing that a browser would fetch.
    assert "link" not in page.tags
    assert not re.search(r"<[^>]+\s(src|href)=", text.split("<script", 1)[0])
    assert all("src" not in attributes for attributes, _ in page.scripts)


def test_licenses_are_included() -> None:
    assert "Licenses of the packages bundled" in render(report("a"), "html")


def test_a_missing_bundle_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    html._bundle.cache_clear()
    monkeypatch.setattr(html, "STATIC", tmp_path)
    with pytest.raises(UsageError, match=r"is not installed.*npm run build"):
        render(report("a"), "html")
