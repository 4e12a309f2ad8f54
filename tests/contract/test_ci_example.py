"""The job that the README shows for CI does what it says: it fails, passes, and leaves SARIF."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SLOW, FIXED = "pytorch_input_slow", "pytorch_input_fixed"


def job() -> str:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"^```yaml\n(jobs:\n.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.mark.parametrize(
    ("base", "new", "statuses"),
    [(FIXED, SLOW, [1, 1]), (SLOW, FIXED, [0, 0]), (FIXED, FIXED, [0, 0])],
    ids=["regression", "improvement", "unchanged"],
)
def test_the_job_fails_where_it_should(
    base: str, new: str, statuses: list[int], tmp_path: Path
) -> None:
    for run, demo in (("base", base), ("new", new)):
        shutil.copytree(ROOT / "demo_logs" / demo, tmp_path / "runs" / run)
    commands = re.findall(r"^ +- run: perfadvisor (.+)$", job(), re.MULTILINE)
    assert len(commands) == len(statuses)
    ended = [
        subprocess.run(
            [sys.executable, "-m", "tb_perfadvisor", *shlex.split(command)],
            cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        )
        for command in commands
    ]  # fmt: skip
    assert [one.returncode for one in ended] == statuses, [one.stderr for one in ended]
    # The file that is uploaded is there, whether or not its command failed the job.
    (uploaded,) = re.findall(r"sarif_file: ([\w.]+)", job())
    (run,) = json.loads((tmp_path / uploaded).read_text(encoding="utf-8"))["runs"]
    assert bool(run["results"]) == (new == SLOW)


def test_the_upload_may_be_made_and_is_made_after_a_failure() -> None:
    assert "security-events: write" in job()
    after = job()[job().index("compare") :]
    assert after.count("if: always()") == 2
