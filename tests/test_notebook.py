from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from tb_perfadvisor import analyze, show
from tb_perfadvisor.errors import NothingFoundError
from tb_perfadvisor.report.report import Page

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


def test_the_magic_shows_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shell = InteractiveShell(ipython_dir=str(tmp_path / "ipython"))

    def run(cell: str) -> object:
        return shell.run_cell(cell).result

    run("%load_ext tb_perfadvisor")
    run(f"logs = {str(DEMO_LOGS)!r}")
    page = run("%perfadvisor '{logs}/pytorch_input_slow'")
    assert isinstance(page, Page)
    assert analyze(DEMO_LOGS / "pytorch_input_slow").headline in page.text
    capsys.readouterr()
    assert run(f"%perfadvisor {tmp_path / 'ipython'}") is None
    assert run("%perfadvisor a b") is None
    printed = capsys.readouterr().err
    assert "contains no profile" in printed
    assert "error: %perfadvisor: takes one path. Quote one with spaces." in printed
    assert "Traceback" not in printed
