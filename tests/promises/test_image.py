"""The container image: linted everywhere, and built where Docker runs."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
import setuptools

from tests.support.command import ROOT, SLOW

DOCKERFILE = ROOT / "Dockerfile"
HADOLINT = Path(sys.executable).parent / "hadolint"


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint has no wheel for this machine")
def test_the_linter_has_nothing_to_say() -> None:
    done = subprocess.run([HADOLINT, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_it_gets_what_it_builds_from(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}
    monkeypatch.setattr(setuptools, "setup", given.update)
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(ROOT / "setup.py"))
    (extras,) = re.findall(r"/source\[([\w,]+)\]", DOCKERFILE.read_text(encoding="utf-8"))
    known = given["extras_require"]
    assert isinstance(known, dict)
    assert set(extras.split(",")) <= known.keys()
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sent = [line[1:] for line in lines if line.startswith("!")]
    assert all((ROOT / name).exists() for name in sent)
    assert {"setup.py", "README.md", "LICENSE", "pyproject.toml", "tb_perfadvisor"} <= set(sent)
    assert not any(fnmatch(".git", name) for name in sent)


@pytest.mark.nightly
def test_it_builds_and_analyzes() -> None:
    docker = shutil.which("docker")
    if (
        docker is None
        or subprocess.run([docker, "info"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no Docker daemon")
    tag, mount = "perf-advisor-test", f"{SLOW}:/runs:ro"
    subprocess.run([docker, "build", "--tag", tag, str(ROOT)], check=True, timeout=900)
    done = subprocess.run(
        [docker, "run", "--rm", "--volume", mount, tag, "perfadvisor", "analyze", "/runs"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert "input-stall" in done.stdout
