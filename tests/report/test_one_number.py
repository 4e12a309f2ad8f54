"""Each quantity has one value in all pages and outputs, or the difference stands beside it."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tb_perfadvisor import load
from tb_perfadvisor.api.analyses import analyze_below
from tb_perfadvisor.comparison.compare import compare_facts
from tb_perfadvisor.comparison.interval import mark, pace_of
from tb_perfadvisor.comparison.run_facts import RunFacts, make_facts
from tb_perfadvisor.contract import model
from tb_perfadvisor.contract.names import run_row
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.change_model import change_model
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.report.build import build_report
from tb_perfadvisor.report.formats.render import document, render
from tb_perfadvisor.units import format_duration

Json = dict[str, Any]
DEMOS = Path(__file__).parents[2] / "demo_logs"
NS = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}


def is_near(one: float, other: float, share: float = 1e-3) -> bool:
    """Whether two numbers are one, but for rounding."""
    return abs(one - other) <= max(share * max(abs(one), abs(other)), 2)


def contradictions(report: Json) -> Iterator[str]:
    """What two places of a report say differently."""
    yield from _of_time(report)
    yield from _of_savings(report)
    views = report["views"] or {}
    for name, check in (
        ("kernels", _of_rates),
        ("memory", _of_memory),
        ("parallelism", _of_dimensions),
        ("serving", _of_server_steps),
        ("operators", _of_operators),
        ("calls", _of_calls),
    ):
        if views.get(name):
            yield from check(report, views[name])


def _of_time(report: Json) -> Iterator[str]:
    """Step, window, causes and shares: in the overview, the key numbers and the views."""
    overview, views, count = report["overview"], report["views"] or {}, report["steps"]["used"]
    window_ns, step_ns = overview["window_ns"], overview["step_time_ns"]
    cause_ns = {part["cause"]: part["total_ns"] for part in overview["breakdown"]}
    if overview["steps"] != count or (step_ns is None) != (count == 0):
        yield f"{overview['steps']} and {count} steps of {step_ns} ns"
    if count and not is_near(step_ns, window_ns / count):
        yield f"a step of {step_ns} ns, and {count} of {window_ns / count} ns"
    if sum(cause_ns.values()) != window_ns:
        yield f"causes add up to {sum(cause_ns.values())} of {window_ns} ns"
    for field, causes in (
        ("input_wait_share", ["input"]),
        ("between_steps_share", ["between-steps"]),
        ("exposed_communication_share", ["communication"]),
        ("exposed_copy_share", ["copies"]),
        ("device_compute_share", [cause for cause in cause_ns if cause.startswith("compute")]),
    ):
        claimed_ns = sum(cause_ns.get(cause, 0) for cause in causes)
        if overview[field] is not None and not is_near(overview[field] * window_ns, claimed_ns):
            yield f"{field} {overview[field]}, and {claimed_ns} of {window_ns} ns"
    if count and views.get("steps"):
        totals = dict(zip(views["steps"]["causes"], views["steps"]["total_ns"], strict=True))
        for cause, times in totals.items():
            if not is_near(sum(times), cause_ns.get(cause, 0)):
                yield f"{cause}: {sum(times)} ns in the steps, {cause_ns.get(cause, 0)} in all"
    if views.get("input") and views["input"]["stall_ns"] is not None:
        waited_ns = views["input"]["stall_ns"] * max(count, 1)
        if not is_near(waited_ns, cause_ns.get("input", 0)):
            yield f"input: {waited_ns} ns, and {cause_ns.get('input', 0)}"
    # What is analyzed may be a part of what is recorded. Then both stand side by side.
    recorded_ns = report["workers"][report["reference_worker"]]["duration_ns"]
    notes = [note for number in report["key_numbers"] for note in number["notes"]]
    is_part = window_ns and not count and recorded_ns > 1.06 * window_ns
    if is_part and f"of {format_duration(recorded_ns)} recorded" not in notes:
        yield f"{window_ns} ns profiled, of a recording of {recorded_ns} ns"


def _of_savings(report: Json) -> Iterator[str]:
    """Alone and together, in time and as a share, in the headline and in the list."""
    overview, findings, combined = report["overview"], report["findings"], report["combined_saving"]
    whole_ns = overview["step_time_ns"] or overview["window_ns"]
    general = [finding for finding in findings if finding["refines"] is None]
    for finding in findings:
        saving = finding["saving"]
        if saving is None:
            continue
        if not is_near(saving["share_expected"] * whole_ns, saving["expected_ns"]):
            yield f"{finding['rule_id']}: {saving}"
        for amount, unit, share in re.findall(
            r"([\d.]+) ([nµm]?s) of (?:each step|the profile) \(([\d.]+) %\)", finding["summary"]
        ):
            percent = float(amount) * NS[unit] / whole_ns * 100
            if abs(percent - float(share)) > 0.06 + 0.006 * percent:  # of three digits, rounded
                yield f"{finding['rule_id']}: {amount} {unit} is {percent:.2f} %, not {share} %"
    if combined is not None:
        limits = [finding["saving"] or finding["bounds"] for finding in general]
        most_ns = sum(limit["high_ns"] for limit in limits if limit is not None)
        if combined["high_ns"] > max(most_ns, combined["expected_ns"]) + 2 * len(limits):
            yield f"together up to {combined['high_ns']} ns, of which each adds to {most_ns}"
        added_ns = sum(each["saving"]["marginal_ns"] for each in general if each["saving"])
        if abs(added_ns - combined["expected_ns"]) > 2 * (len(general) + 1):
            yield f"{combined['expected_ns']} ns together, and {added_ns} one by one"
    printed = re.search(r"probably −([\d.]+)(?: [nµm]?s)?", report["headline"])
    if printed:
        saving = findings[report["first"]["index"]]["saving"]
        if format_duration(saving["expected_ns"]).split()[0] != printed[1]:
            yield f"{report['headline']!r}, and {saving['expected_ns']} ns in the list"
    for amount in re.findall(r"−[\d.]+ [nµm]?s of ([\d.]+)", report["headline"]):
        if amount != format_duration(whole_ns).split()[0]:
            yield f"{report['headline']!r}, and {whole_ns} ns in the overview"


def _of_rates(report: Json, view: Json) -> Iterator[str]:
    """No rate exceeds what the device can do."""
    most = {roof["format"]: roof["peak_flop_per_s"] for roof in view["roofs"]}
    for point in view["points"]:
        name, rate = point["name"][:60], point["flop_per_s"] or 0
        if (point["achieved_share"] or 0) > 1:
            yield f"{name}: {point['achieved_share']:.2f} of what it can reach"
        if view["peak_bytes_per_s"] and (point["bytes_per_s"] or 0) > view["peak_bytes_per_s"]:
            yield f"{name}: {point['bytes_per_s']:.3g} of {view['peak_bytes_per_s']:.3g} B/s"
        if rate > most.get(point["format"], float("inf")):
            yield f"{name}: {rate:.3g} of {most[point['format']]:.3g} FLOP/s"


def _of_memory(report: Json, view: Json) -> Iterator[str]:
    numbers = {number["id"]: number for number in report["key_numbers"]}
    shown = numbers.get("peak-memory" if view["device"] is not None else "peak-host-memory")
    peak = max(view["allocated_bytes"])
    if shown is None or shown["value"] is None or not is_near(shown["value"], peak):
        yield f"peak memory {shown and shown['value']}, and {peak}"
    elif view["is_relative"] and not any("recording" in note for note in shown["notes"]):
        yield "peak memory is of a part, and does not say so"


def _of_dimensions(report: Json, view: Json) -> Iterator[str]:
    in_report_ns = sum(
        part["total_ns"]
        for part in report["overview"]["breakdown"]
        if part["cause"] == "communication"
    )
    if not is_near(view["exposed_ns"], in_report_ns):
        yield f"exposed communication of {view['exposed_ns']} ns, and {in_report_ns}"
    parts_ns = sum(row["cost"]["exposed_ns"] for row in view["dimensions"])
    parts_ns += view.get("elsewhere_ns", 0)
    # Dimensions that communicate at once both count, as the page says.
    if not view["truncated"] and parts_ns < view["exposed_ns"] - 2:
        yield f"dimensions add up to {parts_ns} of {view['exposed_ns']} ns"


def _of_server_steps(report: Json, view: Json) -> Iterator[str]:
    steps = sum(kind["steps"] for kind in view["kinds"])
    if steps and "no steps" in report["caption"]:
        yield f"{report['caption']!r}, and {steps} annotated steps"


def _of_operators(report: Json, view: Json) -> Iterator[str]:
    """Host: a table groups the same operators by name, module or line."""
    for name in ("by_operator", "by_module", "by_line", "by_call_site"):
        table = view[name]
        if table is None or table["truncated"]:
            continue
        for field in ("calls", "self_ns", "waiting_ns"):
            if sum(row[field] for row in table["rows"]) != view[field]:
                yield f"{name}: {field} do not add up to {view[field]}"


def _of_calls(report: Json, view: Json) -> Iterator[str]:
    """Host and Device: trees of calls are of the same steps as the rest, and add up."""
    overview, kernels = report["overview"], view["kernels"]
    if view["steps"] != max(overview["steps"], 1):
        yield f"calls of {view['steps']} steps, and {overview['steps']}"
    for tree in (*view["threads"], *([kernels] if kernels else [])):
        inside_ns = [0] * (len(tree["parent"]) + 1)  # at the end: of the top
        for parent, total_ns in zip(tree["parent"], tree["total_ns"], strict=True):
            inside_ns[parent] += total_ns
        columns = zip(tree["total_ns"], tree["self_ns"], inside_ns, strict=False)
        if any(own_ns + inner_ns > total_ns for total_ns, own_ns, inner_ns in columns):
            yield f"{tree['label']}: calls hold more than they take"


def _of_calls_in_step(report: Json) -> Iterator[str]:
    """Where steps and their work end together, calls are within them, and kernels the same.

    In other recordings, calls of one thread may overlap. The tree has the kernels that belong to
    the steps, and the table those that run during them, as the page says.
    """
    view = (report["views"] or {}).get("calls")
    if view is None:
        return
    overview, kernels = report["overview"], view["kernels"]
    for tree in view["threads"]:
        rows = zip(tree["parent"], tree["total_ns"], strict=True)
        top_ns = sum(total_ns for parent, total_ns in rows if parent < 0)
        if top_ns > overview["window_ns"]:
            yield f"{tree['label']}: {top_ns} of {overview['window_ns']} ns"
    of_kernels = report["views"].get("kernels")
    if kernels and of_kernels and not kernels["truncated"]:
        rows = zip(kernels["kind"], kernels["self_ns"], strict=True)
        in_tree_ns = sum(own_ns for kind, own_ns in rows if kind == "kernel")
        in_table_ns = sum(group["total_ns"] for group in of_kernels["families"])
        if not is_near(in_tree_ns, in_table_ns):
            yield f"kernels take {in_tree_ns} ns by module, and {in_table_ns} ns in the table"


def outputs_differ(report: model.Report) -> Iterator[str]:
    """What an output says other than the report."""
    row, whole = run_row(report), document([report])
    brief = json.loads(render(whole, "brief"))["reports"][0]
    if brief["step"]["mean_ns"] != report.overview.step_time_ns or (
        row.step_time_ns != report.overview.step_time_ns
    ):
        yield f"steps of {report.overview.step_time_ns}, {brief['step']}, {row.step_time_ns} ns"
    if brief["headline"].rstrip("…") not in report.headline or row.headline != report.headline:
        yield f"{report.headline!r}, {brief['headline']!r}, {row.headline!r}"
    words = " ".join(render(whole, "text").split())
    if report.headline not in words:
        yield f"{report.headline!r} is not in the text"
    if report.first is not None:
        saving = report.findings[report.first.index].saving
        if row.saves_share != (None if saving is None else saving.share_expected):
            yield f"{row.saves_share} in the list of runs, {saving} in the report"


def differences_in(reports: Sequence[model.Report]) -> list[str]:
    assert reports
    return [
        f"{report.run} {report.session}: {what}"
        for report in reports
        for what in (*contradictions(msgspec.to_builtins(report)), *outputs_differ(report))
    ]


def test_each_number_of_a_report_has_one_value() -> None:
    reports, _ = analyze_below(DEMOS, Config(with_views=True))
    assert differences_in(reports) == []
    each = map(msgspec.to_builtins, reports)
    assert [what for report in each for what in _of_calls_in_step(report)] == []


def test_each_number_of_real_reports_has_one_value(corpus_document: Json) -> None:
    reports = msgspec.convert(corpus_document["reports"], list[model.Report])
    assert len(reports) > 100
    assert differences_in(reports) == []


def facts_of(*paths: Path) -> list[RunFacts]:
    analyses = [analyze_run(run, Config()) for path in paths for run in load(path)]
    return [make_facts(analysis, build_report(analysis, Config())) for analysis in analyses]


def test_all_changes_together_save_what_the_report_says() -> None:
    """What if: all of them ticked lead to what stands beside `With all changes`."""
    for name in ("pytorch_input_slow", "pytorch_ddp_straggler", "synthetic_gpu_allreduce_8rank"):
        for run in load(DEMOS / name):
            analysis = analyze_run(run, Config())
            every = range(len(analysis.findings))
            assert change_model(analysis).combined(every) == analysis.combined


def changes_differ(recordings: Sequence[RunFacts]) -> Iterator[str]:
    """What tables of runs, comparisons and histories say of one change."""
    for base, target in itertools.pairwise(recordings):
        (compared,) = compare_facts(base, [target]).targets
        change = compared.change
        if (change.base_ns, change.target_ns) != (base.step_time_ns, target.step_time_ns):
            yield f"steps of {base.step_time_ns} and {target.step_time_ns} ns: {change}"
        if change.speed_up is not None and change.change_share is not None:
            if not is_near(change.target_ns / change.base_ns - 1, change.change_share):
                yield f"{change}"
            was, now = (format_duration(ns).split() for ns in (change.base_ns, change.target_ns))
            ratio = float(was[0]) * NS[was[1]] / (float(now[0]) * NS[now[1]])
            if not abs(ratio - change.speed_up) < 1e-9:
                yield f"{change.speed_up} times as fast: {was} and {now}"
        paces = pace_of(base), pace_of(target)
        made = None if None in paces else mark("", *paces)  # type: ignore[arg-type]
        if made is not None and abs(made.change_share - (change.change_share or 0)) > 5e-4:
            yield f"{made.change_share} in the list of runs, {change.change_share} in History"


def test_each_change_has_one_value() -> None:
    assert [*changes_differ(facts_of(DEMOS / "pytorch_whole_run"))] == []
    pair = facts_of(DEMOS / "pytorch_input_slow", DEMOS / "pytorch_input_fixed")
    assert [*changes_differ(pair)] == []


def test_each_change_of_real_runs_has_one_value(corpus: Path) -> None:
    for paths in (
        ("kineto/resnet50_num_workers_0", "kineto/resnet50_num_workers_4"),
        ("modded-nanogpt/current_a", "modded-nanogpt/h2d"),
        ("quentin-tutorial/transformer",),
        ("xprof-demo-data",),
    ):
        assert [*changes_differ(facts_of(*(corpus / path for path in paths)))] == []
