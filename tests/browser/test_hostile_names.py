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
from tb_perfadvisor.trace import EventKind
from tests.support.browser import (
    API,
    Visitor,
    capture_of,
    link,
    read,
    report_at,
    settle,
    text_of,
)
from tests.support.compile_logs import artifact, break_text, compiled
from tests.support.event_files import write_scalar
from tests.support.memory_snapshots import Snapshot, frames
from tests.support.server_trace import Served, server_trace
from tests.support.writers import write_kineto

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


def served() -> bytes:
    """An inference server whose kernels, files and functions have malicious names."""
    trace = server_trace([Served(decodes=8, replays=number > 0) for number in range(4)])
    content = json.loads(write_kineto(trace))
    for event in content["traceEvents"]:
        if event.get("cat") == "kernel" or event.get("name") == "aten::mm":
            event["name"] += hostile("served")
        elif event.get("cat") == "python_function":
            event["name"] += hostile("frame")
    content["deviceProperties"][0]["name"] += hostile("device")
    return json.dumps(content).encode()


def snapshot() -> bytes:
    """Memory that is held by malicious files and functions, until a request fails."""
    made = Snapshot()
    segment = made.segment(1 << 32)
    # Of a path, the end is shown: it cannot contain a slash.
    path = f"/p/{MARK.format(place='path')}.py"
    stack = frames((path, 3, hostile("function")), ("/p/train.py", 1, "main"))
    made.settings[hostile("setting")] = hostile("value")
    for step in range(10):
        made.annotate(f"ProfilerStep#{step}").annotate(hostile("annotation"))
        at = segment + (step << 25)
        made.allocate(at, 1 << 25, stack).holds(segment, at, 1 << 25, stack).wait(1_000)
    return made.fail(1 << 33, 1 << 30, stack).pickled()


def compile_log() -> bytes:
    """A function that is compiled again and again, for reasons with malicious names."""
    named, path = hostile("compiled"), f"/p/{MARK.format(place='path')}.py"
    records = [artifact("dynamo_graph_break_reason", "0/0", break_text(11, hostile("break")))]
    for number in range(9):
        reason = json.dumps([f"0/{number}: {hostile('guard')} == {number}"])
        records.append(artifact("recompile_reasons", f"0/{number}", reason))
        records.append(compiled(f"0/{number}", named, 3, duration_us=9_000_000, co_filename=path))
    return b"".join(records)


def check_elements(page: Any, frame: Any, where: str) -> None:
    """Fail if a name became an element, or ran."""
    elements = frame.locator("img, iframe, [onerror], a[href^='javascript:']")
    assert [element.evaluate("e => e.outerHTML") for element in elements.all()] == [], where
    assert page.evaluate("top.hacked") is None, where


def read_findings(frame: Any) -> str:
    """The text of every part of every finding of a report."""
    texts = []
    rows = frame.locator("button.finding-row")
    rows.first.wait_for()
    for row in rows.all():
        if row.get_attribute("aria-expanded") == "false":
            row.click()
        for part in frame.locator(".finding-body").get_by_role("tab").all():
            part.click()
            texts.append(text_of(frame.locator(".columns")))
    return "".join(texts)


def visit_pages(page: Any, frame: Any, *, has_timeline: bool = True) -> dict[str, str]:
    """Open every page, and every finding; return the text of each."""
    shown: dict[str, str] = {}
    navigation = frame.get_by_role("navigation")  # of the log folder, and of the capture
    links = navigation.get_by_role("link")
    links.first.wait_for()
    settle(frame)  # a page whose content comes later appears later
    names = links.all_inner_texts()
    # The pages of the log folder come last: there, no profile is chosen.
    folder = ["Compare", "Runs", "About"]
    pages = [name for name in names if name not in folder]
    for name in pages + [name for name in folder if name in [*names, "About"]]:
        frame.get_by_role("link", name=name, exact=True).click()
        # Until then, the page before it is shown, with a heading of its own.
        if name == "About":
            frame.get_by_role("heading", name=re.compile("^What is checked")).wait_for()
        else:
            navigation.locator("[aria-current]", has_text=name).wait_for()
        settle(frame)
        frame.get_by_role("heading", level=1).wait_for()
        if name == "Report":
            shown[name] = read_findings(frame)
            if has_timeline:
                frame.locator(".timeline canvas[data-drawn]").first.wait_for()
                frame.get_by_text("Loading events…").first.wait_for(state="hidden")
            settle(frame)
        shown[name] = shown.get(name, "") + text_of(frame.locator("body"))
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
    # Its link appears when the run's scalars were read.
    tab.get_by_role("link", name="Over time", exact=True).wait_for()
    shown = visit_pages(page, tab)
    # The names are shown exactly.
    assert hostile("kernel")[:60] in shown["Device"]
    assert hostile("loader")[:60] in shown["Report"]
    assert hostile("device")[:60] in shown["Device"]
    assert hostile("tag")[:60] in shown["Over time"]
    assert MARK.format(place="broken") in shown["About"]
    assert RUN in shown["About"]
    assert ODD_RUN_SHOWN in shown["About"]
    page.goto(f"{server}/{link(capture, view='compare', base=capture, target=other)}")
    page.reload()
    tab.get_by_role("heading", level=2, name="All runs").wait_for()
    assert ODD_RUN_SHOWN in text_of(tab.locator("body"))
    check_elements(page, tab, "comparison")
    assert not visitor.errors

    shown = check_exports(server, capture, page, tmp_path)
    assert hostile("kernel")[:60] in shown["Device"]
    excerpt = json.loads(gzip.decompress(export(server, capture, "excerpt?finding=0")))
    assert any(hostile("kernel") == event.get("name") for event in excerpt["traceEvents"])


def check_exports(
    server: str, capture: str, page: Any, folder: Path, *, has_timeline: bool = True
) -> dict[str, str]:
    """Fail if a name became markup in an export; return what the pages of the HTML file show."""
    texts = {
        format: export(server, capture, f"export?format={format}").decode()
        for format in ("json", "sarif", "text", "markdown", "html")
    }
    exported = folder / "report.html"
    exported.write_text(texts["html"], encoding="utf-8")
    page.goto(exported.as_uri())
    shown = visit_pages(page, page, has_timeline=has_timeline)
    for format in ("json", "sarif", "text", "markdown"):
        assert not re.search(CHARSET, texts[format]), format
    assert json.loads(texts["json"])["reports"][0]["run"] == RUN
    assert json.loads(texts["sarif"])["runs"][0]["results"]
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(texts["markdown"])
    kinds = {child.type for token in tokens for child in (token, *(token.children or ()))}
    assert not kinds & {"html_block", "html_inline", "link_open", "image"}
    return shown


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("written", "page", "names"),
    [
        ({"rank0.pt.trace.json": served, "memory.pickle": snapshot}, "Device", ["served"]),
        ({"memory.pickle": snapshot}, "Memory", ["path", "function"]),
        ({"torch.log": compile_log}, "Report", ["compiled", "guard", "break"]),
    ],
    ids=["server", "snapshot", "compile-log"],
)
def test_names_in_other_recordings_never_become_elements(
    board: Callable[..., str],
    visitor: Visitor,
    tmp_path: Path,
    written: dict[str, Callable[[], bytes]],
    page: str,
    names: list[str],
) -> None:
    run = tmp_path / "logs" / RUN
    run.mkdir(parents=True)
    for name, make in written.items():
        (run / name).write_bytes(make())
    server = board("--logdir", str(tmp_path / "logs"))
    capture = capture_of(server, RUN)["id"]
    report_at(server, capture)
    visitor.page.goto(f"{server}/{link(capture)}")
    shown = visit_pages(visitor.page, visitor.tab(), has_timeline=False)
    assert ("Serving" in shown) == ("rank0.pt.trace.json" in written)
    for name in names:
        assert MARK.format(place=name) in shown[page], name
    check_exports(server, capture, visitor.page, tmp_path, has_timeline=False)


def export(server: str, capture: str, rest: str) -> bytes:
    with urlopen(f"{server}/{API}/captures/{capture}/{rest}", timeout=60) as answer:
        content: bytes = answer.read()
        return content
