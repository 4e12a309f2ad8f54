from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from tb_perfadvisor import analyze, show
from tb_perfadvisor.errors import NothingFoundError

DEMO_LOGS = Path(__file__).resolve().parents[1] / "demo_logs"


def test_the_frame_contains_the_whole_page() -> None:
    page = show(DEMO_LOGS / "pytorch_input_slow", height=300)
    frame = page._repr_html_()
    match = re.fullmatch(r'<iframe [^>]*srcdoc="([^"]*)"></iframe>', frame)
    assert match is not None
    assert html.unescape(match[1]) == page.text
    assert "height: 300px" in frame
    # Scripts run, but cannot reach the notebook or its cookies.
    assert 'sandbox="allow-scripts"' in frame
    headline = analyze(DEMO_LOGS / "pytorch_input_slow").headline
    assert headline in page.text
    assert "captures/0/views/steps" in page.text
    assert re.fullmatch(r"<Perf Advisor page, [\d.]+ [KM]iB of HTML in .text>", repr(page))


def test_nothing_to_show_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NothingFoundError, match="contains no profile"):
        show(tmp_path)
    (tmp_path / "worker0.1.pt.trace.json").write_text("{")
    with pytest.raises(NothingFoundError, match="contains no readable profile"):
        show(tmp_path)
