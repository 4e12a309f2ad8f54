"""From a number to its events: causes, steps, kernels and operators open their timeline."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.browser import violations

pytestmark = pytest.mark.smoke

Opener = Callable[..., Any]
Reader = Callable[[str], dict[str, Any]]


def test_a_segment_shows_the_findings_and_events_of_its_cause(
    opened: Opener, ids: Callable[[str], str], read: Reader
) -> None:
    capture = ids("pytorch_input_slow")
    report = read(f"captures/{capture}/report")
    causes = [part["cause"] for part in report["overview"]["breakdown"]]
    # The program waits for input; its operators are as fast as they can be.
    assert all(finding["causes"] == ["input"] for finding in report["findings"])
    frame = opened("report", capture)
    frame.locator(".breakdown-bar svg g[data-part='bar'] rect").nth(causes.index("input")).click()
    frame.get_by_role("button", name=re.compile("^Waiting for input"), pressed=True).wait_for()
    frame.get_by_role(
        "heading", level=2, name="Waiting for input: its longest stretches"
    ).wait_for()
    frame.get_by_role("application", name=re.compile("^Events around")).wait_for()
    titles = frame.locator(".findings .finding-title")
    assert titles.count() > 0
    # The legend does the same by keyboard.
    operators = frame.get_by_role("button", name=re.compile("^Operators on the host"))
    operators.press("Enter")
    frame.get_by_role("heading", level=2, name=re.compile("^Operators on the host")).wait_for()
    frame.get_by_text("No finding saves time of this cause.").wait_for()
    assert titles.count() == 0
    operators.press("Enter")
    titles.first.wait_for()
    assert frame.get_by_role("heading", name=re.compile("longest stretches")).count() == 0


def test_compute_opens_into_precisions(
    opened: Opener, ids: Callable[[str], str], read: Reader
) -> None:
    capture = ids("synthetic_gpu_allreduce_8rank")
    breakdown = read(f"captures/{capture}/report")["overview"]["breakdown"]
    labels = [part["label"] for part in breakdown if part["cause"].startswith("compute-")]
    assert len(labels) > 1
    frame = opened("report", capture)
    legend = frame.locator(".legend")
    bars = frame.locator(".breakdown-bar svg g[data-part='bar'] rect")
    shown = bars.count()
    compute = legend.get_by_role("button", name=re.compile("^Compute"))
    assert compute.count() == 1
    compute.press("Enter")
    for label in labels:
        legend.get_by_role("button", name=re.compile(f"^{label}")).wait_for()
    assert bars.count() == shown - 1 + len(labels)


def test_a_bar_opens_its_step(opened: Opener, ids: Callable[[str], str], read: Reader) -> None:
    capture = ids("pytorch_input_slow")
    steps = read(f"captures/{capture}/views/steps")["index"]
    frame = opened("time", capture)
    chart = frame.get_by_role("img", name=re.compile("^Step times stacked by cause"))
    # The bars of the first cause, one for each step.
    chart.locator("g[data-part='bar'] rect").nth(2).click()
    frame.get_by_role(
        "heading", level=2, name=re.compile(rf"^Step ({'|'.join(map(str, steps))}):")
    ).wait_for()
    frame.get_by_role("application", name=re.compile("^Events around step")).wait_for()
    frame.get_by_role("button", name="Close the timeline").click()
    frame.get_by_role("application", name=re.compile("^Events around step")).wait_for(
        state="detached"
    )
    table = frame.get_by_role("group", name="All steps")
    table.get_by_role("button", name=str(steps[1]), exact=True).press("Enter")
    frame.get_by_role("heading", level=2, name=re.compile(rf"^Step {steps[1]}:")).wait_for()


def test_a_kernel_opens_its_timeline_and_kernels_are_grouped(
    opened: Opener, ids: Callable[[str], str], read: Reader
) -> None:
    capture = ids("synthetic_gpu_allreduce_8rank")
    view = read(f"captures/{capture}/views/kernels")
    first = view["points"][0]
    assert sum(group["total_ns"] for group in view["families"]) == sum(
        point["total_ns"] for point in view["points"]
    )
    frame = opened("device", capture)
    table = frame.get_by_role("group", name="All kernels")
    table.get_by_role("row").nth(1).get_by_role("button").click()
    name = re.compile(f"^Events around {re.escape(first['name'])}")
    frame.get_by_role("application", name=name).wait_for()
    if len(view["families"]) > 1:
        frame.get_by_role("button", name="By family").click()
        rows = frame.get_by_role("group", name="Kernels by family").get_by_role("row")
        assert rows.count() == len(view["families"]) + 1


def test_operators_by_own_time(opened: Opener, ids: Callable[[str], str], read: Reader) -> None:
    capture = ids("pytorch_input_slow")
    view = read(f"captures/{capture}/views/operators")
    rows = view["by_operator"]["rows"]
    first = max(rows, key=lambda row: row["self_ns"])
    frame = opened("host", capture)
    row = frame.get_by_role("group", name="Operators").get_by_role("row").nth(1)
    assert first["operator"] in row.inner_text()
    assert f"{100 * first['share']:.1f} %" in row.inner_text()
    row.get_by_role("button").click()
    frame.get_by_role("application", name=re.compile("^Events around")).wait_for()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_what_opens_is_accessible(opened: Opener, ids: Callable[[str], str], dark: bool) -> None:
    capture = ids("synthetic_gpu_allreduce_8rank")
    frame = opened("report", capture, dark=dark)
    frame.locator(".legend [aria-pressed]").first.click()
    frame.get_by_role("application", name=re.compile("^Events around")).wait_for()
    # What the chart shows below the pointer, too.
    frame.locator(".breakdown-bar svg g[data-part='bar'] rect").first.hover()
    frame.locator(".breakdown-bar [data-part=tip] text").first.wait_for()
    assert violations(frame) == []
    frame = opened("time", capture, dark=dark)
    frame.get_by_role("group", name="All steps").get_by_role("row").nth(1).get_by_role(
        "button"
    ).click()
    frame.get_by_role("application", name=re.compile("^Events around")).wait_for()
    assert violations(frame) == []
    frame = opened("device", capture, dark=dark)
    frame.get_by_role("group", name="All kernels").get_by_role("row").nth(1).get_by_role(
        "button"
    ).click()
    frame.get_by_role("application", name=re.compile("^Events around")).wait_for()
    assert violations(frame) == []


PERFETTO = """<!doctype html><title>Perfetto</title><script>
addEventListener("message", ({ data, source, origin }) => {
  if (data === "PING") source.postMessage("PONG", origin);
  else if (data.perfetto) window.received = Array.from(new Uint8Array(data.perfetto.buffer));
});
</script>"""


def test_perfetto_gets_the_events_and_nothing_before_the_click(
    opened: Opener, ids: Callable[[str], str], read: Reader
) -> None:
    capture = ids("pytorch_input_slow")
    finding = read(f"captures/{capture}/report")["findings"][0]["rule_id"]
    frame = opened("report", capture, finding=finding)
    page = frame.locator("main").page
    requests: list[str] = []

    def answer(route: Any) -> None:
        requests.append(route.request.url)
        route.fulfill(body=PERFETTO, content_type="text/html")

    page.context.route("https://ui.perfetto.dev/**", answer)
    button = frame.get_by_role("button", name="Open in Perfetto").first
    button.wait_for()
    assert requests == []
    with page.context.expect_page() as opening:
        button.click()
    perfetto = opening.value
    perfetto.wait_for_function("window.received")
    trace = json.loads(gzip.decompress(bytes(perfetto.evaluate("received"))))
    assert any(event.get("ph") == "X" for event in trace["traceEvents"])
    assert len(requests) == 1
    perfetto.close()


def test_tables_are_copied_as_csv(opened: Opener, ids: Callable[[str], str], read: Reader) -> None:
    capture = ids("pytorch_input_slow")
    steps = read(f"captures/{capture}/views/steps")
    frame = opened("time", capture)
    page = frame.locator("main").page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    frame.get_by_role("button", name="Copy as CSV").click()
    frame.get_by_role("button", name="Copied").wait_for()
    lines = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert lines[0].startswith("Step,Duration (ns),")
    assert lines[1].startswith(f"{steps['index'][0]},{steps['duration_ns'][0]},")
    assert len(lines) == len(steps["index"]) + 1
