"""The script in the documentation that goes from a slow program to the verdict on its fix."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import ROOT

pytestmark = pytest.mark.frameworks
SCRIPT = ROOT / "docs" / "examples" / "from-finding-to-fixed.sh"
PATCHES = {
    "pytorch": "num_workers=4",
    "keras": "run_eagerly=False",
    "jax": "@jax.jit",
}


@pytest.mark.parametrize(
    "framework",
    [
        "pytorch",
        pytest.param("keras", marks=pytest.mark.nightly),
        pytest.param("jax", marks=pytest.mark.nightly),
    ],
)
def test_the_patch_achieves_what_was_promised(framework: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", str(SCRIPT), framework, str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert PATCHES[framework] in (tmp_path / "fix.patch").read_text(encoding="utf-8")
    assert done.stdout.splitlines()[-1].startswith("achieved: ")
