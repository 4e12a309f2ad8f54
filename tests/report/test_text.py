"""Reports in narrow terminals and with long texts."""

from __future__ import annotations

import ast
import io
import textwrap
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from tb_perfadvisor.api import analyze
from tb_perfadvisor.report import Report, document
from tb_perfadvisor.report.formats.text import print_document
from tb_perfadvisor.report.formats.wording import saving_text

DEMO_LOGS = Path(__file__).resolve().parents[2] / "demo_logs"


@cache
def report_of(run: str) -> Report:
    return analyze(DEMO_LOGS / run)


def shown(report: Report, width: int) -> list[str]:
    stream = io.StringIO()
    print_document(document([report]), Console(file=stream, width=width, highlight=False))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def code_of(lines: list[str]) -> str:
    """The code of the first remedy of `jax_healthy`."""
    begin = next(place for place, line in enumerate(lines) if "train_step(state, batch)" in line)
    begin -= "#" in lines[begin - 1]
    end = next(place for place in range(begin, len(lines)) if not lines[place])
    return textwrap.dedent("\n".join(lines[begin:end]))


@pytest.mark.parametrize("width", [56, 64, 80, 120])
def test_code_copied_from_a_narrow_terminal_still_runs(width: int) -> None:
    code = code_of(shown(report_of("jax_healthy"), width))
    assert len(ast.parse(code).body) == 3
    assert "# returns before it is computed" in code


def test_a_comment_moves_above_its_line_only_if_needed() -> None:
    wide, narrow = (code_of(shown(report_of("jax_healthy"), width)) for width in (120, 56))
    assert wide.startswith("state, loss = train_step(state, batch)   # returns before")
    assert narrow.startswith("# returns before it is computed\nstate, loss = train_step(state, ba")


def test_reasons_are_aligned_next_to_their_counts() -> None:
    lines = shown(report_of("pytorch_ddp_balanced"), 60)
    (heading,) = (line for line in lines if line.startswith("Checks not applicable: "))
    begin = lines.index(heading) + 1
    for line in lines[begin : begin + 6]:
        assert line.startswith(" " * 7) or line[:5].strip().isdigit(), line


def test_a_range_with_equal_ends_is_not_shown() -> None:
    report = report_of("pytorch_input_slow")
    saving = report.findings[0].saving
    assert saving is not None
    close = replace(saving, low_ns=56_300_000, expected_ns=56_310_000, high_ns=56_320_000)
    assert "between" not in saving_text(close, report)
    assert "between 56.3 ms and 56.4 ms" in saving_text(replace(close, high_ns=56_360_000), report)
    assert saving_text(None, report) == "saving not estimated"
