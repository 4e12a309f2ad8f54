"""What all commands share: help, wrong usage, closed pipes and full disks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tb_perfadvisor.cli import app
from tb_perfadvisor.cli.help import CountRange, NumberRange
from tb_perfadvisor.version import VERSION
from tests.support.command import HEALTHY, SLOW, error, run

# Each starts a process, and others do what is most likely to break.
AT_NIGHT = pytest.mark.nightly


def test_usage_errors_end_in_one_line() -> None:
    assert "Missing argument" in error("analyze")
    assert "No such command 'analyse'" in error("analyse", SLOW)
    assert re.search("No such option.*--formt", error("analyze", SLOW, "--formt", "json"))
    assert "'pdf' is not one of" in error("analyze", SLOW, "--format", "pdf")
    assert "--parameters" in error("analyze", SLOW, "--parameters", "0")


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e400", "1e16"])
def test_numbers_must_be_finite(value: str) -> None:
    assert "--link-bandwidth" in error("analyze", SLOW, "--link-bandwidth", value)
    assert "--price-per-device-hour" in error("analyze", SLOW, "--price-per-device-hour", value)
    assert "--fail-on-regression" in error("compare", SLOW, SLOW, "--fail-on-regression", value)


def test_every_numeric_option_is_bounded() -> None:
    numeric = {
        f"{name} {option.opts[0]}": option.type
        for name, command in app.commands.items()
        for option in command.params
        if option.type.name.startswith(("int", "float"))
    }
    assert len(numeric) > 10
    for name, kind in numeric.items():
        assert isinstance(kind, NumberRange | CountRange), name
    assert "--parameters" in error("analyze", SLOW, "--parameters", "9" * 400)


def test_help_shows_types_and_defaults() -> None:
    text = " ".join(run("analyze", "--help", width=150).stdout.split())
    for line in (
        "analyze [OPTIONS] PATH",
        "PATH <str> A logdir, a run or one file. [required]",
        "--format -f <text|json|markdown|html|sarif|brief> Output format. [default: text]",
        "--select <list[str]> Run only this rule. Can be repeated.",
        "--workers <int range> [x>=1] Number of processes that read files.",
        "Reuse the reports of unchanged files. [default: cache]",
    ):
        assert line in text
    assert "Reads PyTorch, TensorFlow and JAX profiles" in run(status=2).stdout


def test_help_shows_examples_and_exit_status() -> None:
    assert (
        "perfadvisor analyze runs/baseline -f html -o report.html"
        in run("analyze", "--help").stdout
    )
    assert "Exit status: 2 on an error" in run("--help").stdout


def test_version() -> None:
    assert run("--version").stdout == f"perfadvisor {VERSION}\n"


def test_text_in_a_pipe_is_a_hundred_columns_wide() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        [sys.executable, "-m", "tb_perfadvisor", "analyze", SLOW],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    assert max(map(len, done.stdout.splitlines())) == 100


def test_every_command_and_option_has_help() -> None:
    for name, command in app.commands.items():
        assert command.help, name
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name} has no help"


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["analyze", str(SLOW)], id="text"),
        pytest.param(["analyze", str(SLOW), "--format", "json"], id="json"),
        pytest.param(["compare", str(SLOW), str(HEALTHY)], id="compare", marks=AT_NIGHT),
        pytest.param(["rules"], id="rules", marks=AT_NIGHT),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="pipes break differently there")
def test_a_closed_pipe_is_no_error(arguments: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tb_perfadvisor", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("format", ["text", pytest.param("json", marks=AT_NIGHT)])
def test_a_full_disk_is_reported(format: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tb_perfadvisor", "analyze", SLOW, "--format", format],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "error: standard output: cannot be written: No space left on device.\n"
