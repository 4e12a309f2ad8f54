"""Every state of a page is in its address: a pasted link and Back show the same picture."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

import pytest

from tb_perfadvisor.testing import draw
from tests.support.browser import (
    Visitor,
    capture_of,
    captures_at,
    eventually,
    link,
    open_part,
    report_at,
    serving,
    settle,
)
from tests.support.memory_snapshots import training_snapshot
from tests.support.server_trace import Served, server_trace
from tests.support.writers import write_kineto

# All that is drawn, and what the user typed; not the focus, and not where the pointer is.
PICTURE = """main => {
  const hash = text => {
    let sum = 0;
    for (const letter of text) sum = (Math.imul(sum, 31) + letter.charCodeAt()) | 0;
    return sum;
  };
  const copy = main.cloneNode(true);
  const fields = [...main.querySelectorAll("input, select")];
  [...copy.querySelectorAll("input, select")].forEach((field, at) => {
    field.setAttribute("data-value", fields[at].value);
    field.setAttribute("data-checked", fields[at].checked);
  });
  const canvases = [...main.querySelectorAll("canvas")];
  [...copy.querySelectorAll("canvas")].forEach((canvas, at) => {
    // The order of a canvas's attributes depends on which was set first.
    canvas.removeAttribute("style");
    canvas.setAttribute("data-pixels", hash(canvases[at].toDataURL()));
  });
  // What Plot shows below the pointer.
  for (const tip of copy.querySelectorAll("[data-part=tip], [aria-label=tip]")) tip.remove();
  // Ids that Preact and Plot count up.
  return copy.outerHTML.replace(/\\bP\\d+-\\d+\\b/g, "ID").replace(/\\bplot-[\\w-]*\\d+\\b/g, "ID");
}"""


def expect(page: Any, tab: Any, picture: str) -> None:
    """Wait until the tab shows a picture, or fail with the differences."""
    for _ in range(40):
        shown = tab.locator("main").evaluate(PICTURE)
        if shown == picture:
            return
        page.wait_for_timeout(250)
    lines = [html.replace("<", "\n<").splitlines() for html in (picture, shown)]
    pytest.fail("\n".join(list(difflib.unified_diff(*lines, n=1, lineterm=""))[:60]))


def row(tab: Any, table: str, number: int) -> Any:
    return tab.get_by_role("group", name=table, exact=True).get_by_role("row").nth(number)


def sort(tab: Any, table: str, column: str) -> None:
    head = tab.get_by_role("group", name=table, exact=True)
    head.get_by_role("button", name=column, exact=True).click()


def zoom(tab: Any) -> None:
    timeline = tab.get_by_role("application", name=re.compile("^Events")).first
    timeline.wait_for()
    timeline.press("w")
    timeline.press("d")


def change_report(tab: Any) -> None:
    tab.get_by_role("button", name=re.compile("^Waiting for input")).click()
    tab.get_by_role("button", name="Previous event").or_(
        tab.get_by_role("button", name="Next event")
    ).locator("visible=true").and_(tab.locator(":enabled")).first.click()
    zoom(tab)
    tab.get_by_text("What this program is").click()


def change_finding(tab: Any) -> None:
    titles = tab.locator(".finding-row")
    titles.nth(0).click()
    titles.nth(1).click()
    open_part(tab, "Evidence")
    tab.locator(".finding-body .event-button").nth(1).click()
    zoom(tab)
    tab.locator(".legend [aria-expanded=false]").first.click()


def change_timeline(tab: Any) -> None:
    zoom(tab)
    tab.get_by_label("Mark the time of").select_option("0")
    tab.get_by_role("searchbox", name="Find events by name").fill("aten::")
    tab.get_by_text(re.compile("^[0-9,]+ events, ")).wait_for()
    tab.get_by_role("button", name="As a table").click()
    row(tab, "Events in view", 2).get_by_role("button").click()


def change_range(tab: Any) -> None:
    zoom(tab)
    tab.get_by_role("button", name="Sum up the view").click()
    beside = tab.get_by_label("Compare with the same part of")
    beside.select_option(index=1)
    tab.get_by_role("columnheader", name="Difference").wait_for()
    tab.get_by_role("button", name="Critical path").click()
    tab.get_by_text(re.compile("critical path of step")).wait_for()
    tab.get_by_role("searchbox", name="Find events by name").fill("conv")
    tab.get_by_role("button", name="List").click()
    tab.get_by_role("group", name="Events found").wait_for()


def change_steps(tab: Any) -> None:
    row(tab, "All steps", 3).get_by_role("button").click()
    zoom(tab)
    sort(tab, "All steps", "Duration")


def change_kernels(tab: Any) -> None:
    sort(tab, "All kernels", "Count")
    tab.get_by_role("button", name="Full names").click()
    row(tab, "All kernels", 2).get_by_role("button").click()
    zoom(tab)


def change_kernel_groups(tab: Any) -> None:
    tab.get_by_role("button", name="By family").click()
    sort(tab, "Kernels by family", "Mean")


def change_operators(tab: Any) -> None:
    tab.get_by_role("searchbox", name="Find operators").fill("aten")
    sort(tab, "Operators", "Longest call")
    row(tab, "Operators", 2).get_by_role("button").click()
    zoom(tab)


def change_calls(tab: Any) -> None:
    tab.get_by_role("button", name="Tree").click()
    tree = tab.get_by_role("treegrid")
    tree.get_by_role("row").nth(2).click()
    tree.press("ArrowLeft")
    tab.get_by_role("button", name="Flame graph").click()
    tab.get_by_role("application").press("Enter")
    tab.get_by_role("searchbox", name="Find calls").fill("conv")


def change_inverted_calls(tab: Any) -> None:
    tab.get_by_role("button", name="Tree").click()
    tab.get_by_role("button", name="Inverted").click()
    tree = tab.get_by_role("treegrid")
    tree.get_by_role("row").nth(2).click()
    tree.press("ArrowRight")


def change_memory(tab: Any) -> None:
    sort(tab, "Allocated at the peak", "Memory")


def change_nothing(tab: Any) -> None:
    """For pages on which there is nothing to choose."""
    del tab


def change_ranks(tab: Any) -> None:
    tab.get_by_role("button", name="Time", exact=True).click()
    sort(tab, "All ranks", "Waiting")


def change_parallelism(tab: Any) -> None:
    row(tab, "Parallel dimensions", -1).get_by_role("button").click()
    sort(tab, "Operations", "Operation")


def change_training(tab: Any) -> None:
    tab.get_by_label("Price per device and hour").fill("2.5")
    tab.get_by_label("Last step of the run").fill("5000")
    tab.get_by_label("Last step of the run").press("Tab")
    # The numbers for these options take a moment.
    tab.get_by_text("at $2.50 an hour").first.wait_for()


def change_what_if(tab: Any) -> None:
    boxes = tab.get_by_role("checkbox", name=re.compile("^Count this change"))
    boxes.nth(0).check()
    boxes.nth(1).check()
    tab.locator(".what-if-outcome").wait_for()


def change_history(tab: Any) -> None:
    tab.get_by_text("latest vs. first of 3 recordings").wait_for()
    sort(tab, "Recordings", "Step time")


def change_serving(tab: Any) -> None:
    sort(tab, "Steps by kind", "Steps")
    sort(tab, "Host work by phase", "Host")


def change_snapshot(tab: Any) -> None:
    tab.get_by_label("Compare with").select_option(label="other")
    tab.get_by_role("heading", level=3, name="other").wait_for()
    tab.get_by_text("Memory at the end of each step").first.click()
    sort(tab, "Allocated at the peak, by line", "Allocated at")


def change_comparison(tab: Any) -> None:
    tab.get_by_role("heading", level=2, name="All runs").wait_for()
    sort(tab, "All runs", "Run")
    tab.locator(".folds summary").first.click()


def change_rules(tab: Any) -> None:
    tab.get_by_role("button", name=re.compile("Passed")).click()
    tab.get_by_role("searchbox", name="Find a rule").fill("e")
    sort(tab, "Rules", "Category")


def change_runs(tab: Any) -> None:
    tab.get_by_role("searchbox", name="Find a run").fill("pytorch")


def change_files(tab: Any) -> None:
    tab.get_by_role("searchbox", name="Find a capture").fill("jax")
    sort(tab, "Captures", "Size")


class State(NamedTuple):
    """A page, what to do on it, and what its address must then name."""

    view: str
    run: str
    change: Callable[[Any], None]
    named: tuple[str, ...]


STATES = (
    State(
        "report",
        "pytorch_input_slow",
        change_report,
        ("cause=input", "cause.stretch=", "cause.stretch.zoom=", "program=1"),
    ),
    State(
        "report",
        "synthetic_gpu_allreduce_8rank",
        change_finding,
        ("finding=", ".details=evidence", ".event=", ".event.zoom=", "open."),
    ),
    State("report", "pytorch_input_slow", change_what_if, ("if=input-stall,",)),
    State(
        "timeline",
        "pytorch_input_slow",
        change_timeline,
        ("zoom=", "pick=", "find=aten", "table=1", "about=0"),
    ),
    State(
        "timeline",
        "pytorch_input_slow",
        change_range,
        ("range=", "beside=step-", "path=1", "find=conv", "list=1"),
    ),
    State("input", "tensorflow_input_slow", change_nothing, ()),
    State("time", "pytorch_input_slow", change_steps, ("step=", "step.zoom=", "all-steps.sort=")),
    State(
        "device",
        "synthetic_gpu_allreduce_8rank",
        change_kernels,
        ("kernel=", "kernel.zoom=", "all-kernels.sort=", ".names=1"),
    ),
    State("device", "synthetic_gpu_allreduce_8rank", change_kernel_groups, ("by=family",)),
    State(
        "host",
        "pytorch_input_slow",
        change_operators,
        ("by.chosen=aten::", "by.chosen.zoom=", "operators.find=aten"),
    ),
    State("host", "pytorch_input_slow", change_calls, ("find=conv", "as=flames", "root=")),
    State("host", "pytorch_input_slow", change_inverted_calls, ("inverted=1", "toggled=")),
    State("memory", "tensorflow_input_slow", change_memory, ("allocated-at-the-peak.sort=bytes",)),
    State("ranks", "pytorch_ddp_straggler", change_ranks, ("difference=0", "all-ranks.sort=")),
    State("ranks", "synthetic_gpu_allreduce_8rank", change_parallelism, ("dimension=",)),
    State("time", "pytorch_whole_run", change_training, ("price=2.5", "last_step=5000")),
    State("compare", "pytorch_input_slow", change_comparison, ("all-runs.sort=",)),
    State("about", "pytorch_input_slow", change_rules, ("outcome=passed", "rules.find=e")),
    State("runs", "", change_runs, ("find=pytorch",)),
    State("about", "jax_healthy", change_files, ("captures.find=jax", "captures.sort=")),
)
# The parts of these pages that change are on others, too.
AT_NIGHT = (
    *(change_kernel_groups, change_inverted_calls, change_memory, change_ranks),
    *(change_parallelism, change_files, change_nothing),
)


@pytest.mark.parametrize(
    "state",
    [pytest.param(s, marks=pytest.mark.nightly if s.change in AT_NIGHT else ()) for s in STATES],
    ids=lambda state: f"{state.view}-{state.change.__name__}",
)
def test_the_address_restores_what_is_shown(
    visitor: Visitor,
    guest: Visitor,
    address: str,
    captures: list[dict[str, Any]],
    ids: Callable[[str], str],
    report_of: Callable[[str], dict[str, Any]],
    state: State,
) -> None:
    for capture in (
        captures if state.view in ("runs", "about", "time") else ()
    ):  # what is shown of other captures changes as they are analyzed
        report_of(capture["id"])
    rest = {"target": ids("pytorch_input_fixed")} if state.view == "compare" else {}
    where = link(ids(state.run), **rest) if state.run else "#perf_advisor"
    check(visitor, guest, f"{address}/{where}", state)


def check(visitor: Visitor, guest: Visitor, where: str, state: State) -> None:
    """Change a page, and expect the same picture in another window and after Back."""
    page, tab = visitor.page, visitor.tab()
    main = tab.locator("main")

    def picture() -> str:
        settle(tab)
        drawn: str = main.evaluate(PICTURE)
        return drawn

    visitor.open(f"{where}&p.perf_advisor.view={state.view}")
    tab.get_by_role("heading", level=1).first.wait_for()
    settle(tab)
    before = picture()
    state.change(tab)
    # Timelines fetch their events a moment after they move, and the URL follows, too.
    page.wait_for_timeout(800)
    changed = picture()
    assert (changed != before) == bool(state.named)
    shown = unquote(page.url)
    assert [name for name in state.named if name not in shown] == []

    # A new window shows the same.
    other = guest.open(page.url)
    other.get_by_role("heading", level=1).first.wait_for()
    settle(other)
    expect(guest.page, other, changed)

    # So does Back, from another page, which has nothing of this state in its address.
    other_page = "Compare" if state.view == "runs" else "Runs"
    folder = tab.get_by_role("navigation", name="Log folder")
    folder.get_by_role("link", name=other_page).click()
    eventually(page, lambda: f"view={other_page.lower()}" in page.url)
    kept = [name for name in state.named if name in unquote(page.url)]
    # What the user says about a run is about more than one page.
    assert kept == [name for name in state.named if name.startswith(("price", "last_step"))]
    page.go_back()
    expect(page, tab, changed)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A TensorBoard on what the demo profiles do not have: a server, a snapshot, recordings."""
    logs = tmp_path_factory.mktemp("logs")
    server = server_trace([Served(decodes=8), *[Served(decodes=4)] * 4])
    steps = draw("cell 1ms\nstep |...|...|...|\nmain |oo.|oo.|oo.|\ngpu 7 |.KK|.KK|.KK|")
    files = {"server/rank0.pt.trace.json": write_kineto(server)}
    for number in (1, 2, 3):
        name = f"lm/step_{1000 * number:08}/w0.170000{number}000000000000.pt.trace.json"
        files[name] = write_kineto(steps)
    files |= {f"{name}/memory.pickle": training_snapshot() for name in ("snapshot", "other")}
    for name, content in files.items():
        (logs / name).parent.mkdir(parents=True, exist_ok=True)
        (logs / name).write_bytes(content)
    with serving("--logdir", str(logs), cache=tmp_path_factory.mktemp("cache")) as url:
        yield url


@pytest.mark.nightly
@pytest.mark.parametrize(
    "state",
    [
        State("time", "lm/step_00001000", change_history, ("recordings.sort=",)),
        State("serving", "server", change_serving, ("steps-by-kind.sort=", "by-phase.sort=")),
        State("memory", "snapshot", change_snapshot, ("snapshot.other=", ".steps=1", ".sort=")),
    ],
    ids=lambda state: state.view,
)
def test_the_address_restores_pages_of_other_profiles(
    visitor: Visitor, guest: Visitor, others: str, state: State
) -> None:
    capture = capture_of(others, state.run)["id"]
    for known in captures_at(others):  # what a run can be compared with changes as they fill in
        report_at(others, known["id"])
    check(visitor, guest, f"{others}/{link(capture)}", state)
