"""The job that docs/ci.md shows for CI does what it says: it fails, passes, and leaves SARIF."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.support.command import DEMO, run

ROOT = Path(__file__).parents[2]
SLOW, FIXED = "pytorch_input_slow", "pytorch_input_fixed"


def job() -> str:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"^```yaml\n(jobs:\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.parametrize(
    ("base", "new", "statuses"),
    [(FIXED, SLOW, [1, 1]), (SLOW, FIXED, [0, 0]), (FIXED, FIXED, [0, 0])],
    ids=["regression", "improvement", "unchanged"],
)
def test_the_job_fails_where_it_should(
    base: str, new: str, statuses: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, demo in (("base", base), ("new", new)):
        shutil.copytree(DEMO / demo, tmp_path / "runs" / name)
    commands = re.findall(r"^ +- run: perfadvisor (.+)$", job(), re.MULTILINE)
    assert len(commands) == len(statuses)
    monkeypatch.chdir(tmp_path)
    results = [run(*shlex.split(command), status=None) for command in commands]
    assert [result.returncode for result in results] == statuses, results
    # The file that is uploaded is there, whether or not its command failed the job.
    (uploaded,) = re.findall(r"sarif_file: ([\w.]+)", job())
    (sarif,) = json.loads((tmp_path / uploaded).read_text(encoding="utf-8"))["runs"]
    # Notes only say what takes the time.
    problems = [result for result in sarif["results"] if result["level"] != "note"]
    assert bool(problems) == (new == SLOW)


def test_the_upload_may_be_made_and_is_made_after_a_failure() -> None:
    assert "security-events: write" in job()
    after = job()[job().index("compare") :]
    assert after.count("if: always()") == 2
