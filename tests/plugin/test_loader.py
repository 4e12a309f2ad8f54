"""TensorBoard starts even if this plugin or its dependencies are broken."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

# Loads the entry point unguarded, as `tensorboard.default.get_dynamic_plugins()` does.
PROGRAM = """
    import sys
    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in BROKEN or name in BROKEN:
                raise RuntimeError("binary incompatible " + name)
    BROKEN = set(sys.argv[1].split(","))
    sys.meta_path.insert(0, Broken())
    from importlib.metadata import EntryPoint
    entry = EntryPoint(
        "perf_advisor", "tb_perfadvisor.plugin.loader:PerfAdvisorLoader", "tensorboard_plugins"
    )
    loader = entry.load()()
    ours = sorted(name for name in sys.modules if name.startswith("tb_perfadvisor"))
    from tensorboard.plugins import base_plugin
    import argparse, time
    loader.define_flags(argparse.ArgumentParser())
    loader.fix_flags(argparse.Namespace())
    context = base_plugin.TBContext(logdir=sys.argv[2], flags=argparse.Namespace())
    plugin = loader.load(context)
    print("MODULES", *ours)
    print("PLUGIN", type(plugin).__name__)
    if plugin is not None:
        time.sleep(float(sys.argv[3]))
        print("ACTIVE", plugin.is_active())
"""


def load(broken: str, logdir: Path, wait_s: float = 0) -> tuple[dict[str, str], str]:
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), broken, str(logdir), str(wait_s)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    return lines, done.stderr


def test_loader_imports_nothing_else(tmp_path: Path) -> None:
    lines, _ = load("none", tmp_path)
    assert lines["MODULES"] == "tb_perfadvisor tb_perfadvisor.plugin tb_perfadvisor.plugin.loader"
    assert lines["PLUGIN"] == "PerfAdvisorPlugin"


@pytest.mark.parametrize("broken", ["msgspec", "tb_perfadvisor.plugin.jobs"])
def test_broken_import_disables_the_tab_with_a_warning(broken: str, tmp_path: Path) -> None:
    lines, log = load(broken, tmp_path)
    assert lines["PLUGIN"] == "NoneType"
    assert f"The Perf Advisor tab is off: RuntimeError: binary incompatible {broken}" in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("broken", "warning"),
    [
        ("isal", "could not be scanned (binary incompatible isal)"),
        ("fsspec,platformdirs", ""),  # not needed for a local directory
        ("numpy,google.protobuf", ""),  # nor for listing it
    ],
)
def test_broken_reader_does_not_break_tensorboard(
    broken: str, warning: str, tmp_path: Path
) -> None:
    lines, log = load(broken, tmp_path, wait_s=1.0)
    assert (lines["PLUGIN"], lines["ACTIVE"]) == ("PerfAdvisorPlugin", "False")
    assert warning in log
    assert "Traceback" not in log


@pytest.mark.parametrize("route", ["doctor", "notes", "captures/0123456789ab/report"])
def test_a_request_imports_packages_before_its_own_modules(tmp_path: Path, route: str) -> None:
    """Or another request that does so at the same time gets half of a module."""
    program = textwrap.dedent(PROGRAM) + textwrap.dedent("""
        from tensorboard.backend import application
        from werkzeug.test import Client

        class Watch:
            def find_spec(self, name, path=None, target=None):
                if name == "tb_perfadvisor.trace":
                    print("NEW", *sorted(ours() - before))

        tensorboard = application.TensorBoardWSGI([plugin])
        def ours():
            return {name for name in sys.modules if name.startswith("tb_perfadvisor.plugin")}

        before = ours()
        sys.meta_path.insert(0, Watch())
        Client(tensorboard).get("/data/plugin/perf_advisor/api/v1/" + sys.argv[4])
    """)
    command = [sys.executable, "-c", program, "none", str(tmp_path), "0", route]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "NEW"
