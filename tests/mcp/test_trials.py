"""Trying changes for an agent: only what the user fixed runs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import anyio
import pytest
from mcp import Client

from tb_perfadvisor.advice import change_ids
from tb_perfadvisor.errors import PerfAdvisorError, UsageError
from tb_perfadvisor.execution.limits import Limits
from tb_perfadvisor.mcp.answers import Trials
from tb_perfadvisor.mcp.server import make_server
from tests.mcp.test_server import complete, text_of
from tests.support.command import DEMO, error

CHANGE = change_ids()[0]
ECHO = (
    sys.executable,
    "-c",
    "import json, os, sys; print(json.dumps([os.getcwd(), *sys.argv[1:]]))",
)


def trials(tmp_path: Path, *commands: str, program: tuple[str, ...] = ECHO) -> Trials:
    return Trials(DEMO, tmp_path, commands or ("python train.py",), program)


def answer(trial: Trials, path: str, change: str, command: int = 1) -> str:
    found: list[str] = []

    async def run() -> None:
        found.append(await trial.try_change(path, change, command))

    complete(run)
    return found[0]


def test_runs_the_command_that_was_fixed(tmp_path: Path) -> None:
    offered = trials(tmp_path, "python train.py", "python 'my program.py' --change x")
    assert offered.listed == "1: python train.py; 2: python 'my program.py' --change x"
    said = answer(offered, "pytorch_input_slow", CHANGE, 2)
    assert json.loads(said) == [
        os.path.realpath(tmp_path),
        *("try", str(DEMO / "pytorch_input_slow"), "--change", CHANGE, "--yes"),
        *("--", "python", "my program.py", "--change", "x"),
    ]


@pytest.mark.parametrize(
    ("path", "change", "command"),
    [
        ("../..", CHANGE, 1),
        ("/etc", CHANGE, 1),
        ("gs://bucket/run", CHANGE, 1),
        ("missing", CHANGE, 1),
        ("pytorch_input_slow", "--patch=/tmp/evil.diff", 1),
        ("pytorch_input_slow", "; rm -rf /", 1),
        ("pytorch_input_slow", CHANGE, 0),
        ("pytorch_input_slow", CHANGE, 2),
        ("--patch=evil.diff", CHANGE, 1),
    ],
)
def test_refuses_everything_else(tmp_path: Path, path: str, change: str, command: int) -> None:
    with pytest.raises(UsageError):
        answer(trials(tmp_path), path, change, command)


def test_errors_are_told(tmp_path: Path) -> None:
    program = (sys.executable, "-c", "import sys; sys.exit('error: there is no change to try')")
    with pytest.raises(PerfAdvisorError, match="there is no change to try"):
        answer(trials(tmp_path, program=program), "pytorch_input_slow", CHANGE)


def test_canceling_ends_the_trial(tmp_path: Path) -> None:
    note = tmp_path / "ended"
    code = (
        "import pathlib, signal, sys, time\n"
        f"note = pathlib.Path({str(note)!r})\n"
        "def end(*_): note.write_text('cleaned up'); sys.exit(1)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "note.write_text('runs')\n"
        "time.sleep(600)\n"
    )
    offered = trials(tmp_path, program=(sys.executable, "-c", code))

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(offered.try_change, "pytorch_input_slow", CHANGE, 1)
            with anyio.fail_after(60):
                while not note.exists() or not note.read_text():
                    await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()

    complete(run)
    assert note.read_text() == "cleaned up"


def test_only_a_server_with_commands_has_the_tool(tmp_path: Path) -> None:
    async def run() -> None:
        async with Client(make_server(DEMO, tmp_path, Limits())) as client:
            assert "try_change" not in {tool.name for tool in (await client.list_tools()).tools}
        server = make_server(DEMO, tmp_path, Limits(), trials=trials(tmp_path))
        async with Client(server) as client:
            (tool,) = (
                tool for tool in (await client.list_tools()).tools if tool.name == "try_change"
            )
            assert "1: python train.py" in (tool.description or "")
            result = await client.call_tool(
                "try_change", {"path": "pytorch_input_slow", "change": CHANGE}
            )
            assert not result.is_error
            assert json.loads(text_of(result))[1] == "try"

    complete(run)


def test_bad_commands_are_refused_at_the_start(tmp_path: Path) -> None:
    for command in ("", "python 'train.py"):
        with pytest.raises(UsageError):
            trials(tmp_path, command)
    assert "--repo" in error("mcp", "--root", tmp_path, "--try", "python train.py")
