"""The server, driven by the SDK's own client."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult

from tb_perfadvisor import environment
from tb_perfadvisor.errors import PerfAdvisorError, UsageError
from tb_perfadvisor.execution.limits import Limits
from tb_perfadvisor.mcp import worker
from tb_perfadvisor.mcp.answers import MAX_BYTES, Answers, bounded
from tb_perfadvisor.mcp.server import make_server
from tb_perfadvisor.mcp.worker import Report, Request, Workers
from tests.support.command import DEMO, ROOT, SLOW, error

Steps = Callable[[Client], Coroutine[Any, Any, None]]
LIMITS = Limits()
TOOLS = {
    "list_captures", "analyze", "finding", "query", "compare", "explain_rule", "doctor",
    "how_to_record",
}  # fmt: skip


async def answer_here(workers: Workers, request: Request, report: Report) -> str:
    """Answer as the worker does, in this process and with one import fewer to try."""
    try:
        with patch.object(environment, "_import_problem", lambda module: ""):
            return worker._answer(request)
    except Exception as error:
        raise PerfAdvisorError(worker._describe(error)) from error


def drive(steps: Steps, root: Path = DEMO, repository: Path | None = None) -> None:
    """Let a client ask a server that answers in this process."""
    with patch.object(Workers, "answer", answer_here):
        drive_workers(steps, root, repository)


def drive_workers(
    steps: Steps,
    root: Path = DEMO,
    repository: Path | None = None,
    limits: Limits = LIMITS,
    command: Sequence[str] | None = None,
) -> None:
    """Let a client ask a server that starts a worker for each answer."""

    async def run() -> None:
        async with Client(make_server(root, repository, limits, command)) as client:
            await steps(client)

    complete(run)


def complete(steps: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run in a thread of its own: a browser test may have left an event loop in this one."""
    with ThreadPoolExecutor(1) as executor:
        executor.submit(anyio.run, steps).result()


def text_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert content.type == "text"
    assert len(content.text.encode()) <= MAX_BYTES
    return str(content.text)


async def ask(client: Client, name: str, **arguments: str) -> str:
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content
    return text_of(result)


async def refusal(client: Client, name: str, **arguments: str) -> str:
    result = await client.call_tool(name, arguments)
    assert result.is_error
    return text_of(result)


def test_every_tool_is_listed_and_only_reads() -> None:
    async def steps(client: Client) -> None:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == TOOLS
        assert all(tool.description for tool in tools)
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)

    drive(steps)


def test_the_loop_from_a_profile_to_the_verdict(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from torch.utils.data import DataLoader\n\nloader = DataLoader(data)\n", encoding="utf-8"
    )

    async def steps(client: Client) -> None:
        captures = await ask(client, "list_captures")
        assert " captures. Pass a path" in captures
        (path,) = [
            line.split("path='")[1].split("'")[0]
            for line in captures.splitlines()
            if "pytorch_input_slow" in line
        ]
        (report,) = json.loads(await ask(client, "analyze", path=path))["reports"]
        number = report["first"]
        assert number == "1a"
        shown = await ask(client, "finding", path=path, number=number)
        assert "56.3 ms" in shown
        assert "num_workers=4" in shown
        general = await ask(client, "finding", path=path, number="1")
        assert "+loader = DataLoader(data, num_workers=4, persistent_workers=True)" in general
        assert "torch.profiler" in await ask(client, "how_to_record", framework="pytorch")
        verdict = await ask(client, "compare", base=path, target="pytorch_input_fixed")
        assert "1.65 times as fast" in verdict
        assert "fixed" in verdict

    drive(steps, repository=tmp_path)


def test_tables_are_queried_within_bounds() -> None:
    path = "synthetic_gpu_allreduce_8rank"

    async def steps(client: Client) -> None:
        # Two kernels take 1,250,000 and 625,000 ns, 64 times each: 80 and 40 ms.
        answer = await ask(
            client, "query", path=path, table="kernels", columns="family,count,total_ns",
            contains="MATMUL", order_by="-total_ns",
        )  # fmt: skip
        assert "\nfamily,count,total_ns\nmatmul,64,80000000\nmatmul,64,40000000\n\n" in answer
        assert answer.startswith("2 of 2 rows that match, of 3.")
        assert "1 of 4 rows" in await ask(client, "query", path=path, table="steps", limit=1)  # type: ignore[arg-type]
        everything = await ask(client, "query", path="", table="operators", limit=10**6)  # type: ignore[arg-type]
        assert "ask for fewer columns or rows" in everything
        unknown = await ask(client, "query", path=path, table="kernels", order_by="flop")
        assert unknown.splitlines()[4].startswith("synthetic_gpu")
        for arguments, reason in (
            ({"table": "nothing"}, "Tables: captures, findings, steps, kernels, operators."),
            ({"table": "steps", "columns": "no"}, "steps has no column 'no'. Columns: run, "),
            ({"table": "steps", "order_by": "-no"}, "steps has no column 'no'."),
            ({"table": "steps", "limit": "-1"}, "'-1' is no number of rows."),
        ):
            assert reason in await refusal(client, "query", path=path, **arguments)

    drive(steps)


def test_rules_environment_and_recording_are_explained() -> None:
    async def steps(client: Client) -> None:
        assert "input-stall" in await ask(client, "explain_rule", rule_id="input-stall")
        assert " captures" in await ask(client, "doctor")
        gaps = await ask(client, "how_to_record", framework="jax", path="jax_healthy")
        assert "StepTraceAnnotation" in gaps
        assert "checks)" in gaps
        assert "there is no rule" in await refusal(client, "explain_rule", rule_id="nothing")
        assert "Frameworks: pytorch" in await refusal(client, "how_to_record", framework="mxnet")
        assert "Findings: 1, 1a" in await refusal(
            client, "finding", path="pytorch_input_slow", number="7"
        )

    drive(steps)


@pytest.mark.parametrize("path", ["..", "/etc", "../other", "gs://bucket/run", "file:///etc"])
def test_nothing_outside_of_the_root_is_read(path: str) -> None:
    for tool in (Answers(DEMO).analyze, Answers(DEMO).doctor):
        with pytest.raises(UsageError, match="is outside of the server's root"):
            tool(path)


def test_progress_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFADVISOR_CACHE_DIR", str(tmp_path))
    heard: list[str] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")

    async def steps(client: Client) -> None:
        await client.call_tool("analyze", {"path": "pytorch_input_slow"}, progress_callback=hear)

    drive_workers(steps)
    assert "checking rules" in heard


# Takes the place of the worker: says who it is, and what it works on, and never answers.
ENDLESS = """
import json, os, sys, time
from pathlib import Path
Path(sys.argv[1], "pid").write_text(str(os.getpid()))
for number in range(10_000):
    line = {"stage": f"part {number}", "progress": 0.5}
    print(json.dumps(line), file=sys.stderr, flush=True)
    time.sleep(0.01)
"""
# The worker with an analysis that needs 2 GiB.
LARGE = """
import sys
from tb_perfadvisor.mcp import answers, worker
answers.Answers.analyze = lambda self, path: str(len(bytearray(2 << 30)))
sys.exit(worker.main())
"""


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_process_of_a_canceled_request_ends(tmp_path: Path) -> None:
    async def steps(client: Client) -> None:
        with anyio.CancelScope() as scope:

            async def hear(progress: float, total: float | None, message: str | None) -> None:
                assert message == "part 0"
                scope.cancel()

            await client.call_tool("analyze", {"path": ""}, progress_callback=hear)
        assert scope.cancelled_caught
        await ended(tmp_path)

    drive_workers(steps, command=(sys.executable, "-c", ENDLESS, str(tmp_path)))


def test_the_process_of_a_late_request_ends(tmp_path: Path) -> None:
    async def steps(client: Client) -> None:
        message = await refusal(client, "analyze", path="")
        assert "took longer than 1 s and was stopped. Name a single capture" in message
        if (tmp_path / "pid").exists():  # on a busy machine it may not even have started
            await ended(tmp_path)

    command = (sys.executable, "-c", ENDLESS, str(tmp_path))
    drive_workers(steps, limits=Limits(time_s=1), command=command)


async def ended(folder: Path) -> None:
    pid = int((folder / "pid").read_text(encoding="utf-8"))
    with anyio.fail_after(60):
        while is_running(pid):
            await anyio.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space")
def test_an_answer_that_needs_too_much_memory_is_refused() -> None:
    async def steps(client: Client) -> None:
        message = await refusal(client, "analyze", path="")
        assert "the request could not be answered: there is too little memory." in message
        assert "PERFADVISOR_MEMORY_LIMIT_GIB" in message
        assert "input-stall" in await ask(client, "explain_rule", rule_id="input-stall")

    limits = Limits(memory_bytes=1 << 30)
    drive_workers(steps, limits=limits, command=(sys.executable, "-c", LARGE))


def test_a_process_that_ends_early_is_told_of() -> None:
    async def steps(client: Client) -> None:
        message = await refusal(client, "list_captures")
        assert "the process that makes the answer ended with status 3. lost" in message

    program = "import sys; print('lost', file=sys.stderr); sys.exit(3)"
    drive_workers(steps, command=(sys.executable, "-c", program))


def test_long_answers_say_how_to_get_the_rest() -> None:
    text = bounded("ä line\n" * 5000, "ask for less")
    assert len(text.encode()) <= MAX_BYTES
    assert text.endswith("for the rest, ask for less.")
    assert bounded("short", "") == "short"


def test_the_command_speaks_the_protocol_on_stdio(tmp_path: Path) -> None:
    shutil.copytree(SLOW, tmp_path / "run")
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "tb_perfadvisor", "mcp", "--root", str(tmp_path)],
        env={"PYTHONPATH": str(ROOT), "PERFADVISOR_CACHE_DIR": str(tmp_path / "cache")},
    )

    async def run() -> None:
        async with Client(server) as client:
            text = await ask(client, "analyze", path="run")
            assert json.loads(text)["reports"][0]["first"] == "1a"

    complete(run)


def test_a_wrong_root_is_an_error(tmp_path: Path) -> None:
    assert "is not a directory" in error("mcp", "--root", tmp_path / "missing")
