"""Names of files and runs are untrusted: no command passes their control characters on."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from tb_perfadvisor.cli import app, main
from tests.support.command import HEALTHY, SLOW, run
from tests.support.event_files import write_scalar

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows forbids such names")

ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e\x1b]8;;http://x\x1b\\"
"""Sets the title, clears the screen, colors, turns the direction of text, begins a link."""
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
NOT_UTF8 = os.fsdecode(b"bad\xff\xfe")
RUN = f"run{ESCAPES.replace('/', ':')}"


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs with hostile names, one of which is not UTF-8, and two files that are no profile."""
    monkeypatch.setenv("PERFADVISOR_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / f"logs{ESCAPES.replace('/', ':')}"
    for name, source in ((RUN, SLOW), (NOT_UTF8, HEALTHY)):
        shutil.copytree(source, root / name)
    write_scalar(root / RUN, f"loss{ESCAPES}", {0: 1.0, 1: 2.0})
    write_scalar(root / NOT_UTF8, "loss", {0: 1.0})
    (root / f"broken{RUN}.pt.trace.json").write_text("nothing")
    (root / NOT_UTF8 / f"{NOT_UTF8}.pt.trace.json").write_text("nothing")
    return root


def hostile_commands(logs: Path) -> dict[str, list[list[object]]]:
    """Command lines that make each command print a hostile name."""
    missing, config = logs / f"no{ESCAPES}", logs.parent / f"config{RUN}.toml"
    config.write_text("unknown = 1")
    trace = next(SLOW.glob("*.pt.trace.json*"))
    return {
        "analyze": [
            *(["analyze", logs, "--format", name] for name in ("text", "json", "markdown")),
            *(["analyze", logs, "--format", name] for name in ("sarif", "html", "brief")),
            ["analyze", logs, "--full"],
            ["analyze", logs, "-o", logs.parent / f"out{RUN}"],
            ["analyze", logs, "-o", missing / "out"],
            ["analyze", missing],
            ["analyze", logs, "--run", ESCAPES],
            ["analyze", logs, "--run", f"({ESCAPES}"],
            ["analyze", logs, "--select", ESCAPES],
            ["analyze", logs, "--config", config],
            ["analyze", logs, f"--{ESCAPES}"],
            ["analyze", logs / f"broken{RUN}.pt.trace.json"],
        ],
        "compare": [
            *(["compare", logs / RUN, logs, "-f", name] for name in ("text", "json", "markdown")),
            ["compare", logs, logs],
            ["compare", missing, logs],
        ],
        "doctor": [["doctor", logs], ["doctor", missing], ["doctor", logs / NOT_UTF8]],
        "publish": [["publish", logs], ["publish", missing], ["publish", logs, "--run", "^x"]],
        "anonymize": [
            ["anonymize", trace, logs / f"out{RUN}.json"],
            ["anonymize", missing, logs / "out.json"],
            ["anonymize", logs / f"broken{RUN}.pt.trace.json", logs / "out.json"],
        ],
        "training": [["training", logs, "-f", "json"], ["training", logs], ["training", missing]],
        "history": [
            ["history", logs],
            ["history", logs / RUN, logs / NOT_UTF8],
            *(
                ["history", logs / RUN, logs / NOT_UTF8, "-f", name]
                for name in ("text", "json", "markdown")
            ),
            ["history", missing],
        ],
        "suggest": [
            ["suggest", logs / RUN, "--repo", logs.parent],
            ["suggest", logs / RUN, "--repo", logs.parent, "-f", "json"],
            ["suggest", logs, "--repo", logs.parent],
            ["suggest", logs / RUN, "--repo", missing],
            ["suggest", logs / RUN, "--repo", logs.parent, "--rule", ESCAPES],
        ],
        "try": [
            ["try", logs / RUN, "--repo", logs.parent, "--yes", "--", missing],
            ["try", missing, "--yes", "--", "true"],
            ["try", logs / RUN, "--yes", "--change", ESCAPES, "--", "true"],
        ],
        "ledger": [["ledger", "--file", missing], ["ledger", "--file", logs / NOT_UTF8]],
        "record-now": [["record-now", logs], ["record-now", missing]],
        "run": [["run", "--", missing], ["run", "--every", ESCAPES, "--", "true"]],
        "mcp": [["mcp", "--root", missing], ["mcp", ESCAPES]],
        "explain": [["explain", ESCAPES]],
        "tpu-shapes": [["tpu-shapes", ESCAPES], ["tpu-shapes", "product:8x8x8", "--topology", RUN]],
        "rules": [["rules", ESCAPES]],
        "demo": [["demo", "--port", ESCAPES]],
    }


def test_each_command_is_tried(logs: Path) -> None:
    assert hostile_commands(logs).keys() == app.commands.keys()


@pytest.mark.parametrize("command", sorted(app.commands))
def test_no_command_prints_control_characters(logs: Path, command: str) -> None:
    for arguments in hostile_commands(logs)[command]:
        result = run(*arguments, status=None)
        assert result.returncode in (0, 2)
        assert result.stdout or result.stderr
        assert not CONTROLS.search(result.stdout), arguments[1:]
        assert not CONTROLS.search(result.stderr), arguments[1:]


class Terminal(io.StringIO):
    """A stream that says it is a terminal, so that progress is shown."""

    def isatty(self) -> bool:
        return True


@contextmanager
def terminals() -> Iterator[Callable[[], str]]:
    streams = Terminal(), Terminal()
    with patch.object(sys, "stdout", streams[0]), patch.object(sys, "stderr", streams[1]):
        yield lambda: "".join(stream.getvalue() for stream in streams)


# What rich sends itself: colors, the cursor hidden and shown, up a line, clearing the line.
OURS = re.compile(r"\x1b\[(?:[\d;]*m|\?25[lh]|1A|2K)|\r")


@pytest.mark.parametrize("command", ["analyze", "compare", "doctor", "publish"])
def test_progress_on_a_terminal_has_only_our_own_sequences(
    logs: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    arguments = [command, *([logs / RUN] if command == "compare" else []), logs]
    with terminals() as shown, patch.object(sys, "argv", ["perfadvisor", *map(str, arguments)]):
        with pytest.raises(SystemExit):
            main()
        text = shown()
    assert "\x1b[?25l" in text  # progress was shown
    assert r"run\x1b]0;title" in text
    assert not CONTROLS.search(OURS.sub("", text))


def test_names_that_are_not_utf8_are_in_every_format(logs: Path) -> None:
    for format in ("json", "markdown", "sarif", "html"):
        text = run("analyze", logs, "--format", format).stdout
        text.encode()  # no lone surrogate
        assert "xff" in text
    document = json.loads(run("analyze", logs, "--format", "json").stdout)
    assert {report["run"] for report in document["reports"]} >= {r"bad\xff\xfe"}
    assert r"bad\xff\xfe/bad\xff\xfe.pt.trace.json" in {
        file["path"] for file in document["rejected"]
    }


def test_runs_whose_names_look_alike_are_two(tmp_path: Path) -> None:
    for name in (b"bad\xff", rb"bad\xff"):
        shutil.copytree(SLOW, tmp_path / os.fsdecode(name))
    document = json.loads(run("analyze", tmp_path, "--format", "json").stdout)
    ids = [report["id"] for report in document["reports"]]
    assert len(set(ids)) == 2


def test_summaries_are_written_beside_the_run(logs: Path) -> None:
    result = run("publish", logs)
    assert r"wrote bad\xff\xfe/perf_advisor/" in result.stdout
    assert list((logs / NOT_UTF8 / "perf_advisor").iterdir())
    assert list((logs / RUN / "perf_advisor").iterdir())


def test_a_process_reads_files_by_the_names_of_the_system(logs: Path) -> None:
    # As a shell runs it, with a locale that is not UTF-8.
    done = subprocess.run(
        [sys.executable, "-m", "tb_perfadvisor", "analyze", str(logs), "-f", "json", "--no-cache"],
        capture_output=True,
        check=True,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        cwd=Path(__file__).parents[2],
    )
    assert len(json.loads(done.stdout)["reports"]) == 2
