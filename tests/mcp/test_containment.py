"""The server's tools, in a directory with links to what nobody may read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from mcp import Client

from tb_perfadvisor.errors import PerfAdvisorError, UsageError
from tb_perfadvisor.ingest.files.containment import LEADS_OUT
from tb_perfadvisor.mcp.answers import Answers
from tests.mcp.test_server import drive
from tests.support.command import run
from tests.support.shared_logdir import DIRECTORY, LINKS, SECRET, shared_logdir


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return shared_logdir(tmp_path)


def test_no_tool_tells_what_links_lead_to(logs: Path) -> None:
    answers: dict[str, str] = {}

    async def steps(client: Client) -> None:
        for tool, arguments in (
            ("list_captures", {}),
            ("analyze", {}),
            ("analyze", {"path": "run"}),
            ("finding", {"path": "run", "number": "1"}),
            ("query", {"path": "run", "table": "operators"}),
            ("compare", {"base": "run", "target": "run"}),
            ("doctor", {}),
            ("how_to_record", {"framework": "pytorch", "path": "run"}),
            *(("analyze", {"path": link}) for link in (*LINKS, DIRECTORY)),
            ("compare", {"base": "run", "target": DIRECTORY}),
        ):
            result = await client.call_tool(tool, arguments)
            answers[f"{tool} {arguments}"] = "\n".join(each.text for each in result.content)  # type: ignore[union-attr]

    drive(steps, root=logs)
    for question, answer in answers.items():
        assert SECRET not in answer, question
    assert answers["list_captures {}"].startswith("1 captures.")
    assert (
        "Beside the profile lies a log of torch.compile" not in answers["analyze {'path': 'run'}"]
    )
    for link in LINKS:
        assert f"not used: {link}: {LEADS_OUT}" in answers["doctor {}"]
        refusal = answers[f"analyze {{'path': '{link}'}}"]
        assert refusal.endswith(f" {link}: is outside of the server's root.")
    assert f"{DIRECTORY} leads out of the directory" in answers["doctor {}"]


def test_the_command_line_follows_the_same_links(logs: Path) -> None:
    report = run("analyze", logs, "--format", "json", "--views").stdout
    assert f"{SECRET}.py" in report  # of the snapshot
    assert f"{SECRET}::operator" in report  # of the traces
    assert "Beside the profile lies a log of torch.compile" in report
    assert f"{SECRET}/loss" in run("training", logs).stdout


def test_a_result_of_the_command_line_is_not_shown_again(logs: Path) -> None:
    """One that was stored when links were followed."""
    link = logs / LINKS[3]
    run("analyze", link, "--format", "json")
    target = link.readlink()
    state = target.stat()
    link.unlink()
    link.write_bytes(bytes(state.st_size))  # as large and as old as the other file, but no trace
    os.utime(link, ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(PerfAdvisorError) as caught:
        Answers(logs).analyze(LINKS[3])
    assert SECRET not in str(caught.value)


def test_code_outside_of_the_repository_is_not_shown(logs: Path, tmp_path: Path) -> None:
    code, outside = tmp_path / "code", tmp_path / "outside"
    code.mkdir()
    (outside / "train.py").write_text(f"loader = DataLoader({SECRET})\n")
    (code / "train.py").symlink_to(outside / "train.py")
    (code / "package").symlink_to(outside)
    served = Answers(logs, code)
    assert SECRET not in served.analyze("run") + served.finding("run", "1")


def test_a_path_outside_is_refused(logs: Path) -> None:
    with pytest.raises(UsageError, match="is outside of the server's root"):
        Answers(logs).doctor("../outside")
