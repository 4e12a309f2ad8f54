"""The pages of the tab on profiles recorded on GPUs, with independently computed numbers.

The expected numbers are sums over the events of the files, or come from the PyTorch plugin.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Visitor, capture_of, link, read, report_at, serving, text_of

RESNET, MORE_WORKERS, RANKS = "resnet50_num_workers_0", "resnet50_num_workers_4", "ranks"
# A V100 that loads batches in process, one that uses four workers, and two ranks of 128.
SOURCES = {
    RESNET: "kineto/resnet50_num_workers_0",
    MORE_WORKERS: "kineto/resnet50_num_workers_4",
    RANKS: "hta/trace_filter",
}


@pytest.fixture(scope="module")
def server(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    logs = tmp_path_factory.mktemp("gpus")
    for run, source in SOURCES.items():
        shutil.copytree(corpus / source, logs / run)
    with serving("--logdir", str(logs), cache=tmp_path_factory.mktemp("cache")) as address:
        yield address


@pytest.fixture(scope="module")
def events(corpus: Path) -> list[dict[str, Any]]:
    """The events of the first profile."""
    (file,) = (corpus / SOURCES[RESNET]).glob("*.gz")
    recorded: list[dict[str, Any]] = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    return recorded


@pytest.fixture
def shown(server: str, visitor: Visitor) -> Callable[..., tuple[str, Any]]:
    """Opens a page of a run; returns the id of its capture and the frame."""

    def show(view: str, run: str = RESNET, **rest: str) -> tuple[str, Any]:
        capture = capture_of(server, run)["id"]
        report_at(server, capture)
        tab = visitor.open(f"{server}/{link(capture, view=view, **rest)}")
        tab.get_by_role("heading", level=1).first.wait_for()
        return capture, tab

    return show


def steps_of(events: list[dict[str, Any]]) -> tuple[int, int, int]:
    """The start and end of the recorded steps, in microseconds, and their number."""
    steps = [event for event in events if str(event.get("name")).startswith("ProfilerStep#")]
    begin = min(step["ts"] for step in steps)
    return begin, max(step["ts"] + step["dur"] for step in steps), len(steps)


def milliseconds(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+) ms", text)]


def test_kernels(
    shown: Callable[..., tuple[str, Any]], server: str, events: list[dict[str, Any]]
) -> None:
    capture, tab = shown("device")
    names = [point["name"] for point in read(server, f"captures/{capture}/views/kernels")["points"]]
    name = next(candidate for candidate in names if names.count(candidate) == 1)
    begin, end, steps = steps_of(events)
    runs = [
        event["dur"]
        for event in events
        if event.get("cat") == "Kernel" and event["name"] == name and begin <= event["ts"] < end
    ]
    per_step_ms = sum(runs) / steps / 1e3
    assert per_step_ms > 1
    tab.get_by_role("button", name="Full names").first.click()
    row = text_of(
        tab.get_by_role("group", name="All kernels").get_by_role("row").filter(has_text=name)
    )
    assert milliseconds(row)[0] == pytest.approx(
        per_step_ms, rel=0.005
    )  # the tab shows three digits
    assert f"\t{len(runs)}\t" in row
    assert tab.get_by_role("img", name=re.compile("^Roofline of")).locator("circle").count() > 10


def test_memory(shown: Callable[..., tuple[str, Any]], events: list[dict[str, Any]]) -> None:
    changes = sorted(
        (event["ts"], event["args"]["Bytes"])
        for event in events
        if event.get("name") == "[memory]" and event["args"]["Device Id"] == 0
    )
    peak = max(accumulate(size for _, size in changes))
    _, tab = shown("memory")
    heading = text_of(tab.get_by_role("heading", level=1))
    assert f"Peak device memory: {peak / 2**30:.2f} GiB" in heading


def test_input_and_steps(shown: Callable[..., tuple[str, Any]]) -> None:
    # The PyTorch plugin counts 59.262 ms of data loading in an average step of 177.605 ms. Its
    # steps lie between the ends of the markers.
    _, tab = shown("input")
    (stall_ms,) = milliseconds(text_of(tab.get_by_role("heading", level=1)))
    assert stall_ms == pytest.approx(59.262, rel=0.02)
    _, tab = shown("time")
    # ProfilerStep#8 is the slowest.
    tab.get_by_text(re.compile(r"\b181\s*ms")).first.wait_for()


def test_ranks(shown: Callable[..., tuple[str, Any]]) -> None:
    _, tab = shown("ranks", RANKS)
    tab.get_by_role("heading", level=2, name="All ranks", exact=True).wait_for()
    rows = tab.get_by_role("group", name="All ranks", exact=True).get_by_role("row")
    # The mean ProfilerStep of each.
    for rank, step_ms in (("rank 0", 615.1), ("rank 1", 619.3)):
        row = text_of(rows.filter(has_text=rank))
        assert milliseconds(row)[0] == pytest.approx(step_ms, rel=0.002)


def test_compare(shown: Callable[..., tuple[str, Any]], server: str) -> None:
    target = capture_of(server, MORE_WORKERS)["id"]
    report_at(server, target)
    base = capture_of(server, RESNET)["id"]
    _, tab = shown("compare", base=base, target=target)
    tab.get_by_role("heading", level=2, name="All runs").wait_for()
    text = text_of(tab.locator("main"))
    # INDEX: steps of 174.829 and, with four workers, 139.692 ms on average: 175 and 140 ms.
    assert re.search(rf"\b{175 / 140:.2f}\s?×", text)
    assert "Waiting for input" in text
