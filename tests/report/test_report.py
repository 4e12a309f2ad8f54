from __future__ import annotations

import html
import sys
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from tb_perfadvisor import analyze
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.report.tables import TABLES

DEMO_LOGS = Path(__file__).resolve().parents[2] / "demo_logs"


@cache
def slow() -> Report:
    return analyze(DEMO_LOGS / "pytorch_input_slow")


def test_a_report_is_printed_on_one_line() -> None:
    text = repr(slow())
    assert text == (
        "<Report pytorch_input_slow / 2026_11_21_04_07_53.764: "
        "Waiting for input takes 48.7 % of each step. Load batches in worker processes (each takes "
        "56.5 ms now): up to −61.5 ms of 116, probably −36.6 (2 findings)>"
    )


def test_a_notebook_shows_the_headline_and_the_first_findings() -> None:
    text = slow()._repr_html_()
    assert "up to −61.5 ms of 116, probably −36.6" in text
    assert "1a. Load batches in worker processes" in text
    assert len(text) < 4_000
    many = replace(slow(), findings=slow().findings[:1] * 8)
    assert "… and 3 more" in many._repr_html_()


def test_names_in_a_notebook_are_not_html() -> None:
    (first, *_) = slow().findings
    named = replace(slow(), findings=[replace(first, heading=None, title="<img src=x>")])
    assert "<img" not in named._repr_html_()
    assert html.escape("<img src=x>") in named._repr_html_()


def test_show_gives_the_page() -> None:
    page = slow().show(height=300)
    assert page.height == 300
    assert slow().headline in page.text
    assert len(repr(page)) < 100


def test_a_frame_has_a_row_for_each_finding() -> None:
    frame = slow().to_frame()
    assert list(frame.columns) == list(TABLES["findings"])
    assert list(frame.rule_id) == ["input-stall", "loader-in-main-process"]
    assert list(frame.number) == ["1", "1a"]
    empty = replace(slow(), findings=[]).to_frame()
    assert (len(empty), list(empty.columns)) == (0, list(TABLES["findings"]))
    with pytest.raises(UsageError, match="made without the views that kernels are taken from"):
        slow().to_frame("kernels")


def test_a_frame_without_pandas_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="needs pandas, which is not installed"):
        slow().to_frame()
