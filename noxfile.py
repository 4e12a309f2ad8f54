"""The smoke suite in fresh environments, from the oldest to the newest of everything.

`make test-versions` runs all environments; `make test-versions ENVIRONMENTS="oldest engine"` runs
some. The package is installed from its wheel, never from the checkout. An environment whose
interpreter is missing is skipped, and says so.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from functools import cache
from pathlib import Path

import nox
from packaging.requirements import Requirement

ROOT = Path(__file__).parent
SUITES = ROOT / "tests" / "versions"
EXTRAS = ("mcp",)
# The last setuptools with pkg_resources, which TensorBoard needed before 2.21.
PKG_RESOURCES = "setuptools>=81,<82"
MAX_ENGINE_BYTES = 130_000_000


@dataclass(frozen=True)
class Environment:
    """A fresh environment, and the suites that run in it."""

    name: str
    python: str
    constraints: tuple[str, ...] = ()
    """More requirements."""
    is_lowest: bool = False
    """Whether each requirement of the package is installed in the lowest version that it allows."""
    is_engine: bool = False
    """Whether only requirements-engine.txt is installed."""

    @property
    def suites(self) -> tuple[str, ...]:
        """The files to run."""
        if self.is_engine:
            return ("smoke_engine.py", "smoke_without_tensorboard.py")
        return ("smoke_engine.py", "smoke_agents.py", "smoke_tab.py")


ENVIRONMENTS = (
    Environment("oldest", "3.10", (PKG_RESOURCES,), is_lowest=True),
    # What TensorFlow 2.17 requires: the last release that excludes NumPy 2 and protobuf 5.
    Environment(
        "tensorflow-2.17",
        "3.12",
        ("numpy>=1.26,<2", "protobuf>=3.20.3,<5", "tensorboard==2.17.*", PKG_RESOURCES),
    ),
    Environment("newest-3.13", "3.13"),
    Environment("newest-3.14", "3.14"),
    Environment("engine", "3.13", is_engine=True),
)

OLDEST = ENVIRONMENTS[0]

nox.options.error_on_missing_interpreters = False
_reports: dict[str, list[object]] = {}
"""What `analyze` found in the demo profiles, by environment."""


# Tests of the engine, which take most of what differs between versions of NumPy and msgspec.
UNIT_TESTS = ("trace", "signals", "rules", "ingest", "engine", "training", "whatif")


def _register(environment: Environment) -> None:
    python = _interpreter(environment.python)

    def session(session: nox.Session) -> None:
        if python is None:
            _skip(session, environment)
        else:
            _smoke(session, environment)

    session.__doc__ = f"The smoke suite on Python {environment.python}."
    backend = "none" if python is None else "uv"
    nox.session(session, name=environment.name, python=python or False, venv_backend=backend)


@cache
def _interpreter(python: str) -> str | None:
    """The path of an installed interpreter, also one of pyenv's; None if there is none."""
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    bins = [str(path) for path in home.glob(f"versions/{python}.*/bin")]
    path = os.pathsep.join([*bins, os.environ["PATH"]])
    found = subprocess.run(
        [sys.executable, "-m", "uv", "python", "find", "--system", "--no-python-downloads", python],
        capture_output=True, text=True, check=False, env={**os.environ, "PATH": path},
    )  # fmt: skip
    return found.stdout.strip() if found.returncode == 0 else None


def _skip(session: nox.Session, environment: Environment) -> None:
    """Skip the environment; in CI, the oldest only if its interpreter really is not there."""
    command = shutil.which(f"python{environment.python}")
    if environment.is_lowest and command and os.environ.get("CI"):
        session.error(f"{command} exists but cannot be used: install Python {environment.python}.")
    session.skip(f"there is no Python {environment.python} on this machine.")


def _smoke(session: nox.Session, environment: Environment) -> None:
    if environment.is_engine:
        # Compiled, as pip leaves them.
        requirements = str(ROOT / "requirements-engine.txt")
        session.install("--compile-bytecode", "--requirement", requirements)
        session.install("--compile-bytecode", "--no-deps", str(_wheel()))
        _check_size(session)
    else:
        _install(session, environment)
    session.install("pytest>=8.1")
    reports = Path(session.create_tmp()).absolute() / "reports.json"
    session.chdir(session.create_tmp())  # the checkout must not be on the path
    session.run(
        *("python", "-m", "pytest", "--config-file", str(SUITES / "pytest.ini")),
        *("--rootdir", str(SUITES), "--quiet", *session.posargs),
        *(str(SUITES / suite) for suite in environment.suites),
        env={"SMOKE_REPORTS": str(reports)},
    )
    _compare_reports(session, environment, reports)


def _install(session: nox.Session, environment: Environment) -> None:
    """Install the wheel with its extras, and the environment's constraints."""
    wheel = _wheel()
    requested = [f"tb_perfadvisor[{','.join(EXTRAS)}] @ {wheel.as_uri()}"]
    requested += environment.constraints
    if environment.is_lowest:
        # `lowest-direct` is about what is named here, not about what the wheel requires.
        # Without --no-build it would take releases that have no wheel for this interpreter.
        requested += _requirements(wheel)
        session.install("--resolution=lowest-direct", "--no-build", *requested)
    else:
        session.install(*requested)


@cache
def _wheel() -> Path:
    """The wheel, built once by way of a source distribution, as a release is."""
    target = Path(tempfile.mkdtemp(prefix="perfadvisor-wheel-"))
    subprocess.run(
        [sys.executable, "-m", "uv", "build", "--quiet", "--out-dir", str(target), str(ROOT)],
        check=True,
    )
    (wheel,) = target.glob("*.whl")
    return wheel


def _requirements(wheel: Path) -> list[str]:
    """What the wheel and its extras require."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode("utf-8"))
    required = []
    for line in metadata.get_all("Requires-Dist", []):
        requirement = Requirement(line)
        extra = re.search(r'extra == "([\w-]+)"', line)
        if extra is None:
            required.append(line)
        elif extra[1] in EXTRAS:
            requirement.marker = None
            required.append(str(requirement))
    return required


def _check_size(session: nox.Session) -> None:
    """Keep the installation without TensorBoard small."""
    site = session.run(
        "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", silent=True
    )
    assert isinstance(site, str)
    files = [path for path in Path(site.strip()).rglob("*") if path.is_file()]
    size_bytes = sum(path.stat().st_size for path in files)
    session.log(f"The engine and the command line take {size_bytes / 1e6:.0f} MB.")
    if size_bytes > MAX_ENGINE_BYTES:
        session.error(f"More than {MAX_ENGINE_BYTES / 1e6:.0f} MB.")


def _compare_reports(session: nox.Session, environment: Environment, path: Path) -> None:
    """Require the same reports, to the last digit, as in the environment before."""
    reports = json.loads(path.read_text(encoding="utf-8"))["reports"]
    for report in reports:
        for outcome in report["outcomes"]:
            outcome.pop("elapsed_ms", None)
    for other, expected in _reports.items():
        different = [now["run"] for now, then in zip(reports, expected, strict=True) if now != then]
        if different:
            session.error(f"other reports than in {other}: {', '.join(different)}.")
    _reports[environment.name] = reports


for _environment in ENVIRONMENTS:
    _register(_environment)


@nox.session(
    name="unit-oldest",
    python=_interpreter(OLDEST.python) or False,
    venv_backend="uv" if _interpreter(OLDEST.python) else "none",
    default=False,
)
def unit_oldest(session: nox.Session) -> None:
    """The tests of the engine with the oldest requirements, on the checkout; takes minutes."""
    if _interpreter(OLDEST.python) is None:
        _skip(session, OLDEST)
    _install(session, OLDEST)
    session.install("pytest>=8.1", "pytest-xdist>=3.5", "hypothesis>=6.100")
    session.run(
        *("python", "-m", "pytest", "--quiet", "-n", "logical", "--dist", "loadgroup"),
        *("-m", "not corpus and not frameworks", *session.posargs),
        *(f"tests/{folder}" for folder in UNIT_TESTS),
    )
