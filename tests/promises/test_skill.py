"""The skill for coding agents: its form, and that what it tells agents to run works."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

import tb_perfadvisor
from tests.mcp.test_server import TOOLS
from tests.support.command import HEALTHY, SLOW, run

SKILL = Path(tb_perfadvisor.__file__).parent / ".agents" / "skills" / "perf-advisor" / "SKILL.md"
TEXT = SKILL.read_text(encoding="utf-8")


def test_the_form_is_that_of_agent_skills() -> None:
    """As agentskills.io specifies it."""
    (front,) = re.findall(r"\A---\n(.*?)\n---\n", TEXT, re.DOTALL)
    fields = yaml.safe_load(front)
    assert fields.keys() == {"name", "description", "license"}
    assert fields["name"] == SKILL.parent.name
    assert 1 <= len(fields["description"]) <= 1024
    assert len(TEXT.splitlines()) < 500


def test_its_commands_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(SLOW, tmp_path / "runs" / "before")
    shutil.copytree(HEALTHY, tmp_path / "runs" / "after")
    (tmp_path / "train.py").write_text(
        "from torch.utils.data import DataLoader\n\nloader = DataLoader(data)\n", encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^perfadvisor (.+)$", TEXT, re.MULTILINE)
    commands = [words for words in map(shlex.split, lines) if "--" not in words]  # no program
    brief, tables, rule, patches, comparison = (run(*words) for words in commands)
    assert "1 captures, 2 findings, 5 steps" in tables.stderr
    assert rule.stdout.startswith("# input-stall")
    assert "+loader = DataLoader(data, num_workers=4" in patches.stdout
    assert "1.65 times as fast" in comparison.stdout
    (report,) = json.loads(brief.stdout)["reports"]
    for field in ("first", "trust", "trust_reasons", "warnings"):
        assert field in report
        assert f"`{field}`" in TEXT
    assert (tmp_path / "tables" / "kernels.csv").exists()
    named = set(re.findall(r"`(list_captures|analyze|finding|query|compare)`", TEXT))
    assert named <= TOOLS
