"""The tools of the server for coding agents, called by its SDK's own client (extra `mcp`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anyio
from mcp import Client, StdioServerParameters, stdio_client


def test_every_tool_answers(logdir: Path, programs: Path) -> None:
    arguments = ["-m", "tb_perfadvisor", "mcp", "--root", str(logdir), "--repo", str(programs)]
    calls = {
        "list_captures": {},
        "analyze": {"path": "pytorch_input_slow"},
        "finding": {"path": "pytorch_input_slow", "number": "1"},
        "query": {"path": "pytorch_input_slow", "table": "steps"},
        "compare": {"base": "pytorch_input_slow", "target": "pytorch_input_fixed"},
        "explain_rule": {"rule_id": "input-stall"},
        "doctor": {"path": "pytorch_input_slow"},
        "how_to_record": {"framework": "pytorch", "path": "pytorch_input_slow"},
    }
    answers: dict[str, str] = {}

    async def steps() -> None:
        server = StdioServerParameters(command=sys.executable, args=arguments)
        async with Client(stdio_client(server)) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == set(calls)
            for name, given in calls.items():
                result = await client.call_tool(name, given)
                assert not result.is_error, result.content
                (content,) = result.content
                answers[name] = content.text

    anyio.run(steps)
    assert "pytorch_input_slow" in answers["list_captures"]
    assert json.loads(answers["analyze"])["reports"][0]["first"]
    assert "num_workers=" in answers["finding"]
    assert "5 of 5 rows" in answers["query"]
    assert "Speed-up" in answers["compare"]
    assert answers["explain_rule"].startswith("# input-stall")
    assert "1 captures" in answers["doctor"]
    assert "torch.profiler.profile" in answers["how_to_record"]
