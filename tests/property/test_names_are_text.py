"""Names come from untrusted traces, so they must be plain text in every output."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

from tb_perfadvisor import analyze
from tb_perfadvisor.contract.model import Document, Rejected, Report
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.report.formats.render import document, render
from tb_perfadvisor.report.formats.text import print_document
from tb_perfadvisor.testing import TraceBuilder, ms
from tb_perfadvisor.trace import EventKind, Run
from tests.support.night import examples

PLACE = "PLACEHOLDERNAME"
PIECES = (
    *("<img src=x onerror=alert(1)>", "<script>", "</script>", "<!--", "-->", "&lt;", "<a href=x>"),
    *("javascript:alert(1)", "[a](javascript:alert(1))", "![a](x)", "[a]: x", "<javascript:x>"),
    *("`", "``", "```\n", "**", "__", "~~", "$$", "|", "\\", "\n", "\r\n", "\n\n", "\t", "    "),
    *("\n# ", "\n- ", "\n1. ", "\n> ", "\n---\n", "\n| --- |\n", "{0}", "{{", "]", "[bold red]"),
    *(
        "\x1b[2J",
        "\x1b]8;;http://x\x07",
        "\x9b31m",
        "\x00",
        "\u202e",
        "\u2028",
        "\u0301",
        "é",
        "名",
    ),
    *("https://evil.example", "www.evil.example", "a@evil.example", "_", "*", "=", "+", "~", ":x:"),
)
NAMES = st.lists(
    st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), min_size=1, max_size=8
).map("".join)


@cache
def pattern() -> Document:
    """A document in which every name is the placeholder."""
    builder = TraceBuilder(rank=0, host=PLACE, path=PLACE).device(PLACE)
    for number, begin in enumerate((ms(0), ms(10))):
        builder.step(number, begin, begin + ms(10), name=f"ProfilerStep#{number}")
        builder.host(EventKind.INPUT_WAIT, PLACE, begin, begin + ms(4))
        builder.operator("aten::mm", begin + ms(4), begin + ms(5), key=str(number))
        builder.kernel(PLACE, begin + ms(5), begin + ms(10), launched_by=str(number))
    run = Run(id="id", name=PLACE, session=PLACE, traces=(builder.build(),))
    report = analyze(run, Config(with_views=True))
    assert {"input-stall", "dominant-kernel"} & {finding.rule_id for finding in report.findings}
    return document([report], [Rejected(path=PLACE, reason=PLACE)])


def named(name: str) -> Document:
    """The same document with another name in place of the placeholder."""

    def put(value: Any) -> Any:
        if isinstance(value, str):
            return value.replace(PLACE, name)
        if isinstance(value, list):
            return [put(item) for item in value]
        return {key: put(item) for key, item in value.items()} if isinstance(value, dict) else value

    return msgspec.convert(put(msgspec.to_builtins(pattern())), Document)


def structure(markdown: str) -> list[tuple[str, str]]:
    """Everything but text: blocks, tables, links, images, HTML, code."""
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    # Long names may add line breaks and escapes.
    words = {"text", "text_special", "softbreak"}
    return [
        (token.type, str(token.attrs.get("href", "")))
        for block in parser.parse(markdown)
        for token in (block, *(block.children or ()))
        if token.type not in words
    ]


@given(NAMES)
@examples(30)
def test_names_do_not_change_the_structure_of_markdown(name: str) -> None:
    text = render(named(name), "markdown")
    assert structure(text) == structure(render(named("plain"), "markdown"))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


@given(NAMES)
@examples(25)
def test_names_cannot_send_terminal_escapes(name: str) -> None:
    content = named(name)
    controls = r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
    assert not re.search(controls, render(content, "text"))
    stream = io.StringIO()
    print_document(content, Console(file=stream, force_terminal=True, width=100))
    # Without our own colors.
    assert not re.search(controls, re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue()))


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[tuple[str, str | None], ...]]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(attrs)))


@given(NAMES)
@examples(25)
def test_names_do_not_change_the_elements_of_a_page(name: str) -> None:
    assert Tags(render(named(name), "html")).found == Tags(render(named("x"), "html")).found


def strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from strings(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item, key)
    elif isinstance(value, str):
        yield key, value


@given(NAMES)
@examples(25)
def test_sarif_messages_have_no_links_or_placeholders(name: str) -> None:
    run = json.loads(render(named(name), "sarif"))["runs"][0]
    texts_by_key = [*strings(run["results"]), *strings(run["invocations"])]
    texts = [text for key, text in texts_by_key if key == "text"]
    assert texts
    for text in texts:
        bare = text.replace("\\\\", "")
        assert not re.search(r"(?<!\\)[\[\]]", bare)  # starts a link (3.11.6)
        assert not re.search(r"\{", bare.replace("{{", ""))  # starts a placeholder (3.11.5)
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    for key, uri in texts_by_key:
        if key == "uri":
            assert re.fullmatch(r"[A-Za-z0-9/%._~-]*", uri)


@given(NAMES)
@examples(50)
def test_json_preserves_the_name(name: str) -> None:
    decoded = msgspec.json.decode(render(named(name), "json"), type=Document)
    (report,) = decoded.reports
    assert isinstance(report, Report)
    assert report.run == name
