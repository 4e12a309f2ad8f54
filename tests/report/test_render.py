"""The text formats, and text from traces, which no format may interpret."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from tb_perfadvisor import analyze, load
from tb_perfadvisor.contract.model import Document, Rejected
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.report.formats.markdown import escape
from tb_perfadvisor.report.formats.render import document, render
from tb_perfadvisor.report.formats.text import print_document
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of
from tb_perfadvisor.trace import EventKind, Run

DEMO_LOGS = Path(__file__).resolve().parents[2] / "demo_logs"
CAPTURES = sorted(path.parent.name for path in DEMO_LOGS.glob("*/label.json"))


@pytest.mark.parametrize("name", CAPTURES)
def test_json_round_trip_is_the_identity(name: str) -> None:
    (run,) = load(DEMO_LOGS / name)
    content = document([analyze(run, Config(with_views=True))])
    text = render(content, "json")
    decoded = msgspec.json.decode(text, type=Document, strict=True)
    # The values decode to the contract's plain types, which lack the methods for notebooks.
    assert msgspec.json.encode(decoded) == msgspec.json.encode(content)
    # Fields missing from the types would be lost.
    assert render(decoded, "json") == text


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="Formats: brief, html, json, markdown, sarif, text"):
        render(document([]), "pdf")


# Names of events, files, devices and runs come from traces that anyone may have made.
HOSTILE = (
    "\x1b[31mred\x1b]0;title\x07 \x9b2J [bold red]markup[/bold red] </script><img src=x onerror=a>"
    " `code` **bold** $$x$$ [link](javascript:alert(1)) | cell |\n# heading\r\n- item \u202eevil"
)


def hostile_report() -> Report:
    builder = TraceBuilder(rank=0, host=HOSTILE, path=HOSTILE).device(HOSTILE)
    for number, begin in enumerate((ms(0), ms(10))):
        builder.step(number, begin, begin + ms(10), name=f"ProfilerStep#{number}")
        builder.host(EventKind.INPUT_WAIT, HOSTILE, begin, begin + ms(4))
        builder.operator("aten::mm", begin + ms(4), begin + ms(5), key=str(number))
        builder.kernel(HOSTILE, begin + ms(5), begin + ms(10), launched_by=str(number))
    run = Run(id="id", name=HOSTILE, session=HOSTILE, traces=(builder.build(),))
    report = analyze(run, Config())
    assert "input-stall" in [finding.rule_id for finding in report.findings]
    return report


def test_hostile_text_stays_text_on_a_terminal() -> None:
    content = document([hostile_report()], [Rejected(path=HOSTILE, reason=HOSTILE)])
    text = render(content, "text")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    assert "[bold red]" in text, "rich takes it for markup"
    assert not any(line.lstrip().startswith("# heading") for line in text.splitlines())
    # In color, the only escapes are our own; none come from names.
    colored = io.StringIO()
    print_document(content, Console(file=colored, force_terminal=True, width=100))
    assert "\x1b[31mred" not in colored.getvalue()
    assert not re.search(r"\x1b(?!\[[\d;]*m)", colored.getvalue())


def test_hostile_text_stays_text_in_markdown() -> None:
    text = render(document([hostile_report()], [Rejected(path=HOSTILE, reason="x")]), "markdown")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    # Every character that starts HTML, a link, code or a formula is escaped.
    for opening in ("<img", "<script", "</script", "[link]", "`code", "**bold", "$$x"):
        unescaped = re.findall(rf"(?<!\\){re.escape(opening)}", text)
        assert unescaped == [], opening
    assert "\n# heading" not in text
    # A bar in a name does not start a cell: every row has as many cells as the header.
    lines = text.splitlines()
    for index, line in enumerate(lines):
        if line.startswith("| ---"):
            bars = len(re.findall(r"(?<!\\)\|", line))
            for row in lines[index + 1 :]:
                if not row.startswith("|"):
                    break
                assert len(re.findall(r"(?<!\\)\|", row)) == bars


def test_escaped_characters() -> None:
    assert escape("a_b*c") == r"a\_b\*c"
    assert escape("<b>|\\") == r"\<b\>\|\\"
    assert [escape("1. step"), escape("- step"), escape("2.")] == [r"1\. step", r"\- step", r"2\."]
    assert escape("1.64 times") == "1.64 times"
    assert escape("x\ny\x1b") == "x\N{REPLACEMENT CHARACTER}y\N{REPLACEMENT CHARACTER}"


def test_names_are_unchanged_in_json() -> None:
    decoded = json.loads(render(hostile_report(), "json"))
    assert decoded["reports"][0]["run"] == HOSTILE


SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|
"""


def small_report() -> Report:
    run = run_of(draw(SLOW, device="NVIDIA H100 80GB HBM3"), name="resnet")
    return analyze(run, Config(select=("input-stall",)))


def test_text_begins_with_headline_and_breakdown() -> None:
    lines = [line.rstrip() for line in render(small_report(), "text").splitlines()]
    # Launching: a quarter of an operator of 2 ms plus 20 us of latency; the rest is queued.
    assert lines[:13] == [
        "resnet",
        "Waiting for input takes 40.0 % of each step. Feed the device without making it wait "
        "(DataLoader):",
        "probably −3.00 ms of 10.0 (2.00 to 4.00)",
        "PyTorch · NVIDIA H100 80GB HBM3 · 2 steps (ProfilerStep) · synthetic profile",
        "",
        "Most of the time          Per step   Share",
        "aten::mm                   5.00 ms  50.0 %",
        "Waiting for input (idle)   4.00 ms  40.0 %",
        "",
        "Compute, 32-bit    5.00 ms  50.0 %  ███████████████",
        "Idle, work queued   480 µs   4.8 %  █",
        "Waiting for input  4.00 ms  40.0 %  ████████████",
        "Launching           520 µs   5.2 %  ██",
    ]
    # The loader already has workers; at twice their rate, at least half of 4 ms is saved.
    assert "1. Feed the device without making it wait: DataLoader  high  input-stall" in lines
    assert "   saves 3.00 ms per step (30.0 %), between 2.00 ms and 4.00 ms, simulated" in lines


def test_markdown_has_a_heading_a_table_and_code() -> None:
    text = render(small_report(), "markdown")
    assert text.startswith("# resnet\n\n**Waiting for input takes 40.0 % of each step. ")
    assert "| Waiting for input | 4.00 ms | 40.0 % |" in text
    assert "## 1. Feed the device without making it wait" in text
    assert "`input-stall` · high · saves 3.00 ms per step (30.0 %), between 2.00 ms and" in text
    assert "```python\nloader = torch.utils.data.DataLoader(" in text
