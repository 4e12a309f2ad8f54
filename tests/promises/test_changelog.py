"""The changelog's fragments, and the settings by which towncrier collects them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FRAGMENTS = ROOT / "changelog.d"


def build(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """What `make changelog` runs, in another folder."""
    command = [sys.executable, "-m", "towncrier", "build", "--dir", str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with our settings, our template and a changelog, but no fragments."""
    (tmp_path / "changelog.d").mkdir()
    for name in ("pyproject.toml", "changelog.d/README.md", "changelog.d/template.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    mark = "<!-- towncrier release notes start -->\n"
    assert mark in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{mark}\n## 0.1.0\n")
    return tmp_path


def test_fragments_become_a_section_and_go(project: Path) -> None:
    fragments = project / "changelog.d"
    (fragments / "b.fix.md").write_text("B works\nagain.\n")
    (fragments / "a.new_rule.md").write_text("A is found.\n")
    built = build(project, "--yes", "--version", "0.2.0", "--date", "2030-01-02")
    assert built.returncode == 0, built.stdout + built.stderr
    changelog = (project / "CHANGELOG.md").read_text(encoding="utf-8")
    assert changelog.endswith(
        "## 0.2.0 (2030-01-02)\n\n### New rules\n\n- A is found.\n\n"
        "### Fixes\n\n- B works\n  again.\n\n## 0.1.0\n"
    )
    assert {path.name for path in fragments.iterdir()} == {"README.md", "template.md"}


@pytest.mark.parametrize("name", ["a.nonsense.md", "a.md"])
def test_a_fragment_with_a_wrong_name_is_refused(name: str, project: Path) -> None:
    (project / "changelog.d" / name).write_text("x")
    refused = build(project, "--draft", "--version", "next")
    assert refused.returncode != 0
    assert f"Invalid news fragment name: {name}" in refused.stdout + refused.stderr


def test_every_fragment_here_is_in_the_next_section() -> None:
    drafted = build(ROOT, "--draft", "--version", "next")
    assert drafted.returncode == 0, drafted.stdout + drafted.stderr
    section = " ".join(drafted.stdout.split())
    for path in FRAGMENTS.glob("*.*.md"):
        text = " ".join(path.read_text(encoding="utf-8").split())
        assert text, f"{path.name} is empty"
        assert text in section
