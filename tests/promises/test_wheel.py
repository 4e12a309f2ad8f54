"""What a user installs: everything that runs, and nothing else."""

from __future__ import annotations

import configparser
import gzip
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = "tb_perfadvisor/cli/demo.zip"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a source distribution and the wheel that is built from it."""
    pytest.importorskip("setuptools", reason="building without isolation needs setuptools")
    source = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git checkout")
    # Only what git knows, so that no stray build folder gets in.
    for name in listed.stdout.decode().split("\0"):
        origin, target = ROOT / name, source / name
        if name and origin.is_file() and not name.startswith(("demo_logs/", "tests/")):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(origin.read_bytes())
    target = tmp_path_factory.mktemp("built")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(source)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    (path,) = built.glob("*.whl")
    # Pure Python: one wheel for every machine.
    assert path.name.endswith("-py3-none-any.whl")
    return zipfile.ZipFile(path)


def test_the_source_distribution_holds_documents_and_the_source_of_the_bundle(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "frontend/package-lock.json", "setup.py"} <= names
    assert {name.split("/")[0] for name in names} & {"tests", "demo_logs", "benchmarks"} == set()
    assert not any(name.startswith("frontend/node_modules") for name in names)


@pytest.mark.nightly  # noxfile.py installs the wheel that is built from it
def test_the_source_distribution_installs(built: Path, tmp_path: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run(
        [*command, "--no-build-isolation", "--target", str(tmp_path), str(source)],
        check=True,
        timeout=300,
    )
    script = (
        "import tb_perfadvisor.plugin.responses as responses, tb_perfadvisor.rules.registry as r;"
        "print(responses.__file__, len(r.all_rules()));"
        "assert (responses.STATIC_DIRECTORY / 'index.js').is_file()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin"},
        timeout=60,
    )
    assert done.stdout.startswith(str(tmp_path))
    assert int(done.stdout.split()[1]) > 50


def test_the_license_is_in_the_metadata(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = wheel.read(name).decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "License-File: LICENSE" in metadata
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())


def test_it_holds_all_modules_and_data(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    package = ROOT / "tb_perfadvisor"
    modules = {
        path.relative_to(ROOT).as_posix()
        for path in package.rglob("*.py")
        if "__pycache__" not in path.parts
    }
    assert modules <= names
    assert DEMO in names
    assert {"tb_perfadvisor/py.typed", "tb_perfadvisor/contract/schema.json"} <= names
    assert {path.relative_to(ROOT).as_posix() for path in package.rglob("*.toml")} <= names
    static = {path.relative_to(ROOT).as_posix() for path in (package / "static").iterdir()}
    assert static <= names
    assert any(name.endswith(".js") for name in static)


def test_it_holds_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tb_perfadvisor"}
    endings = {Path(name).suffix for name in wheel.namelist() if name.startswith("tb_perfadvisor/")}
    assert endings <= {".py", ".typed", ".json", ".toml", ".js", ".txt", ".zip", ".md"}
    pages = [name for name in wheel.namelist() if name.endswith(".md")]
    assert pages == ["tb_perfadvisor/.agents/skills/perf-advisor/SKILL.md"]
    # Code, advice and pages grow, and with them the wheel's list of its files. The bundle and the
    # schema grow by some 10 kB with each view; a stray data file would show at once. The files and
    # words of frameworks, by which `anonymize` knows public names, are 400 kB (100 kB compressed).
    data = [
        entry
        for entry in wheel.infolist()
        if entry.filename.startswith("tb_perfadvisor/")
        and not entry.filename.endswith(".py")
        and not entry.filename.startswith(("tb_perfadvisor/advice/", "tb_perfadvisor/rules/"))
        and entry.filename != DEMO
    ]
    assert sum(entry.file_size for entry in data) < 1_300_000
    assert sum(entry.compress_size for entry in wheel.infolist()) < 2_500_000
    # Eighteen small profiles, which are compressed already.
    assert wheel.getinfo(DEMO).file_size < 150_000


def test_it_announces_the_command_and_the_plugin(wheel: zipfile.ZipFile) -> None:
    (name,) = [n for n in wheel.namelist() if n.endswith(".dist-info/entry_points.txt")]
    entries = configparser.ConfigParser()
    entries.read_string(wheel.read(name).decode())
    assert dict(entries["console_scripts"]) == {"perfadvisor": "tb_perfadvisor.cli:main"}
    assert dict(entries["tensorboard_plugins"]) == {
        "perf_advisor": "tb_perfadvisor.plugin.loader:PerfAdvisorLoader"
    }


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("tb_perfadvisor", {"numpy", "msgspec", "tensorboard"}),
        # TensorBoard imports every plugin's loader before it does anything else.
        ("tb_perfadvisor.plugin.loader", {"msgspec", "tb_perfadvisor.api", "click", "rich"}),
        ("tb_perfadvisor.api.training", {"tensorboard", "torch", "tensorflow", "jax"}),
        ("tb_perfadvisor.cli", {"tensorboard", "torch", "tensorflow", "jax"}),
        # Every report shows what was proved. Only changes of code need their library.
        (
            "tb_perfadvisor.api.analyses, tb_perfadvisor.proof.attach",
            {"libcst", "tb_perfadvisor.suggest"},
        ),
    ],
)
def test_importing_stays_cheap(module: str, unwanted: set[str]) -> None:
    script = f"import sys, {module}; print(sorted({unwanted!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, timeout=60, check=True, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


def test_the_tab_stays_small() -> None:
    bundle = (ROOT / "tb_perfadvisor" / "static" / "index.js").read_bytes()
    # As TensorBoard sends it. docs/performance.md states the sizes.
    sent = len(gzip.compress(bundle, 3))
    assert sent < 250_000
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    stated = re.search(r"one file of (\d+) kB \((\d+) kB over the wire\)", page)
    assert stated is not None
    assert int(stated[1]) == pytest.approx(len(bundle) / 1e3, rel=0.05)
    assert int(stated[2]) == pytest.approx(sent / 1e3, rel=0.05)
