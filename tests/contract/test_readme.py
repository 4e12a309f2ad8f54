from __future__ import annotations

import importlib.util
import re
import shlex
from itertools import groupby
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.command import run

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _rule_table() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "rule_table", Path(__file__).parent / "rule_table.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_rules_is_current() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert _rule_table().with_table(text) == text, "stale: run `make readme`"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_picture_is_there(theme: str) -> None:
    assert f"docs/tab-{theme}.png" in README
    assert 10_000 < (ROOT / "docs" / f"tab-{theme}.png").stat().st_size < 150_000


def test_the_script_is_as_large_as_said() -> None:
    (megabytes,) = re.findall(r"one script of ([\d.]+) MB", README.replace("\n", " "))
    size_bytes = (ROOT / "tb_perfadvisor" / "static" / "index.js").stat().st_size
    assert f"{size_bytes / 1e6:.1f}" == megabytes


def _shown() -> list[tuple[str, list[str]]]:
    """Commands with the output that the README shows of them."""
    blocks = re.findall(
        r"^```\n\$ (perfadvisor [^\n]+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL
    )
    return [(command, output.splitlines()) for command, output in blocks]


def test_there_is_output_to_compare() -> None:
    assert len(_shown()) >= 4


@pytest.mark.parametrize(("command", "output"), _shown())
def test_what_commands_are_shown_to_print_is_what_they_print(
    command: str, output: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    done = run(*shlex.split(command)[1:], width=80)
    printed = [line.rstrip() for line in done.stdout.splitlines()]
    # Between two ellipses stands an unbroken part of the output; parts keep their order.
    at = 0
    for is_left_out, part in groupby(output, key="…".__eq__):
        lines = list(part)
        if is_left_out:
            continue
        places = range(at, len(printed))
        start = next((place for place in places if printed[place:][: len(lines)] == lines), None)
        assert start is not None, "not printed, or not in this order: " + "\n".join(lines)
        at = start + len(lines)


def test_commands_and_their_options_exist() -> None:
    from tb_perfadvisor.cli import app

    written = re.findall(r"^\s*(?:- run: )?perfadvisor (.+)$", README, re.MULTILINE)
    assert len(written) > 12
    for line in written:
        name, *rest = shlex.split(line, comments=True)
        command = app.commands[name]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {argument for argument in rest if argument.startswith("--")} <= known, line


def test_every_variable_of_the_environment_is_explained() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    sources = [path.read_text(encoding="utf-8") for path in ROOT.glob("tb_perfadvisor/**/*.py")]
    named = set(re.findall(r"PERFADVISOR_[A-Z_]+", "".join(sources)))
    assert len(named) >= 4
    assert {name for name in named if f"| `{name}` |" not in readme} == set()
