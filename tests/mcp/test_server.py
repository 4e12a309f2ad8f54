"""The server, driven by the SDK's own client."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult

from tb_perfadvisor.mcp.answers import MAX_BYTES, bounded
from tb_perfadvisor.mcp.server import make_server
from tests.support.command import DEMO, ROOT, SLOW, error

Steps = Callable[[Client], Coroutine[Any, Any, None]]
TOOLS = {
    "list_captures", "analyze", "finding", "compare", "explain_rule", "doctor", "how_to_record",
}  # fmt: skip


def drive(steps: Steps, root: Path = DEMO, repository: Path | None = None) -> None:
    async def run() -> None:
        async with Client(make_server(root, repository)) as client:
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
        assert "64 times as fast" in verdict
        assert "fixed" in verdict

    drive(steps, repository=tmp_path)


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
    async def steps(client: Client) -> None:
        for tool in ("analyze", "doctor"):
            assert "is outside of the server's root" in await refusal(client, tool, path=path)

    drive(steps, root=DEMO)


def test_links_that_lead_out_of_the_root_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(SLOW)
    inside = tmp_path / "other"
    inside.mkdir()
    for file in SLOW.glob("*.gz"):
        (inside / file.name).symlink_to(file)

    async def steps(client: Client) -> None:
        for path in ("run", "other", ""):
            assert "is outside of the server's root" in await refusal(client, "analyze", path=path)

    drive(steps, root=tmp_path)


def test_progress_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERFADVISOR_CACHE_DIR", str(tmp_path))
    heard: list[str] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")

    async def steps(client: Client) -> None:
        await client.call_tool("analyze", {"path": "pytorch_input_slow"}, progress_callback=hear)

    drive(steps)
    assert "checking rules" in heard


def test_a_canceled_request_ends_its_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages: list[str] = []

    def slow_analysis(self: object, path: str, progress: Callable[[str, float], None]) -> str:
        for number in range(200):
            progress(f"part {number}", number / 200)
            stages.append(f"part {number}")
            anyio.from_thread.run(anyio.sleep, 0.01)
        return "done"

    monkeypatch.setattr("tb_perfadvisor.mcp.answers.Answers.analyze", slow_analysis)

    async def steps(client: Client) -> None:
        with anyio.move_on_after(0.3):
            await client.call_tool("analyze", {"path": ""})
        await anyio.sleep(0.1)
        count = len(stages)
        await anyio.sleep(0.3)
        assert 0 < count < 200
        assert len(stages) == count

    drive(steps)


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
