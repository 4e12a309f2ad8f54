"""Makes suggestions for one finding with one remedy, and applies patches."""

from __future__ import annotations

import subprocess
from pathlib import Path

from msgspec.structs import replace

from tb_perfadvisor import analyze
from tb_perfadvisor.advice import Value
from tb_perfadvisor.contract import model
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.sources import Repository
from tb_perfadvisor.suggest import Suggestion, suggest
from tests.support.command import SLOW

VALUES = {"loader-workers": {"workers": 4}, "steps-per-execution": {"steps": 50}}
"""What findings propose, where a fix needs it."""


def report_with(fix: str, *places: model.Place, **values: Value) -> Report:
    report = analyze(SLOW)
    remedy = model.Remedy(
        text="",
        snippet=None,
        language="python",
        framework="",
        reference=None,
        fixes=[fix],
        values=values or VALUES.get(fix, {}),
    )
    finding = replace(report.findings[0], evidence=[], places=list(places), remedies=[remedy])
    return replace(report, findings=[finding], first=None)


def only(tmp_path: Path, code: str, fix: str, *places: model.Place, **values: Value) -> Suggestion:
    (tmp_path / "train.py").write_text(code, encoding="utf-8")
    (suggestion,) = suggest(report_with(fix, *places, **values), Repository(tmp_path))
    return suggestion


def added(suggestion: Suggestion) -> list[str]:
    return [
        line[1:].strip()
        for line in suggestion.patch.splitlines()
        if line.startswith("+") and not line.startswith("+++")
    ]


def git_apply(directory: Path, patch: str) -> None:
    """Apply a patch, byte for byte."""
    done = subprocess.run(
        ["git", "apply", "--unsafe-paths", "-"],
        cwd=directory, input=patch.encode(), capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
