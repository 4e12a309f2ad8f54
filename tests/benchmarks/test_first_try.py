"""The first try: lists, truths, measures and judging, without anyone's profiles."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from first_try import collect, judge, recipes
from first_try.page import interval, section
from first_try.truth import duration_ms, measure


def _event(category: str, name: str, start_us: float, us: float, **arguments: Any) -> Any:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "ts": start_us,
        "dur": us,
        "tid": 1,
        "args": arguments,
    }


def _write(folder: Path, events: list[Any]) -> None:
    folder.mkdir(parents=True)
    content = json.dumps({"deviceProperties": [{"name": "A100"}], "traceEvents": events})
    (folder / "rank0.pt.trace.json.gz").write_bytes(gzip.compress(content.encode()))


EVENTS = [
    _event("user_annotation", "ProfilerStep#3", 0, 1000),
    _event("cpu_op", "aten::mm", 0, 100),
    _event("cuda_runtime", "cudaLaunchKernel", 50, 10, correlation=1),
    _event("kernel", "ampere_sgemm_128x64_tn", 100, 300, correlation=1),
    _event("cpu_op", "aten::item", 420, 400),
    _event("cuda_runtime", "cudaStreamSynchronize", 430, 380),
    _event("cuda_runtime", "cudaLaunchKernel", 820, 10, correlation=2),
    _event("kernel", "ncclDevKernel_AllReduce_Sum", 850, 100, correlation=2),
    _event("kernel", "vectorized_elementwise_kernel", 900, 100, correlation=2),
]


def test_measures_a_profile_from_its_events(tmp_path: Path) -> None:
    _write(tmp_path / "run", EVENTS)
    (row,) = measure(tmp_path / "run")
    assert row["device_ms"] == pytest.approx(0.9)  # from 100 to 1000 us
    assert row["busy_share"] == pytest.approx(450 / 900)  # 100..400 and 850..1000
    assert row["exposed_communication_ms"] == pytest.approx(0.05)  # 850..900
    assert row["idle_launched_late_share"] == 1  # the launch at 820 ends after 400
    assert row["waits_ms"] == pytest.approx(0.38)
    assert row["kinds"]["matrix product"] == pytest.approx(300 / 500, abs=1e-3)
    assert row["product_16_bit_share"] == 0
    assert row["idle_while"][0] == ("cuda_runtime: cudaStreamSynchronize", 0.45, 3)
    assert duration_ms(tmp_path / "run", "step_ms") == 1


def test_a_recording_without_a_device_has_host_measures_alone(tmp_path: Path) -> None:
    _write(tmp_path / "run", EVENTS[:3])
    (row,) = measure(tmp_path / "run")
    assert row["device_events"] == 0
    assert "busy_share" not in row
    assert row["launches"] == 1


def test_every_profile_and_history_has_one_truth() -> None:
    truths = recipes.table("truths.toml")
    names = [row["name"] for row in truths["profile"]]
    assert names == sorted(set(names))
    assert set(names) == {profile.name for profile in recipes.profiles()}
    assert {row["name"] for row in truths["history"]} == {h.name for h in recipes.histories()}
    for batch in ("second", "third"):
        named = [row["name"] for row in recipes.table(recipes.BATCHES[batch][1])["profile"]]
        assert named == [profile.name for profile in recipes.profiles(batch)]


def test_no_profile_is_judged_twice() -> None:
    files = [
        file.sha256
        for batch in recipes.BATCHES
        for profile in recipes.profiles(batch)
        for file in profile.files
    ]
    assert len(files) == len(set(files))


def test_no_profile_is_in_the_tuning_half() -> None:
    tuned = {
        file.sha256
        for history in recipes.histories()
        if history.half == "tuning"
        for side in (history.before, history.after)
        for file in side.files
    }
    assert tuned
    assert tuned.isdisjoint(f.sha256 for p in recipes.profiles() for f in p.files)


def test_the_map_of_causes_knows_rules_and_causes_that_exist() -> None:
    pages = Path(recipes.FOLDER.parents[1] / "docs" / "rules.md").read_text(encoding="utf-8")
    causes = {
        cause
        for _, truths in recipes.BATCHES.values()
        for row in recipes.table(truths)["profile"]
        for cause in row["causes"]
    }
    for rule, named in recipes.table("causes.toml")["rules"].items():
        assert f"| `{rule}` |" in pages
        assert set(named) <= causes | {"memory"}


def test_collects_only_files_that_are_the_frozen_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "clones" / "someone+profiles"
    clone.mkdir(parents=True)
    git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    (clone / "trace.json").write_text("[]")
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "Add a trace"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    digest = hashlib.sha256(b"[]").hexdigest()
    file = recipes.SourceFile("someone/profiles", head.stdout.strip(), "trace.json", 2, digest)
    other = recipes.SourceFile("someone/profiles", head.stdout.strip(), "trace.json", 2, "0")
    gone = recipes.SourceFile("nobody/nothing", "0", "trace.json", 2, digest)
    found = recipes.Profile("found", (file,))
    lost = recipes.Profile("lost", (other, gone))
    pairs = [(found, tmp_path / "out" / "found"), (lost, tmp_path / "out" / "lost")]
    monkeypatch.setattr(collect, "folders", lambda directory: pairs)
    problems = collect.collect(tmp_path / "clones", tmp_path / "out")
    assert len(problems) == 2
    assert "not the file that was frozen" in problems[0]
    assert "no clone of nobody/nothing" in problems[1]
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert written == [tmp_path / "out" / "found" / "rank0.pt.trace.json"]


@pytest.mark.parametrize(
    ("right", "number", "low", "high"),
    [(9, 10, 0.596, 0.982), (0, 5, 0.0, 0.434), (45, 45, 0.921, 1.0), (0, 0, 0.0, 1.0)],
)  # worked out with another implementation of Wilson's interval
def test_interval(right: int, number: int, low: float, high: float) -> None:
    assert interval(right, number) == pytest.approx((low, high), abs=1e-3)


def _report(rule: str | None, severity: str = "high", **others: Any) -> judge.Report:
    saving = {"share_low": 0.1, "share_expected": 0.2, "share_high": 0.3}
    finding = {
        "rule_id": rule,
        "title": "A title",
        "severity": severity,
        "refines": None,
        "saving": saving,
    }
    return {
        "notes": [],
        "is_start_up": False,
        "headline": "Nothing stands out",
        "first": {"index": 0} if rule else None,
        "findings": [finding] if rule else [],
        "overview": {"step_time_ns": 100, "window_ns": 1000},
        "combined_saving": {"high_ns": 40} if rule else None,
        **others,
    }


@pytest.mark.parametrize(
    ("report", "named"),
    [
        (_report("input-stall"), {"input"}),
        (_report("launch-bound", "low"), {"host", "healthy"}),
        (_report("recompute"), set()),
        (_report("dominant-kernel"), {"slow-kernel"}),
        (_report(None), {"healthy"}),
        (_report(None, notes=[{"severity": "warning"}]), {"healthy", "recording"}),
        (_report("launch-bound", is_start_up=True), {"host", "warm-up"}),
        ({}, set()),
    ],
)
def test_what_a_report_names_first(report: judge.Report, named: set[str]) -> None:
    _, found = judge.first_causes(report, recipes.table("causes.toml")["rules"])
    assert found == named


def _history_verdict(gain: float) -> judge.HistoryVerdict:
    report = _report("device-synchronization")
    names = recipes.table("causes.toml")["rules"]
    predicted, bound = judge.predicted_shares(report, "synchronization", names)
    history = recipes.histories()[0]
    return judge.HistoryVerdict(history, True, "a reason", gain, predicted, bound)


@pytest.mark.parametrize(
    ("gain", "inside", "beyond"),
    [(0.09, False, False), (0.1, True, False), (0.35, False, False), (0.41, False, True)],
)
def test_gains_are_compared_with_ranges_and_bounds(gain: float, inside: bool, beyond: bool) -> None:
    verdict = _history_verdict(gain)
    assert verdict.is_in_range is inside
    assert verdict.exceeds_bound is beyond


def test_the_page_counts_what_was_judged() -> None:
    profile = recipes.profiles()[0]
    verdicts = [
        judge.ProfileVerdict(
            profile, ("host",), "a reason", "`launch-bound`, A", frozenset({"host"})
        ),
        judge.ProfileVerdict(profile, ("input",), "a reason", "no finding", frozenset({"healthy"})),
    ]
    page = "\n".join(section(verdicts, [_history_verdict(0.2)], [], "on a day"))
    assert "| first finding right | 1 of 2 = 50 % (95 % interval: 9.45 % to 90.5 %) |" in page
    assert "| histories, test half: gain in range | 1 of 1 | ≥ 70 % |" in page
    assert "Misses (1):" in page
    assert "| 20 % | 10 % – 20 % – 30 % | 40 % | yes |" in page
