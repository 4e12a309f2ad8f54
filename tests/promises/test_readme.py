"""Each command of the README, word for word, in a fresh clone with an environment of its own.

It installs what the README installs, so it needs pip's index, several gigabytes and minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the commands are for bash")

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LEFT_OUT = frozenset({"make test"})
"""It runs this test's neighbors, and whoever runs this test has run it."""
SERVERS = ("make demo", "tensorboard ")
TAB = "data/plugin/perf_advisor/api/v1/captures"
PATIENCE_S = 1800
_PART = re.compile(
    r"^```(?P<kind>bash|console)\n(?P<block>.*?)^```$"
    r"|`(?P<command>(?:perfadvisor|pip) [^`\n]+)`"
    r"|`(?P<python>from tb_perfadvisor import [^`]+)`",
    re.MULTILINE | re.DOTALL,
)


def commands() -> Iterator[tuple[str, str | None]]:
    """The commands of the README in its order, with the output that it shows; None for none."""
    for part in _PART.finditer(README):
        if part["command"]:
            yield part["command"], None
        elif part["python"]:
            yield f"python -c '{part['python']}'", None
        elif part["kind"] == "bash":
            yield from ((line, None) for line in part["block"].splitlines())
        else:
            for shown in part["block"].split("$ ")[1:]:
                command, _, output = shown.partition("\n")
                yield command, output


def status_of(command: str) -> int:
    """The exit status that the README states."""
    stated = re.search(r"# .*exit status (\d)", command)
    return int(stated[1]) if stated else 0


def as_pattern(output: str) -> str:
    """What matches an output in which lines, or parts of a line, are left out."""
    lines = [
        "(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + " *\n"
        for line in output.splitlines()
    ]
    return "".join(lines)


class Shell:
    """A shell that keeps its directory and its environment from one command to the next."""

    def __init__(self, clone: Path, home: Path, environment: dict[str, str]) -> None:
        self.clone, self._home = clone, home
        self._environment = home / "environment"
        self._environment.write_bytes(
            b"\0".join(f"{name}={value}".encode() for name, value in environment.items())
        )

    def environment(self) -> dict[str, str]:
        pairs = self._environment.read_text("utf-8").rstrip("\0").split("\0")
        return dict(pair.split("=", 1) for pair in pairs)

    def run(self, command: str) -> tuple[int, str, str]:
        """The exit status of a command, and what it printed."""
        keep = f'status=$?; env -0 > "{self._environment}"; exit $status'
        done = subprocess.run(
            ["bash", "-c", f"{{ {command}\n}}\n{keep}"],
            cwd=self.clone, env=self.environment(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, encoding="utf-8", timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    @contextmanager
    def serving(self, command: str) -> Iterator[tuple[str, Path]]:
        """The address of a server, once it answers, and the file with what it printed."""
        log = self._home / "server.log"
        with log.open("wb") as stream:
            server = subprocess.Popen(
                ["bash", "-c", command], cwd=self.clone, env=self.environment(),
                stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True,
            )  # fmt: skip
        try:
            deadline = time.monotonic() + PATIENCE_S
            # `make demo` prints one more address, and nothing after it.
            sign = "Perf Advisor: " if command.startswith("make demo") else "TensorBoard "
            found = None
            while found is None:
                assert server.poll() is None, log.read_text("utf-8")
                assert time.monotonic() < deadline, log.read_text("utf-8")
                time.sleep(1)
                found = re.search(rf"{sign}.*(http://\S+/)(\S*)", log.read_text("utf-8"))
            yield found[1], log
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(timeout=60)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A shell of a user who has just cloned the repository."""
    clone, home = tmp_path / "clone", tmp_path / "home"
    home.mkdir()
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.decode().rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)
    subprocess.run(["git", "init", "--quiet"], cwd=clone, check=True)
    pinned = re.search(r"'(torch==[\d.]+)'", (ROOT / "Makefile").read_text("utf-8"))
    assert pinned
    (home / "constraints.txt").write_text(pinned[1])  # its build for the CPU, where there is one
    settings = Path.home() / ".config" / "pip" / "pip.conf"
    kept = ("PATH", "LANG", "TMPDIR", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in kept or name.startswith("PIP_") or name.lower().endswith("_proxy")
    }
    environment |= {"HOME": str(home), "COLUMNS": "80", "LC_ALL": "C.UTF-8"}
    environment |= {"PIP_CONSTRAINT": str(home / "constraints.txt")}
    if settings.is_file():
        environment.setdefault("PIP_CONFIG_FILE", str(settings))
    return Shell(clone, home, environment)


@pytest.mark.nightly
def test_each_command_does_what_the_readme_says(shell: Shell) -> None:
    for command, output in commands():
        if command.partition("#")[0].strip() in LEFT_OUT:
            continue
        if command.startswith(SERVERS):
            with shell.serving(command) as (address, log):
                assert urlopen(f"{address}{TAB}", timeout=60).status == 200
                if command.startswith("make demo"):
                    last = log.read_text("utf-8").splitlines()[-1]
                    assert last == f"Perf Advisor: {address}#perf_advisor"
            continue
        status, printed, said = shell.run(command)
        assert status == status_of(command), f"{command}\n{printed[-3000:]}\n{said[-3000:]}"
        if output is not None:
            assert re.fullmatch(as_pattern(output), printed), f"{command}\n{printed}"


def test_the_readme_names_commands_and_shows_output() -> None:
    named = dict(commands())
    assert next(iter(named)).startswith("python3 -m venv ")
    assert any(command.startswith("make test ") for command in named)
    assert sum(output is not None for output in named.values()) >= 3
    for verb in ("analyze", "suggest", "try", "run", "compare"):
        assert any(command.startswith(f"perfadvisor {verb} ") for command in named), verb


def test_an_ellipsis_stands_for_lines_or_a_part_of_one() -> None:
    pattern = as_pattern("a (1)\n…\nlast: …\n")
    assert re.fullmatch(pattern, "a (1)\nb\nc\nlast: 3 %\n")
    assert re.fullmatch(pattern, "a (1)  \nlast: \n")
    assert not re.fullmatch(pattern, "a (1)\nb\n")
    assert not re.fullmatch(pattern, "a (1)\nlast: 3\nmore\n")
