"""The scripts behind `make quick`, `make rule` and `make demo`."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from scripts import changed_tests, demo, rule
from tb_perfadvisor.rules.entries import HEADINGS
from tb_perfadvisor.toml_files import parse

PACKAGE = Path(__file__).resolve().parents[2] / "tb_perfadvisor"


def test_a_changed_module_runs_the_tests_that_are_named_like_it_or_import_it() -> None:
    tests = changed_tests.tests_of(["tb_perfadvisor/rules/input/stalls.py"])
    assert "tests/rules/test_input_stall.py" in tests
    assert "tests/promises/test_rules.py" in tests, "every rule must keep the contract"
    assert "tests/promises/test_advice.py" in tests, "a rule names changes of the catalog"
    assert "tests/promises/test_advice.py" in changed_tests.tests_of(
        ["tb_perfadvisor/advice/input.toml"]
    )
    assert "tests/promises/test_rules.py" in changed_tests.tests_of(
        ["tb_perfadvisor/rules/input/stalls.toml"]
    )
    assert "tests/rules/test_step_gap.py" not in tests
    assert "tests/trace/test_intervals.py" in changed_tests.tests_of(
        ["tb_perfadvisor/trace/intervals.py"]
    )


def test_a_changed_table_runs_the_tests_of_the_module_beside_it() -> None:
    table = "tb_perfadvisor/rules/xla/costly_operations.toml"
    module = changed_tests.distances("tb_perfadvisor/rules/xla/costly_operations.py")
    nearest = min(module, key=module.__getitem__)
    assert nearest in changed_tests.tests_of([table])


def test_a_changed_test_runs_itself_unless_it_is_slow() -> None:
    assert changed_tests.tests_of(
        ["tests/trace/test_intervals.py", "tests/browser/test_tab.py"]
    ) == ["tests/trace/test_intervals.py"]


def test_every_module_has_a_test_that_runs_when_it_changes() -> None:
    modules = {path.relative_to(changed_tests.ROOT).as_posix() for path in PACKAGE.rglob("*.py")}
    imported, tested = changed_tests.importers(), set(changed_tests.test_files())
    while layer := {path for path in modules - tested if imported[path] & tested}:
        tested |= layer
    # A package may only hold modules; Python itself starts the other two.
    untested = {path for path in modules - tested if not path.endswith("__init__.py")}
    assert untested <= {
        "tb_perfadvisor/__main__.py",
        "tb_perfadvisor/instrument/site/sitecustomize.py",
    }


def test_the_nearest_tests_run_and_those_of_properties() -> None:
    changed = "tb_perfadvisor/signals/core/attribution.py"
    near = changed_tests.distances(changed)
    # Named like it; through `Signals`, and in its folder; through a rule that reads `Signals`.
    assert near["tests/signals/core/test_attribution.py"] == (0, 0)
    assert near["tests/signals/core/test_idle_gaps.py"] == (2, 0)
    assert near["tests/signals/input/test_loader_workers.py"] == (2, 1)
    chosen = changed_tests.tests_of([changed])
    assert "tests/signals/core/test_idle_gaps.py" in chosen
    tests = changed_tests.test_files()
    properties = {test for test in tests if test.startswith(changed_tests.PROPERTIES)}
    assert "tests/property/test_two_formats.py" in properties
    assert properties <= set(chosen)
    assert len(set(chosen) - properties) <= changed_tests.MOST_FILES


def test_a_changed_document_runs_the_tests_of_all_documents() -> None:
    assert changed_tests.tests_of(["LICENSE", "tests/README.md"]) == [
        "tests/promises/test_documents.py"
    ]


def test_a_new_rule_is_three_files_that_parse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule, "ROOT", tmp_path)
    monkeypatch.setattr(rule, "RULES", tmp_path / "rules")
    for folder in ("rules/compute", "tests/rules"):
        (tmp_path / folder).mkdir(parents=True)
    paths = rule.create("cudnn-benchmark-off", "compute")
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        "rules/compute/cudnn_benchmark_off.py",
        "rules/compute/cudnn_benchmark_off.toml",
        "tests/rules/test_cudnn_benchmark_off.py",
    ]
    for path in (paths[0], paths[2]):
        text = path.read_text(encoding="utf-8")
        compile(text, str(path), "exec")
        assert "CudnnBenchmarkOff" in text


def test_a_new_rule_of_a_table_is_an_entry_of_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule, "ROOT", tmp_path)
    monkeypatch.setattr(rule, "RULES", tmp_path / "rules")
    for folder in ("rules/xla", "tests/rules"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "costly_operations.toml").write_text("[other]\na = 1\n")
    entries, cases = rule.extend("slow-sort", "xla/costly_operations")
    declared = parse(entries.read_text(encoding="utf-8"))
    assert list(declared) == ["other", "slow-sort"]
    assert list(declared["slow-sort"]["page"]) == list(HEADINGS)
    assert set(parse(cases.read_text(encoding="utf-8"))["slow-sort"]) == {
        *("saves_ns", "found", "passed")
    }
    for table in rule.TABLES:
        assert (PACKAGE / "rules" / f"{table}.toml").is_file()
        assert (changed_tests.ROOT / "tests/rules" / f"{Path(table).name}.toml").is_file()


def test_the_skeleton_of_a_rule_has_the_sections_of_a_page() -> None:
    page = parse(rule.PAGE.format_map({"rule_id": "a-b"}))
    assert list(page["a-b"]["page"]) == list(HEADINGS)


def test_a_taken_port_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(demo, "USUAL_PORT", taken.getsockname()[1])
        assert demo.free_port() != taken.getsockname()[1]
