"""Later versions read what earlier ones left with their users, or discard it without a fuss.

`write.py` wrote the archives, one for each version.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tb_perfadvisor.contract import model
from tb_perfadvisor.engine.config import read_config
from tb_perfadvisor.engine.result_cache import ResultCache
from tests.support.command import error, run
from tests.support.served_tab import Tab
from tests.upgrades.write import PROFILE, write_profiles

ARCHIVES = sorted(Path(__file__).parent.glob("*.tar.gz"))
STEP_NS = 10_000_000  # ten cells of 1 ms
INPUT_NS = 4_000_000  # four of them are D
# What cached results of the slow run have, and those of the fixed one lack: the most to save in one
# step, and in all four.
OF_SLOW = {"report.json": b'"high_ns":4000000', "runfacts.json": b'"high_ns":16000000'}


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What one version left."""
    target = tmp_path / "kept"
    with tarfile.open(request.param) as archive:
        archive.extractall(target, filter="data")
    return target


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    write_profiles(tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache directory of the test's own."""
    monkeypatch.setenv("PERFADVISOR_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_settings_are_read(kept: Path) -> None:
    settings = read_config(kept / "perfadvisor.toml")
    settings.check()
    assert settings.select == ("input-stall", "loader-in-main-process", "step-gap")
    assert settings.ignore == ("step-gap",)
    assert settings.limits == {"input-stall": {"minimum_share": 0.1}}
    options = settings.options
    assert (options.parameters, options.tokens_per_step) == (7_000_000, 4096)
    assert (options.link_bandwidth_bytes_per_s, options.device) == (50e9, "H100 SXM5 80GB")
    assert (settings.run.price_per_device_hour, settings.run.total_steps) == (2.5, 10_000)
    assert {rule.id for rule in settings.rules()} == {"input-stall", "loader-in-main-process"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [("report.json", model.Document), ("comparison.json", model.ComparisonDocument)],
)
def test_exported_json_has_the_shape_of_its_schema_version(
    kept: Path, name: str, kind: Any
) -> None:
    content = (kept / name).read_bytes()
    version = json.loads(content)["schema_version"]
    assert version <= model.SCHEMA_VERSION
    if version == model.SCHEMA_VERSION:
        msgspec.json.decode(content, type=kind)


def test_the_exported_report_says_what_is_drawn(kept: Path) -> None:
    (report,) = json.loads((kept / "report.json").read_bytes())["reports"]
    check(report)


def test_exports_in_a_logdir_are_no_profiles(kept: Path, logdir: Path) -> None:
    exports = [path for path in kept.iterdir() if path.is_file()]
    assert len(exports) >= 8
    folder = kept / "exports"
    folder.mkdir()
    for path in exports:
        shutil.copy(path, folder)
    assert "contains no profile" in error("analyze", folder)
    for path in exports:
        shutil.copy(path, logdir / "slow")
    (report,) = json.loads(run("analyze", logdir / "slow", "--format", "json").stdout)["reports"]
    assert [worker["file"] for worker in report["workers"]] == [PROFILE]


def test_entries_of_a_cache_are_passed_over(kept: Path, logdir: Path, cache: Path) -> None:
    shutil.copytree(kept / "cache", cache / "entries")
    cache.chmod(0o700)
    check(analyzed(logdir / "slow"))
    assert len(list((cache / "entries").iterdir())) == len(list((kept / "cache").iterdir())) + 1


def test_entries_of_a_cache_harm_nothing_under_a_key_of_today(
    kept: Path, logdir: Path, cache: Path
) -> None:
    compare = ("compare", logdir / "slow", logdir / "fixed", "--format", "json")
    expected = json.loads(run(*compare).stdout)
    check(analyzed(logdir / "slow"))
    replaced = 0
    today = ResultCache(cache)
    for name, mark in OF_SLOW.items():
        (earlier, *_) = (path for path in kept.glob(f"cache/*/{name}") if mark in path.read_bytes())
        for path in (cache / "entries").glob(f"*/{name}"):
            if mark in path.read_bytes():
                staged = today.stage()
                shutil.copy(earlier, staged)
                today.remove(path.parent.name)
                today.commit(staged, path.parent.name)
                replaced += 1
    assert replaced == 2  # the report and the facts for comparisons
    check(analyzed(logdir / "slow"))
    (target,) = json.loads(run(*compare).stdout)["comparisons"][0]["targets"]
    assert target["headline"] == expected["comparisons"][0]["targets"][0]["headline"]


def test_results_of_the_tab_harm_nothing_under_a_key_of_today(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tab = Tab(tmp_path, monkeypatch)
    tab.put("slow")
    capture = tab.only_id()
    files = {path.name.replace(".", "__"): path.read_bytes() for path in (kept / "tab").iterdir()}
    assert len(files) >= 5
    tab.store(capture, **files)
    for route in (
        "captures", "captures/{}/report", "captures/{}/views/steps", "captures/{}/views/input",
        "captures/{}/window?start_ns=0&end_ns=40000000", "captures/{}/export?format=markdown",
        "compare?base={}&targets={}", "history?run=slow", "doctor",
    ):  # fmt: skip
        answer = tab.get(f"api/v1/{route.format(capture, capture)}")
        assert answer.status_code < 500, (route, answer.data)
    (listed,) = tab.captures()
    assert listed["run"] == "slow"


def analyzed(path: Path) -> dict[str, Any]:
    (report,) = json.loads(run("analyze", path, "--format", "json").stdout)["reports"]
    found: dict[str, Any] = report
    return found


def check(report: dict[str, Any]) -> None:
    """What the drawing of the slow run shows."""
    assert report["overview"]["step_time_ns"] == STEP_NS
    first = report["findings"][0]
    assert first["rule_id"] == "input-stall"
    assert first["saving"]["high_ns"] == INPUT_NS
