"""Lines in a terminal never break inside a quantity, however narrow it is."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tb_perfadvisor import analyze, compare
from tb_perfadvisor.report.formats.comparison.render import comparison_document
from tb_perfadvisor.report.formats.comparison.text import print_comparisons
from tb_perfadvisor.report.formats.render import document
from tb_perfadvisor.report.formats.text import WrappedText, print_document

DEMO_LOGS = Path(__file__).resolve().parents[2] / "demo_logs"
# Independent of the tested code: a number at the end of a line, its unit on the next.
TORN = re.compile(
    r"(?:[\d.]+|[<>]) *\n *(?:(?:%|ns|µs|ms|s|B|KiB|MiB|GiB|GB/s|TFLOP/s)(?!\w)|0\.1 %)"
)
SENTENCE = (
    "Of each step of 116 ms, 48.6 % is lost: 3.00 µs and < 0.1 % of 1.50 GiB at 450 GB/s, "
    "or 12.5 TFLOP/s. After 7 steps 999 ns remain."
)


def shown(content: object, width: int, **options: object) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False).print(content, **options)
    return stream.getvalue()


@pytest.mark.parametrize("width", range(13, 60))
def test_quantities_are_not_broken(width: int) -> None:
    text = shown(WrappedText(SENTENCE), width)
    assert not TORN.search(text)
    assert " ".join(text.split()) == SENTENCE
    assert max(map(len, text.splitlines())) <= width


def test_plain_text_would_break_quantities() -> None:
    assert any(TORN.search(shown(Text(SENTENCE), width)) for width in range(13, 60))


def test_lines_break_between_other_words() -> None:
    # These are not quantities: `7 steps` may be broken, and `s` is a word.
    words = "after 7 steps s follows"
    assert shown(WrappedText(words), 7).split("\n")[:3] == ["after 7", "steps s", "follows"]


def test_styles_are_kept() -> None:
    line = WrappedText(Text.assemble(("takes 3.00 ms", "bold"), " of 9.00 ms"))
    stream = io.StringIO()
    Console(file=stream, width=14, force_terminal=True, color_system="standard").print(line)
    assert stream.getvalue() == "\x1b[1mtakes 3.00 ms\x1b[0m \nof 9.00 ms\n"


def test_a_column_is_at_least_as_wide_as_its_quantities() -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row(WrappedText("a name with many words that can be parted"), WrappedText("70.4 ms"))
    assert "70.4 ms" in shown(table, 20)


@pytest.mark.parametrize("width", [32, 40, 52, 66, 80])
def test_reports_and_comparisons_break_no_quantity(width: int) -> None:
    slow, fixed = (DEMO_LOGS / f"pytorch_input_{variant}" for variant in ("slow", "fixed"))
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False)
    print_document(document([analyze(slow)]), console)
    print_comparisons(comparison_document([compare(slow, fixed)]), console)
    assert not TORN.search(stream.getvalue())
