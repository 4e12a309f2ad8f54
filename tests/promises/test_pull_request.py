"""The action's steps, run here against servers that stand in for GitHub and GitLab."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from string import Template

import pytest

from scripts import pull_request
from tests.support.command import HEALTHY, ROOT, SLOW, run
from tests.support.comment_server import Server, serving

ACTION = (ROOT / "action.yml").read_text(encoding="utf-8")
SCRIPT = ROOT / "scripts" / "pull_request.py"
MARK = "<!-- perf-advisor -->"


def step() -> str:
    """The last step of the action, as its shell runs it."""
    match = re.search(r"run: >\n((?:        .*\n)+)", ACTION)
    assert match is not None
    return " ".join(match[1].split())


def variables(directory: Path, server: Server, kind: str, **inputs: str) -> dict[str, str]:
    """The step's environment."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GITHUB_", "CI_", "GITLAB_"))
    }
    given = {
        "PROFILE": str(SLOW), "BASE": "", "REPO": ".", "SARIF": "perf.sarif", "FAIL_ON": "",
        "FAIL_ON_REGRESSION": "", "UNDECIDED": "fail", "COMMENT": "true",
        "GITHUB_TOKEN": "secret", "GITHUB_ACTION_PATH": str(ROOT),
        **inputs,
    }  # fmt: skip
    return {**inherited, **server.variables(kind, directory), **given}


def run_step(directory: Path, server: Server, kind: str, **inputs: str) -> tuple[int, str]:
    """Run the step's script in this process, with the arguments that the shell would give it."""
    environment = variables(directory, server, kind, **inputs)
    python, script, *words = shlex.split(step())
    assert (python, Template(script).substitute(environment)) == ("python", str(SCRIPT))

    def run_here(arguments: list[str]) -> tuple[int, str]:
        done = run(*arguments, status=None)
        return int(done.returncode or 0), done.stdout

    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(io.StringIO()) as shown,
        redirect_stderr(io.StringIO()),
    ):
        patch.chdir(directory)
        patch.setattr(os, "environ", environment)
        patch.setattr(pull_request, "_run", run_here)
        status = pull_request.main([Template(word).substitute(environment) for word in words])
    return status, shown.getvalue()


def test_the_step_runs_in_a_shell(tmp_path: Path) -> None:
    with serving() as server:
        environment = variables(tmp_path, server, "github", FAIL_ON="medium")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", step()],
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
            env={**environment, "PATH": path, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
    assert done.stdout.startswith(MARK)
    assert len(server.comments) == 2


@pytest.mark.parametrize("kind", ["github", "gitlab"])
def test_one_comment_is_written_and_then_updated(kind: str, tmp_path: Path) -> None:
    with serving() as server:
        status, shown = run_step(tmp_path, server, kind, BASE=str(HEALTHY))
        assert status == 0
        assert shown.startswith(f"{MARK}\n\n# Compared with pytorch\\_input\\_fixed")
        assert "The whole report" in shown
        assert [each["id"] for each in server.comments] == [7, 8]
        run_step(tmp_path, server, kind, PROFILE=str(HEALTHY))
        assert [each["id"] for each in server.comments] == [7, 8]
        assert "pytorch\\_input\\_fixed" in str(server.comments[1]["body"])
        methods = [method for method, _, _ in server.requests]
        assert methods == ["GET", "POST", "GET", "PATCH" if kind == "github" else "PUT"]
        assert all("secret" in token for _, _, token in server.requests)
    sarif = json.loads((tmp_path / "perf.sarif").read_text(encoding="utf-8"))
    assert sarif["version"] == "2.1.0"


@pytest.mark.parametrize(
    ("inputs", "status"),
    [
        ({"FAIL_ON": "medium"}, 1),
        ({"FAIL_ON": "medium", "PROFILE": str(HEALTHY)}, 0),
        ({"BASE": str(HEALTHY), "FAIL_ON_REGRESSION": "5"}, 1),
        ({"PROFILE": str(HEALTHY), "BASE": str(SLOW), "FAIL_ON_REGRESSION": "5"}, 0),
        ({"PROFILE": "missing"}, 2),
    ],
    ids=["finding", "healthy", "slower", "faster", "missing"],
)
def test_the_gate(inputs: dict[str, str], status: int, tmp_path: Path) -> None:
    with serving() as server:
        assert run_step(tmp_path, server, "github", **inputs)[0] == status


@pytest.mark.parametrize(("choice", "status"), [("fail", 3), ("warn", 0)])
def test_what_an_undecided_comparison_does_is_chosen(
    choice: str, status: int, tmp_path: Path
) -> None:
    # 40 % less is far from 5 % more, but the base may be anything: it has a single step.
    events = [
        {"ph": "X", "pid": 1, "tid": 1, "ts": 10, "dur": 9, "cat": category, "name": name}
        for category, name in (("user_annotation", "ProfilerStep#1"), ("cpu_op", "aten::mm"))
    ]
    base = tmp_path / "base" / "w.pt.trace.json"
    base.parent.mkdir()
    base.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), encoding="utf-8")
    inputs = {"BASE": str(base), "FAIL_ON_REGRESSION": "5", "UNDECIDED": choice}
    with serving() as server:
        assert run_step(tmp_path, server, "github", **inputs)[0] == status
        assert "do not tell whether a step is slower by more than 5 %" in str(server.comments)
        # A limit that was reached says more.
        assert run_step(tmp_path, server, "github", **inputs, FAIL_ON="medium")[0] == 1


def test_a_refused_comment_changes_no_verdict(tmp_path: Path) -> None:
    with serving() as server:
        pass  # nothing listens there any more
    assert run_step(tmp_path, server, "github")[0] == 0


def test_every_input_is_described_and_used() -> None:
    inputs = re.findall(r"^  ([a-z-]+):\n    description: \S", ACTION, re.MULTILINE)
    used = set(re.findall(r"inputs\.([a-z-]+)", ACTION))
    assert used <= set(inputs)
    assert {"profile", "base", "command", "fail-on", "fail-on-regression"} <= used
    # Inputs reach the shell as variables, so that none of them can add commands.
    runs = re.findall(r"run: (.*(?:\n        .*)*)", ACTION)
    assert not [line for line in runs if "${{" in line]
