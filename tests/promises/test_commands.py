"""Commands that are printed: whatever a name is, a shell reads one word of it, and runs no more."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tb_perfadvisor import analyze, environment
from tb_perfadvisor.cli.run import _summary
from tb_perfadvisor.cli.selection import git_apply
from tb_perfadvisor.contract import model
from tb_perfadvisor.execution import dask_cluster
from tb_perfadvisor.ingest.files.containment import NotPrivateError, make_private
from tb_perfadvisor.ingest.profile_tab import move_into_session
from tb_perfadvisor.mcp import answers
from tb_perfadvisor.mcp.answers import Answers, Trials
from tb_perfadvisor.plain_text import shell_line, shell_path, shell_word
from tb_perfadvisor.report.formats.brief import make_brief
from tests.support.command import DEMO, SLOW, run
from tests.support.served_tab import Tab

PACKAGE = Path(__file__).resolve().parents[2] / "tb_perfadvisor"
pytestmark = pytest.mark.skipif(
    shutil.which("bash") is None or os.name == "nt", reason="needs bash, and names of POSIX"
)

SHOWN = "-rf a'b\"c`touch pwned`$(touch pwned);touch pwned|sh #&touch pwned&*~!\\"
"""A leading dash and all characters that a shell gives a meaning, but for the end of a line."""
NAMES = ["a b", "resnet50; curl -s x|sh #", SHOWN, f"{SHOWN}\n\x1b\x9b\u202e{SHOWN}"]
NAMES += [os.fsdecode(b"not\xffutf-8'; touch pwned; '")]
PROGRAMS = ("perfadvisor", "git", "rm", "mkdir", "mv", "chmod", "pip", "dask", "python")
IDS = ["space", "pipe", "all", "hidden", "bytes"]
each_name = pytest.mark.parametrize("name", NAMES, ids=IDS)


def words_in(command: str, place: Path, shell: str = "bash") -> list[str]:
    """The words of a command as a shell reads them, which finds no other program to run."""
    stubs = "".join(f"{name}() {{ printf '%s\\0' {name} \"$@\"; }}\n" for name in PROGRAMS)
    if shell == "bash":
        stubs += "set -H\n"  # as in a terminal
    place.mkdir(exist_ok=True)
    done = subprocess.run(
        [shutil.which(shell) or shell, "-c", f"{stubs}{command}\n"],
        cwd=place,
        env={"PATH": "/nowhere", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    assert not list(place.iterdir())
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


@each_name
def test_a_shell_reads_one_word(name: str, tmp_path: Path) -> None:
    assert words_in(f"git {shell_word(name)} {shell_word(name)}", tmp_path / "x") == [
        *("git", name, name)
    ]
    assert words_in(f"rm {shell_path(name)}", tmp_path / "x") == [
        *("rm", f"./{name}" if name.startswith("-") else name)
    ]
    assert words_in(shell_line(["python", name, "--lr", "1"]), tmp_path / "x") == [
        *("python", name, "--lr", "1")
    ]
    assert "\n" not in shell_word(name)


@each_name
@pytest.mark.skipif(shutil.which("dash") is None, reason="needs dash")
def test_a_shell_with_fewer_quotes_reads_one_word_too(name: str, tmp_path: Path) -> None:
    words = words_in(f"git {shell_word(name)} end", tmp_path / "x", "dash")
    assert len(words) == 3
    assert words[1] == name or not name.isprintable()


@pytest.mark.parametrize(
    ("name", "word"),
    [
        (r"C:\runs\a", r"C:\runs\a"),
        ("a b", "'a b'"),
        ("it's", "'it''s'"),
        # PowerShell takes these for quotes, too.
        ("a\u2019; calc; \u2018b", "'a\u2019\u2019; calc; \u2018\u2018b'"),
        ("a,b", "'a,b'"),
        ("@x", "'@x'"),
        ("$(calc)", "'$(calc)'"),
    ],
)
def test_words_of_powershell(name: str, word: str) -> None:
    assert shell_word(name, is_powershell=True) == word


# --- each command ---------------------------------------------------------------------------------


def told(text: str) -> str:
    """The command at the end of an answer that was cut."""
    tail = text.rpartition("for the rest, run `")[2]
    assert tail.endswith("`.")
    return tail.removesuffix("`.")


@each_name
def test_answers_for_agents(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_BYTES", 1024)
    shutil.copytree(SLOW, tmp_path / "runs" / name)
    served, place = Answers(tmp_path / "runs"), tmp_path / "x"
    path = f"./{name}" if name.startswith("-") else name
    assert words_in(told(served.finding(name, "1")), place) == [
        *("perfadvisor", "analyze", path, "--format", "json")
    ]
    assert words_in(told(served.compare(name, name)), place) == [
        *("perfadvisor", "compare", path, path, "--format", "json")
    ]
    for at in range(9):
        (tmp_path / "runs" / name / f"{at}{'long' * 30}.pt.trace.json").write_text("nothing")
    assert words_in(told(served.doctor(name)), place) == ["perfadvisor", "doctor", path, "--all"]


@each_name
def test_trials_for_agents(name: str, tmp_path: Path) -> None:
    (tmp_path / "runs" / name).mkdir(parents=True)
    script = "print('x' * 9999)"
    offered = Trials(
        tmp_path / "runs", tmp_path, [shlex.join(["python", name, "-v"])],
        (shutil.which("python3") or "python", "-c", script),
    )  # fmt: skip
    import anyio

    # In a thread of its own, in which no other test has left an event loop.
    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(anyio.run, offered.try_change, name, "fused-optimizer", 1).result()
    path = f"./{name}" if name.startswith("-") else name
    assert words_in(told(said), tmp_path / "x") == [
        *("perfadvisor", "try", path, "--change", "fused-optimizer", "--", "python", name, "-v")
    ]
    if name.isprintable():
        listed = offered.listed.removeprefix("1: ")
        assert words_in(listed, tmp_path / "x") == ["python", name, "-v"]


@pytest.fixture(scope="module")
def report() -> model.Report:
    return analyze(SLOW)


@each_name
def test_the_short_form(name: str, tmp_path: Path, report: model.Report) -> None:
    named = msgspec.structs.replace(report, run=name)
    brief = make_brief(named, name, is_one_of_many=True)
    path = f"./{name}" if name.startswith("-") else name
    *first, pattern = words_in(brief.more, tmp_path / "x")
    assert first == ["perfadvisor", "analyze", path, "--run"]
    assert re.fullmatch(pattern, name)
    words = words_in(brief.findings[0].more, tmp_path / "x")
    assert words[-2:] == ["--select", brief.findings[0].rule_id]


@each_name
def test_doctor(name: str, tmp_path: Path) -> None:
    """Its commands are run as they are printed: they move a file, and remove one."""
    (source,) = (DEMO / "jax_healthy").rglob("*.xplane.pb")
    logs = tmp_path / "logs"
    (logs / name).mkdir(parents=True)
    shutil.copy(source, logs / name / f"{name}.xplane.pb")
    here = {"cwd": logs, "check": True, "capture_output": True}
    (line,) = (each for each in run("doctor", logs).stdout.splitlines() if "mkdir -p" in each)
    subprocess.run(["bash", "-c", line], **here)
    (moved,) = logs.rglob("*.xplane.pb")
    assert moved.name == f"{name}.xplane.pb"
    assert moved.parents[3] == logs / name
    tools = moved.with_name(".cached_tools.json")
    tools.write_text('{"tools": []}')
    printed = run("doctor", logs).stdout.splitlines()
    (line,) = (each for each in printed if each.startswith("    rm "))
    subprocess.run(["bash", "-c", line], **here)
    assert not tools.exists()
    (line,) = (
        each for each in run("doctor", moved.parents[1]).stdout.splitlines() if "--logdir " in each
    )
    option = line.partition("--logdir ")[2].partition(", but not with")[0]
    assert words_in(f"rm {option}", tmp_path / "x") == ["rm", str(logs / name)]
    assert not list(tmp_path.rglob("pwned"))


@each_name
def test_doctor_of_the_tab(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tab = Tab(tmp_path, monkeypatch)
    tab.others["profile"] = object()
    (tab.logdir / name).mkdir()
    (tab.logdir / name / "h.xplane.pb").write_bytes(b"\x0a\x00")
    session = tab.logdir / name / "plugins" / "profile" / "2024_01_02_03_04_05"
    session.mkdir(parents=True)
    (session / "h.xplane.pb").write_bytes(b"\x0a\x00")
    (session / ".cached_tools.json").write_text('{"tools": []}')
    notes = {note["id"]: note["remedy"] for note in tab.get("api/v1/doctor").json["notes"]}
    tab.plugin.close()
    commands = {
        key: notes[key].removeprefix("In the log directory: `").removesuffix("`")
        for key in ("profile-tab-layout", "profile-tab-remembers")
    }
    path = f"./{name}" if name.startswith("-") else name
    assert words_in(commands["profile-tab-remembers"], tmp_path / "x") == [
        *("rm", f"{path}/plugins/profile/2024_01_02_03_04_05/.cached_tools.json")
    ]
    words = words_in(commands["profile-tab-layout"], tmp_path / "x")
    assert words[:2] == ["mkdir", "-p"]
    assert words[3:5] == ["mv", f"{path}/h.xplane.pb"]


@each_name
def test_moving_a_file(name: str, tmp_path: Path) -> None:
    path = f"./{name}" if name.startswith("-") else name
    target = f"{path}/plugins/profile/1970_01_01_00_00_00/"
    command = move_into_session("", f"{name}/{name}.xplane.pb", 0)
    assert words_in(command, tmp_path / "x") == [
        *("mkdir", "-p", target, "mv", f"{path}/{name}.xplane.pb", target)
    ]


@each_name
def test_what_to_compare(name: str, tmp_path: Path) -> None:
    root = tmp_path / name
    for run_name in (f"{name}_slow", f"{name}_fixed"):
        shutil.copytree(SLOW, root / run_name)
    said = run("analyze", root).stderr
    found = re.search("what a change gained: (.*)", said)
    if not name.isprintable():  # shown with escapes, such a name is no path
        assert found is None
        return
    assert found is not None
    assert words_in(found[1], tmp_path / "x") == [
        *("perfadvisor", "compare", f"{root}/{name}_slow", f"{root}/{name}_fixed")
    ]


@each_name
def test_other_commands(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place, path = tmp_path / "x", f"./{name}" if name.startswith("-") else name
    (tmp_path / name / "step_1").mkdir(parents=True)
    *_, following = _summary([{"summary": "2 windows"}], name, has_died=False)
    assert words_in(following.removeprefix("next: "), place) == ["perfadvisor", "analyze", path]
    assert words_in(git_apply(Path(name)), place) == ["git", "-C", path, "apply"]
    open_to_all = tmp_path / name / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(NotPrivateError) as caught:
        make_private(open_to_all)
    command = caught.value.hint.removeprefix("Run `").removesuffix("`.")
    assert words_in(command, place) == ["chmod", "go-w", str(open_to_all)]
    (tmp_path / name / "toolkit").mkdir()
    monkeypatch.setattr(environment, "_has_cupti", lambda directory: directory.name == "toolkit")
    monkeypatch.setattr(environment, "_TOOLKIT_CUPTI", "toolkit")
    (note,) = environment._cupti(tmp_path, tmp_path / name)
    exported = f'{note.remedy}; git "$LD_LIBRARY_PATH"'
    assert words_in(exported, place) == ["git", f"{tmp_path / name / 'toolkit'}:"]


@each_name
def test_workers_of_a_scheduler(name: str, tmp_path: Path) -> None:
    client: Any = SimpleNamespace(run=lambda _: {})
    with pytest.raises(dask_cluster.UsageError) as caught:
        dask_cluster._check_workers(client, name)
    command = caught.value.hint.removeprefix("Start some: ")
    assert words_in(command, tmp_path / "x") == ["dask", "worker", name]


# --- no other place -------------------------------------------------------------------------------

# The beginning of a command, up to a value that is put into it.
COMMAND = re.compile(
    r"(?:^|[`\s(|])(?:perfadvisor |pip |git |rm |mv |mkdir |chmod |kill |dask |tensorboard |python "
    r"|export \w+=)[^`;.]*$"
)
QUOTED = {"shell_word", "shell_path", "shell_line", "path_word", "git_apply", "join"}
# These hold no name: an id of ours, a path that was quoted, numbers, what was checked before.
HARMLESS = {
    *("module", "extra", "command", "apply", "words", "rule_id", "change", "finding.rule_id"),
    *("sys.executable", "multiplication.kind", "asked", "costs.generation", "paths", "tail"),
    "jax.__version__",
}


def values_in_commands() -> Iterator[tuple[Path, int, str]]:
    """What is put into the text of a command without being quoted."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.JoinedStr):
                continue
            said = ""
            for part in node.values:
                if isinstance(part, ast.Constant):
                    said += str(part.value)
                    continue
                value = part.value if isinstance(part, ast.FormattedValue) else part
                called = value.func if isinstance(value, ast.Call) else None
                name = getattr(called, "id", getattr(called, "attr", None))
                if name not in QUOTED and COMMAND.search(said):
                    source = ast.unparse(value)
                    if source not in HARMLESS:
                        yield path.relative_to(PACKAGE), node.lineno, source
                said += "{}"


def test_each_name_in_a_command_is_quoted() -> None:
    assert list(values_in_commands()) == []


def test_one_function_quotes() -> None:
    others = ("quote", "join", "list2cmdline")
    calls = tuple(
        f"{module}.{name}" for module in ("shlex", "subprocess", "pipes") for name in others
    )
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    found = [
        (path.name, node.lineno)
        for path, text in texts.items()
        if any(call in text for call in calls)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in calls
    ]
    assert [name for name, _ in found] == ["plain_text.py"]
