"""Names in profiles are untrusted: in the tab and in every export they are only ever text."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from markdown_it import MarkdownIt

from tb_perfadvisor.testing import TraceBuilder, ms
from tb_perfadvisor.testing.writers import write_kineto
from tb_perfadvisor.trace import EventKind
from tests.support.browser import API, Visitor, capture_of, link, read, report_at, text_of
from tests.support.event_files import write_scalar

pytestmark = pytest.mark.browser

MARK = "<img src=x onerror=\"top.hacked='{place}'\">"
LINK = "[a](javascript:top.hacked=1)<a href='javascript:top.hacked=1'>b</a>{{{{7*7}}}}"
END = "</script><script>top.hacked='end'</script><!--\u2028"
CONTROLS = "\x1b[2J\x9b31m\u202e"
# A folder name cannot contain a slash.
RUN = MARK.format(place="run")
# Not UTF-8, and with an escape sequence; and how it is shown.
ODD_RUN, ODD_RUN_SHOWN = b"odd\xff\x1b[2J" + RUN.encode(), rf"odd\xff\x1b[2J{RUN}"
# They would reverse our own text beside a name, numbers included.
TURNING = "[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
CHARSET = "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]"


def hostile(place: str) -> str:
    return MARK.format(place=place) + LINK + END + CONTROLS


LOADER = f"enumerate(DataLoader)#{hostile('loader')}.__next__"


def trace(rank: int, step_ms: int) -> bytes:
    """A run that waits for input and for a kernel with malicious names."""
    builder = TraceBuilder(rank=rank, world_size=2, host=hostile("host"))
    builder.device(hostile("device"), memory_bytes=1 << 34)
    for number in range(3):
        begin = number * ms(step_ms)
        builder.step(number, begin, begin + ms(step_ms))
        builder.host(EventKind.INPUT_WAIT, LOADER, begin, begin + ms(8))
        builder.annotation(hostile("annotation"), begin, begin + ms(9))
        builder.operator(
            hostile("operator"),
            begin + ms(8),
            begin + ms(9),
            shapes=[[64, 64]],
            dtypes=[hostile("dtype")],
            frame=hostile("frame"),
            module=hostile("module"),
            key=f"{number}",
        )
        builder.host(
            EventKind.OPERATOR, hostile("other"), begin, begin + ms(9), thread=hostile("thread")
        )
        builder.kernel(hostile("kernel"), begin + ms(9), begin + ms(17), launched_by=f"{number}")
        builder.collective(hostile("collective"), begin + ms(17), begin + ms(19))
        builder.memory(begin + ms(8), 1 << 30, allocated_bytes=1 << 30, reserved_bytes=1 << 31)
    return write_kineto(builder.build())


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for name, step_ms in ((RUN, 20), (os.fsdecode(ODD_RUN), 25)):
        run = tmp_path / "logs" / name
        run.mkdir(parents=True)
        for rank in range(2):
            file = f"{MARK.format(place='file')}{rank}.1795234073764326979.pt.trace.json"
            (run / file).write_bytes(trace(rank, step_ms))
        # No time in a trace of ours: the page of the run lists the profile as unknown.
        write_scalar(run, f"loss/{hostile('tag')}", {step: 1e9 + step for step in range(9)})
    broken = MARK.format(place="broken") + ".pt.trace.json"
    (tmp_path / "logs" / broken).write_bytes(b"\x00 no JSON")
    return tmp_path / "logs"


def check_elements(page: Any, frame: Any, where: str) -> None:
    """Fail if a name became an element, or ran."""
    elements = frame.locator("img, iframe, [onerror], a[href^='javascript:']")
    assert [element.evaluate("e => e.outerHTML") for element in elements.all()] == [], where
    assert page.evaluate("top.hacked") is None, where


def visit_pages(page: Any, frame: Any) -> dict[str, str]:
    """Open every page, and every finding; return the text of each."""
    shown: dict[str, str] = {}
    links = frame.get_by_role("navigation", name="Pages").get_by_role("link")
    links.first.wait_for(timeout=40_000)
    names = links.all_inner_texts()
    # The table of runs comes last: there, no profile is chosen.
    for number, name in sorted(enumerate(names), key=lambda link: link[1] == "Runs"):
        links.nth(number).click(timeout=40_000)
        frame.get_by_role("heading", level=1).wait_for(timeout=40_000)
        if name == "Report":
            closed = frame.locator("button.finding-row[aria-expanded=false]")
            closed.first.wait_for(timeout=20_000)
            while closed.count():
                closed.first.click()
            frame.locator(".timeline svg").first.wait_for(timeout=20_000)
        page.wait_for_timeout(300)  # let fetched content appear
        shown[name] = text_of(frame.locator("body"))
        assert not re.search(TURNING, shown[name]), name
        check_elements(page, frame, name)
    return shown


def test_names_never_become_elements(
    board: Callable[..., str], visitor: Visitor, logs: Path, tmp_path: Path
) -> None:
    server = board("--logdir", str(logs))
    capture, page, tab = capture_of(server, RUN)["id"], visitor.page, visitor.tab()
    other = capture_of(server, ODD_RUN_SHOWN)["id"]
    report, _ = report_at(server, capture), report_at(server, other)
    assert "input-stall" in {finding["rule_id"] for finding in report["findings"]}
    assert any(
        MARK.format(place="broken") in file["path"] for file in read(server, "captures")["rejected"]
    )
    page.goto(f"{server}/{link(capture)}")
    shown = visit_pages(page, tab)
    # The names are shown exactly.
    assert hostile("kernel")[:60] in shown["Kernels"]
    assert hostile("loader")[:60] in shown["Report"]
    assert hostile("device")[:60] in shown["Kernels"]
    assert hostile("tag")[:60] in shown["Training"]
    assert MARK.format(place="broken") in shown["Files"]
    assert RUN in shown["Files"]
    assert ODD_RUN_SHOWN in shown["Files"]
    page.goto(f"{server}/{link(capture, view='compare', base=capture, target=other)}")
    page.reload()
    tab.get_by_role("heading", level=2, name="All runs").wait_for(timeout=40_000)
    assert ODD_RUN_SHOWN in text_of(tab.locator("body"))
    check_elements(page, tab, "comparison")
    assert not visitor.errors

    texts = {
        format: export(server, capture, f"export?format={format}").decode()
        for format in ("json", "sarif", "text", "markdown", "html")
    }
    exported = tmp_path / "report.html"
    exported.write_text(texts["html"], encoding="utf-8")
    page.goto(exported.as_uri())
    shown = visit_pages(page, page)
    assert hostile("kernel")[:60] in shown["Kernels"]

    for format in ("json", "sarif", "text", "markdown"):
        assert not re.search(CHARSET, texts[format]), format
    assert json.loads(texts["json"])["reports"][0]["run"] == RUN
    assert json.loads(texts["sarif"])["runs"][0]["results"]
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(texts["markdown"])
    kinds = {child.type for token in tokens for child in (token, *(token.children or ()))}
    assert not kinds & {"html_block", "html_inline", "link_open", "image"}
    excerpt = json.loads(gzip.decompress(export(server, capture, "excerpt?finding=0")))
    assert any(hostile("kernel") == event.get("name") for event in excerpt["traceEvents"])


def export(server: str, capture: str, rest: str) -> bytes:
    with urlopen(f"{server}/{API}/captures/{capture}/{rest}", timeout=60) as answer:
        content: bytes = answer.read()
        return content
