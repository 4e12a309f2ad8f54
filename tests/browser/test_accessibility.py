"""axe on every page, in both themes and at three widths: with no run, one, and a thousand.

Colors depend on the theme and the layout on the width, so that not every pair of both is needed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.browser import ROOT, Visitor, captures_at, link, report_at, serving, settle
from tests.support.browser import violations as violations_in

LOOKS = (("light", 1400), ("dark", 900), ("light", 400))
RUNS = 1_000
ONE = "pytorch_input_slow"

Page = dict[str, str]


@pytest.fixture
def look(visitor: Visitor) -> Callable[[str], None]:
    """Opens an address and looks at it in both themes and at all widths."""

    def at(address: str) -> None:
        page, tab = visitor.page, visitor.tab()
        page.set_viewport_size({"width": LOOKS[0][1], "height": 1000})
        visitor.open(address)
        tab.get_by_role("heading", level=1).first.wait_for()
        for theme, width in LOOKS:
            visitor.darken(theme == "dark")
            tab.locator(f"html[data-theme={theme}]").wait_for()
            page.set_viewport_size({"width": width, "height": 1000})
            settle(tab)
            assert violations_in(tab) == [], (address, theme, width)
            html = tab.locator("html")
            assert html.evaluate("e => e.scrollWidth <= e.clientWidth"), (address, width)

    return at


def test_without_runs(
    board: Callable[..., str], look: Callable[[str], None], tmp_path: Path
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "notes.json").write_text('{"note": "not a trace"}')
    server = board("--logdir", str(tmp_path / "logs"), has_captures=False)
    look(f"{server}/#perf_advisor")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    logs = tmp_path_factory.mktemp("one")
    shutil.copytree(ROOT / "demo_logs" / ONE, logs / ONE)
    with serving("--logdir", str(logs), cache=tmp_path_factory.mktemp("cache")) as server:
        yield server


@pytest.mark.parametrize(
    "page",
    [
        *({"view": name} for name in ("report", "time", "input", "host")),
        *({"view": name} for name in ("runs", "compare", "about")),
        {"view": "host", "as": "tree"},
        # The tests of these pages look at other profiles.
        *(
            pytest.param({"view": name}, marks=pytest.mark.nightly)
            for name in ("timeline", "memory", "ranks")
        ),
        {"view": "host", "as": "flames", "of.inverted": "1"},
        pytest.param({"view": "timeline", "table": "1", "find": "conv"}, marks=pytest.mark.nightly),
        {"view": "report", "if": "input-stall,loader-in-main-process"},
        {"view": "report", "finding": "loader-in-main-process"},
        {"view": "about", "rule": "input-stall"},
    ],
    ids=lambda page: " ".join(page.values()),
)
def test_with_one_run(one: str, look: Callable[[str], None], page: Page) -> None:
    (capture,) = captures_at(one)
    report_at(one, capture["id"])
    look(f"{one}/{link(capture['id'], **page)}")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("view", "run"),
    [
        ("report", "pytorch_ddp_straggler"),
        ("ranks", "pytorch_ddp_straggler"),
        ("ranks", "synthetic_gpu_allreduce_8rank"),
        ("device", "synthetic_gpu_allreduce_8rank"),
        ("host", "synthetic_gpu_allreduce_8rank"),
        ("input", "tensorflow_input_slow"),
        ("time", "pytorch_whole_run"),
        ("compare", "pytorch_input_slow"),
        ("report", "synthetic_tpu_padded"),
        ("runs", "jax_healthy"),
    ],
)
def test_with_several_runs(
    address: str,
    ids: Callable[[str], str],
    look: Callable[[str], None],
    view: str,
    run: str,
) -> None:
    rest = {"target": ids("pytorch_input_fixed")} if view == "compare" else {}
    look(f"{address}/{link(ids(run), view=view, **rest)}")


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A thousand runs of a small recording, in forty experiments."""
    logs = tmp_path_factory.mktemp("thousand")
    (trace,) = (ROOT / "demo_logs" / ONE).glob("*.pt.trace.json.gz")
    for number in range(RUNS):
        run = logs / f"experiment{number // 25:02}" / f"run{number % 25:02}"
        run.mkdir(parents=True)
        copy = run / f"w0.{1_760_000_000 + number}000000000.pt.trace.json.gz"
        if number == 0:
            first = shutil.copy(trace, copy)
        else:
            os.link(first, copy)
    with serving("--logdir", str(logs), cache=tmp_path_factory.mktemp("cache")) as server:
        yield server


@pytest.mark.nightly
@pytest.mark.parametrize("view", ["runs", "compare", "about", "report"])
def test_with_a_thousand_runs(thousand: str, look: Callable[[str], None], view: str) -> None:
    captures = captures_at(thousand)
    assert len(captures) == RUNS
    capture = captures[0]["id"]
    report_at(thousand, capture)
    look(f"{thousand}/{link(capture, view=view)}")
