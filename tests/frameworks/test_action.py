"""The action and the GitLab job, run as their runners do: install, record, compare, comment, gate.

A directory takes the place of the pull request's checkout, an environment of its own that of the
runner's Python, and a server on loopback that of the APIs. Packages are not downloaded: the
environment sees those of this one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import ROOT
from tests.support.comment_server import Server, serving

yaml = pytest.importorskip("yaml")
pytest.importorskip("torch")

CHECKOUT = (
    "action.yml", "setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in",
    "requirements-engine.txt", "tb_perfadvisor", "scripts",
)  # fmt: skip
TRAIN = """
import argparse, time, torch
options = argparse.ArgumentParser()
options.add_argument("--steps", type=int)
options.add_argument("--wait", type=float, default=0.0)
options = options.parse_args()
torch.set_num_threads(1)
net = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for _ in range(options.steps):
    time.sleep(options.wait)
    optimizer.zero_grad()
    net(torch.ones(4, 16)).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python whose environment has the packages of this one, but not this one's own package."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, symlinks=os.name != "nt")
    binaries = directory / ("Scripts" if os.name == "nt" else "bin")
    asked = subprocess.run(
        [binaries / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    folders = [path for path in sys.path if path.endswith("site-packages")]
    Path(asked.stdout.strip(), "packages.pth").write_text("\n".join(folders), encoding="utf-8")
    # Without a command of its own, `pip` would install into another Python.
    pip = binaries / "pip"
    pip.write_text(f'#!/bin/sh\nexec "{binaries}/python" -m pip "$@"\n', encoding="utf-8")
    pip.chmod(0o755)
    return binaries


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout of a program, with a checkout of this repository in it."""
    project = tmp_path / "project"
    (project / "tb_perfadvisor").mkdir(parents=True)
    (project / "train.py").write_text(TRAIN, encoding="utf-8")
    for name in CHECKOUT:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, project / "tb_perfadvisor" / name)
    return project


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


def shell(
    script: str, project: Path, python: Path, variables: Mapping[str, str]
) -> tuple[int, str]:
    """Run a script as both runners do: it ends with the first command that fails."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GITHUB_", "CI_", "GITLAB_", "PYTHON", "VIRTUAL_ENV"))
    }
    path = f"{python}{os.pathsep}{os.environ['PATH']}"
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_CONFIG_FILE": os.devnull}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=project, capture_output=True, text=True, check=False, timeout=300,
        env={**inherited, **offline, **variables, "PATH": path},
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


# --- the runner of actions: only what the action uses, and an error for everything else -----------


def value_of(text: str, contexts: Mapping[str, str]) -> str:
    """A text with its expressions replaced: `${{ inputs.repo }}`."""
    found = re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda match: contexts[match[1]], text)
    assert "${{" not in found, f"an expression that this runner does not know: {text}"
    return found


def is_met(condition: str | None, contexts: Mapping[str, str]) -> bool:
    """Whether a condition holds: none, or `inputs.name != ''`."""
    if condition is None:
        return True
    match = re.fullmatch(r"([\w.-]+) != ''", condition)
    assert match is not None, f"a condition that this runner does not know: {condition}"
    return contexts[match[1]] != ""


def run_action(
    action: Path, inputs: Mapping[str, str], project: Path, python: Path, runner: Mapping[str, str]
) -> tuple[int, dict[str, str]]:
    """Run a composite action; the exit status, and the output of each step that ran."""
    described: dict[str, Any] = yaml.safe_load((action / "action.yml").read_text(encoding="utf-8"))
    assert described["runs"]["using"] == "composite"
    assert inputs.keys() <= described["inputs"].keys()
    contexts = {"github.token": "secret"}
    for name, declared in described["inputs"].items():
        assert name in inputs or not declared.get("required"), name
        contexts[f"inputs.{name}"] = inputs.get(name) or value_of(declared["default"], contexts)
    outputs = {}
    for step in described["runs"]["steps"]:
        assert step.keys() <= {"name", "if", "shell", "env", "run"}
        assert step["shell"] == "bash"
        if not is_met(step.get("if"), contexts):
            continue
        variables = {name: value_of(value, contexts) for name, value in step.get("env", {}).items()}
        variables |= {**runner, "GITHUB_ACTION_PATH": str(action)}
        status, outputs[step["name"]] = shell(step["run"], project, python, variables)
        if status:
            return status, outputs
    return 0, outputs


@pytest.mark.nightly
def test_the_action_and_the_job(project: Path, python: Path, server: Server) -> None:
    record = "perfadvisor run --logdir runs/{} -- python train.py --steps 40 --wait {}"
    inputs = {
        "command": f"{record.format('base', 0.02)} && {record.format('new', 0.1)}",
        "base": "runs/base",
        "profile": "runs/new",
        "fail-on-regression": "5",
    }
    runner = server.variables("github", project)
    status, said = run_action(project / "tb_perfadvisor", inputs, project, python, runner)
    assert list(said) == ["Install Perf Advisor", "Record", "Analyze, compare and comment"], said
    assert said["Record"].count(" recordings (") == 2
    # A step sleeps for 100 ms instead of 20, and in the job below not at all.
    assert status == 1, said
    assert [method for method, _, _ in server.requests] == ["GET", "POST"]
    assert "times as long" in str(server.comments[1]["body"]), server.comments[1]
    sarif = json.loads((project / "perf-advisor.sarif").read_text(encoding="utf-8"))
    assert sarif["runs"][0]["results"]
    # The environment got the package from the checkout, and not from this one.
    found = shell(
        "python -c 'import tb_perfadvisor; print(tb_perfadvisor.__file__)'", project, python, {}
    )
    assert Path(found[1].strip()).is_relative_to(python.parent)

    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    (job,) = re.findall(r"^```text\n(performance:\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    shutil.rmtree(project / "runs" / "new")
    for command in yaml.safe_load(job)["performance"]["script"]:
        status, text = shell(command, project, python, server.variables("gitlab", project))
        assert status == 0, text
    assert [method for method, _, _ in server.requests[2:]] == ["GET", "PUT"]
    assert "times as long" not in str(server.comments[1]["body"])
