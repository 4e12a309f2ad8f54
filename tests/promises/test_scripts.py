"""The scripts behind `make quick`, `make rule` and `make demo`."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from scripts import changed_tests, demo, record_test_map, rule
from tb_perfadvisor.rules.base import SECTIONS, Rule

PACKAGE = Path(__file__).resolve().parents[2] / "tb_perfadvisor"


def test_a_changed_module_runs_the_tests_that_are_named_like_it_or_import_it() -> None:
    tests = changed_tests.tests_of(["tb_perfadvisor/rules/input/input_stall.py"])
    assert "tests/rules/test_input_stall.py" in tests
    assert "tests/promises/test_rules.py" in tests, "every rule must keep the contract"
    assert "tests/promises/test_advice.py" in tests, "a rule names changes of the catalog"
    assert "tests/promises/test_advice.py" in changed_tests.tests_of(
        ["tb_perfadvisor/advice/input.toml"]
    )
    assert "tests/rules/test_step_gap.py" not in tests
    assert "tests/trace/test_intervals.py" in changed_tests.tests_of(
        ["tb_perfadvisor/trace/intervals.py"]
    )


def test_a_changed_test_runs_itself_unless_it_is_slow() -> None:
    assert changed_tests.tests_of(
        ["tests/trace/test_intervals.py", "tests/browser/test_tab.py"]
    ) == ["tests/trace/test_intervals.py"]


def test_every_module_has_a_test_that_runs_when_it_changes() -> None:
    tests = changed_tests.test_files()
    modules = [
        path.relative_to(changed_tests.ROOT).as_posix()
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py"
    ]
    assert [path for path in modules if not changed_tests.tests_that_run(path, tests)] == []


def test_a_change_runs_its_best_tests_and_more_while_they_are_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    best, quick, long = sorted(changed_tests.test_files())[:3]
    recorded = {
        "seconds": {best: 50.0, quick: 8.0, long: 9.0},
        "tests": {"tb_perfadvisor/units.py": [best, quick, long]},
    }
    monkeypatch.setattr(changed_tests, "_test_map", lambda: recorded)
    monkeypatch.setattr(changed_tests, "_imports", lambda path: frozenset())
    chosen = changed_tests.tests_of(["tb_perfadvisor/units.py"])
    assert chosen == sorted({best, quick, "tests/test_units.py"}), "50 + 1 + 8 of 60 seconds"


def test_the_recorded_tests_are_those_that_run_most_in_the_least_time() -> None:
    lines = {"slow.py": {1, 2, 3, 4, 5, 6}, "quick.py": {1, 2, 3, 4}, "other.py": {5, 6}}
    # 4 lines in 1 s, then 2 in 2 s; the slow file's 6 lines take 11 s.
    seconds = {"slow.py": 10.0, "quick.py": 0.0, "other.py": 1.0}
    assert record_test_map.best_tests(lines, seconds) == ["quick.py", "other.py"]


def test_a_changed_document_runs_the_tests_of_all_documents() -> None:
    assert changed_tests.tests_of(["LICENSE", "tests/README.md"]) == [
        "tests/promises/test_documents.py"
    ]


def test_a_new_rule_is_three_files_that_parse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule, "ROOT", tmp_path)
    monkeypatch.setattr(rule, "RULES", tmp_path / "rules")
    for folder in ("rules/compute", "tests/rules", "changelog.d"):
        (tmp_path / folder).mkdir(parents=True)
    paths = rule.create("cudnn-benchmark-off", "compute")
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        "rules/compute/cudnn_benchmark_off.py",
        "tests/rules/test_cudnn_benchmark_off.py",
        "changelog.d/cudnn-benchmark-off.new_rule.md",
    ]
    for path in paths[:2]:
        text = path.read_text(encoding="utf-8")
        compile(text, str(path), "exec")
        assert "CudnnBenchmarkOff" in text


def test_the_skeleton_of_a_rule_has_the_sections_of_a_page() -> None:
    names = {"rule_id": "a-b", "category": "compute", "module": "a_b", "class_name": "AB"}
    code: dict[str, type[Rule]] = {}
    exec(compile(rule.RULE.format_map(names), "a_b.py", "exec"), code)
    assert list(code["AB"].sections()) == list(SECTIONS)


def test_a_taken_port_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(demo, "USUAL_PORT", taken.getsockname()[1])
        assert demo.free_port() != taken.getsockname()[1]
