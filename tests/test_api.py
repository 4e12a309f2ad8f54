from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tb_perfadvisor
from tb_perfadvisor import analyze, analyze_all, compare, load
from tb_perfadvisor.api.analyses import analyze_capture, analyze_captures
from tb_perfadvisor.contract.model import Rejected, Report
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.errors import NothingFoundError, UnreadableProfileError, UsageError
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.testing import draw, run_of

DEMO_LOGS = Path(__file__).resolve().parents[1] / "demo_logs"
SLOW = DEMO_LOGS / "pytorch_input_slow"
DRAWING = """
    cell 1ms
    step   |..........|..........|
    main   |DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|
"""


def test_the_package_offers_five_functions() -> None:
    assert tb_perfadvisor.__all__ == ["analyze", "analyze_all", "compare", "load", "show"]
    with pytest.raises(AttributeError, match="no attribute 'analyse'"):
        tb_perfadvisor.analyse  # noqa: B018


def test_analyze_takes_a_path_a_run_or_a_trace() -> None:
    trace = draw(DRAWING)
    of_path = analyze(str(SLOW))
    (run,) = load(SLOW)
    assert analyze(run).findings == of_path.findings
    assert analyze(SLOW / "worker0.1795234073764326979.pt.trace.json.gz").headline == (
        of_path.headline
    )
    assert analyze(trace).overview == analyze(run_of(trace)).overview
    assert analyze(trace).findings[0].rule_id == "input-stall"


def test_config_chooses_rules() -> None:
    report = analyze(draw(DRAWING), Config(select=("step-gap",)))
    assert [outcome.rule_id for outcome in report.outcomes] == ["step-gap"]


def test_several_captures_need_a_choice() -> None:
    labeled = list(DEMO_LOGS.glob("*/label.json"))
    count = len(labeled) + len(list((DEMO_LOGS / "pytorch_whole_run").glob("*.gz")))
    with pytest.raises(UsageError, match=f"contains {count} captures .*`analyze_all`"):
        analyze(DEMO_LOGS)
    assert len(load(DEMO_LOGS)) == count


def test_missing_path(tmp_path: Path) -> None:
    for function in (analyze, load):
        with pytest.raises(NothingFoundError, match=r"contains no profile \(0 files scanned\)"):
            function(tmp_path)


def test_unreadable_path_gives_the_reason(tmp_path: Path) -> None:
    (tmp_path / "worker.pt.trace.json").write_bytes(b"\x00 no JSON")
    with pytest.raises(NothingFoundError, match=r"no readable profile\. worker\.pt\.trace\.json"):
        load(tmp_path)


def test_unreadable_capture_does_not_stop_the_others(tmp_path: Path) -> None:
    for name in ("a", "c"):
        (tmp_path / name).mkdir()
        (profile,) = SLOW.glob("*.gz")
        (tmp_path / name / profile.name).write_bytes(profile.read_bytes())
    listing = discover(tmp_path)
    # Gone between looking and reading.
    next((tmp_path / "a").iterdir()).unlink()
    gone, report = analyze_captures(listing, listing.captures, Config())
    assert isinstance(gone, Rejected)
    assert gone.path.startswith("a")
    assert isinstance(report, Report)
    assert report.run == "c"


def test_listed_capture_is_analyzed() -> None:
    listing = discover(SLOW)
    (capture,) = listing.captures
    analysis = analyze_capture(listing.root, capture, Config())
    assert analysis.signals.run.id == capture.id
    with pytest.raises(UnreadableProfileError, match="cannot be opened: No such file"):
        analyze_capture("elsewhere", capture, Config())


def test_progress_is_reported() -> None:
    stages: list[str] = []
    analyze(SLOW, progress=lambda stage, share: stages.append(stage))
    assert stages[-1] == "writing the report"


def test_compare_takes_paths_runs_and_traces() -> None:
    fixed = DEMO_LOGS / "pytorch_input_fixed"
    of_paths = compare(SLOW, str(fixed))
    assert (of_paths.base.name, of_paths.targets[0].run.name) == (
        "pytorch_input_slow", "pytorch_input_fixed",
    )  # fmt: skip
    (slow,), (other,) = load(SLOW), load(fixed)
    of_runs = compare(slow, other)
    assert of_runs.targets[0].change == of_paths.targets[0].change
    assert compare(draw(DRAWING), draw(DRAWING)).targets[0].change.change_ns == 0


def test_compare_takes_any_number_of_runs_and_any_settings() -> None:
    names = ("pytorch_input_fixed", "jax_healthy", "pytorch_input_fixed")
    config = Config(ignore=("input-stall", "loader-in-main-process"))
    comparison = compare(SLOW, *(DEMO_LOGS / name for name in names), config=config)
    assert [target.run.name for target in comparison.targets] == list(names)
    assert comparison.targets[0].findings == []


def test_compare_needs_one_capture_each() -> None:
    with pytest.raises(UsageError, match=r"demo_logs: contains \d+ captures"):
        compare(SLOW, DEMO_LOGS)


def test_analyze_all_gives_every_capture_and_warns_of_the_others(tmp_path: Path) -> None:
    for name in ("slow", "copy"):
        shutil.copytree(SLOW, tmp_path / name)
    assert [report.run for report in analyze_all(tmp_path)] == ["copy", "slow"]
    (broken,) = (tmp_path / "copy").glob("*.gz")
    broken.write_bytes(broken.read_bytes()[:100])
    with pytest.warns(UserWarning, match="copy"):
        (report,) = analyze_all(tmp_path)
    assert report.headline == analyze(SLOW).headline
    shutil.rmtree(tmp_path / "slow")
    with pytest.raises(NothingFoundError, match="contains no readable profile"):
        analyze_all(tmp_path)
    broken.unlink()
    with pytest.raises(NothingFoundError, match="contains no profile"):
        analyze_all(tmp_path)


def test_the_package_lists_its_functions_before_they_are_imported() -> None:
    program = """if True:
        import sys, tb_perfadvisor
        print(*dir(tb_perfadvisor))
        print("tb_perfadvisor.api" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    names, is_imported = done.stdout.splitlines()
    assert {"analyze", "analyze_all", "compare", "load", "show", "__all__"} <= set(names.split())
    assert is_imported == "False"
