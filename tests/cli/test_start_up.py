"""A small profile is analyzed before what it does not need would be imported."""

from __future__ import annotations

import subprocess
import sys

from tests.support.command import DEMO

_PROGRAM = """
import sys
from tb_perfadvisor.cli import app
app(["analyze", sys.argv[1], "--no-cache"], standalone_mode=False)
print(*sys.modules, sep="\\n", file=sys.stderr)
"""


def test_analyzing_imports_no_other_command_and_no_views() -> None:
    path = str(DEMO / "pytorch_input_slow")
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, path], capture_output=True, text=True, check=True
    )
    modules = done.stderr.splitlines()
    commands = {name for name in modules if name.startswith("tb_perfadvisor.cli.")}
    parts = ("analyze", "help", "selection", "terminal")
    assert commands == {f"tb_perfadvisor.cli.{part}" for part in parts}
    assert not [name for name in modules if name.startswith("tb_perfadvisor.report.views.")]
    assert {"importlib.metadata", "tb_perfadvisor.sources", "statistics"}.isdisjoint(modules)
