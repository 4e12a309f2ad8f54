"""The borders that the documents promise are checked: what crosses one fails `make quick`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tb_perfadvisor.rules.registry import builtin_rules

pytest.importorskip("importlinter")

ROOT = Path(__file__).resolve().parents[2]
INGEST = ROOT / "tb_perfadvisor" / "ingest"
# `make quick` runs `make contracts`, which runs this.
LINT = "from importlinter.cli import lint_imports_command as lint; lint()"

# Of each category with several modules, so that one that the contract does not name is noticed.
MODULES = [
    sorted({rule.__module__ for rule in builtin_rules() if rule.category == category})
    for category in sorted({rule.category for rule in builtin_rules()})
]
TWO_MODULES = [modules[:2] for modules in MODULES if len(modules) > 1]
FORMATS = [path.parent.name for path in sorted(INGEST.glob("*/format.py"))]
DECIDING = [
    *("tb_perfadvisor.engine.ranking", "tb_perfadvisor.engine.savings"),
    *("tb_perfadvisor.comparison.compare", "tb_perfadvisor.comparison.finding_changes"),
    *("tb_perfadvisor.whatif.replay", "tb_perfadvisor.rules.input.stalls"),
    "tb_perfadvisor.rules.savings",
]
CROSSING = {
    "Rules are independent of one another": [(one, other) for one, other in TWO_MODULES],
    "Formats are independent of one another": [
        (f"tb_perfadvisor.ingest.{one}.format", f"tb_perfadvisor.ingest.{other}.format")
        for one, other in pairwise(FORMATS)
    ],
    "The report decides nothing": [("tb_perfadvisor.report.overview", name) for name in DECIDING],
    "The contract is light": [
        ("tb_perfadvisor.contract.run_row", "numpy"),
        ("tb_perfadvisor.contract.partners", "tb_perfadvisor.signals"),
    ],
}


def path_of(root: Path, module: str) -> Path:
    """The file of a module."""
    return root.joinpath(*module.split(".")).with_suffix(".py")


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the check says of a copy of the package in which many imports cross borders."""
    copy = tmp_path_factory.mktemp("copy")
    shutil.copy(ROOT / "pyproject.toml", copy)
    shutil.copytree(
        ROOT / "tb_perfadvisor",
        copy / "tb_perfadvisor",
        ignore=lambda folder, names: [n for n in names if "." in n and not n.endswith(".py")],
    )
    for crossings in CROSSING.values():
        for importer, imported in crossings:
            with path_of(copy, importer).open("a", encoding="utf-8") as file:
                file.write(f"import {imported}\n")
    done = subprocess.run(
        [sys.executable, "-c", LINT],
        cwd=copy,
        env={**os.environ, "COLUMNS": "500"},  # lines are not wrapped
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("contract", CROSSING)
def test_imports_that_cross_a_border_are_refused(contract: str, answer: str) -> None:
    assert len(CROSSING[contract]) >= 2
    assert f"{contract} BROKEN" in answer
    explained = answer.split(f"\n{contract}\n")[1].split("\n\n\n\n")[0]
    for importer, imported in CROSSING[contract]:
        assert f"{importer} -> {imported} (" in explained


def test_other_borders_are_kept(answer: str) -> None:
    assert "Only plugin and publish know TensorBoard KEPT" in answer
