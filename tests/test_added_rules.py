"""Rules of other packages are found wherever Python finds packages."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tb_perfadvisor.rules.added_rules import GROUP

RULE = """
from tb_perfadvisor.rules.base import Rule

class Stranger(Rule):
    \"""A stranger's rule.\"""

    id = "stranger"
    title = "Do what the stranger says"
    category = "launch"

    def check(self, signals):
        return ()
"""
SHOW = "from tb_perfadvisor.rules.added_rules import added_rules\nprint(added_rules())"


def install(folder: Path, metadata: str, *, group: str = GROUP) -> None:
    info = folder / metadata
    info.mkdir(parents=True)
    (info / ("PKG-INFO" if "egg" in metadata.lower() else "METADATA")).write_text(
        "Metadata-Version: 2.1\nName: stranger\nVersion: 1\n"
    )
    (info / "entry_points.txt").write_text(f"[{group}]\nstranger = stranger:Stranger\n")
    (folder / "stranger.py").write_text(RULE)


def shown(folder: Path, program: str = SHOW) -> str:
    return subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.path.append({str(folder)!r})\n{program}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


@pytest.mark.parametrize(
    "metadata", ["stranger-1.dist-info", "stranger.egg-info", "stranger-1.egg/EGG-INFO"]
)
def test_of_installed_packages(tmp_path: Path, metadata: str) -> None:
    install(tmp_path, metadata)
    assert "stranger:Stranger" in shown((tmp_path / metadata).parent)


def test_of_an_archive(tmp_path: Path) -> None:
    install(tmp_path / "made", "stranger-1.dist-info")
    archive = tmp_path / "stranger.zip"
    with zipfile.ZipFile(archive, "w") as made:
        for file in (tmp_path / "made").rglob("*"):
            made.write(file, file.relative_to(tmp_path / "made"))
    assert "stranger:Stranger" in shown(archive)


def test_of_whoever_else_finds_packages(tmp_path: Path) -> None:
    install(tmp_path / "hidden", "stranger-1.dist-info")
    finder = (
        "from importlib.machinery import PathFinder\n"
        "from importlib.metadata import DistributionFinder\n"
        "class Hidden:\n"
        "    def find_spec(self, *arguments): return None\n"
        "    def find_distributions(self, context):\n"
        f"        where = DistributionFinder.Context(path=[{str(tmp_path / 'hidden')!r}])\n"
        "        return PathFinder.find_distributions(where)\n"
        "sys.meta_path.append(Hidden())\n"
    )
    assert "stranger:Stranger" in shown(tmp_path, finder + SHOW)


def test_none_of_other_groups_and_none_is_asked_for_in_vain(tmp_path: Path) -> None:
    install(tmp_path, "stranger-1.dist-info", group="another")
    program = f"{SHOW}\nprint('importlib.metadata' in sys.modules)"
    assert shown(tmp_path, program) == "()\nFalse\n"


def test_they_are_run_with_ours(tmp_path: Path) -> None:
    install(tmp_path, "stranger-1.dist-info")
    program = "from tb_perfadvisor.rules.registry import find_rule\nprint(find_rule('stranger'))"
    assert "stranger.Stranger" in shown(tmp_path, program)
