"""The documents are complete and true: links, commands, options, settings, and printed output."""

from __future__ import annotations

import importlib.util
import re
import runpy
import shlex
import sys
import types
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tb_perfadvisor
from tb_perfadvisor.cli import app
from tb_perfadvisor.engine import config
from tb_perfadvisor.rules.registry import builtin_rules
from tests.support.command import run

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [
        *ROOT.glob("*.md"),
        *DOCS.glob("*.md"),
        *ROOT.glob("tb_perfadvisor/**/*.md"),
        *(
            ROOT / folder / "README.md"
            for folder in ("benchmarks", "demo_logs", "frontend", "tests")
        ),
    ]
}
# Printed for people; a session's fraction of a second is not part of what they show.
_OUTPUT = re.compile(
    r"^```(?:console)?\n\$ (perfadvisor [^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


def test_the_readme_is_short() -> None:
    assert len(README.encode()) <= 8 * 1024


@pytest.mark.parametrize("name", ["advice", "rules"])
def test_generated_pages_are_current(name: str) -> None:
    generate = runpy.run_path(str(ROOT / "scripts" / f"{name}_page.py"))
    stale = f"stale: run `{generate['COMMAND']}`"
    assert (DOCS / f"{name}.md").read_text(encoding="utf-8") == generate["page"](), stale


def test_the_index_names_every_page() -> None:
    pages = {path.name for path in DOCS.glob("*.md")} - {"README.md"}
    linked = set(re.findall(r"\]\(([\w-]+\.md)", PAGES["docs/README.md"]))
    assert pages - linked == set()


def test_links_lead_to_files_and_headings() -> None:
    links = [
        (name, *target.partition("#")[::2])
        for name, text in PAGES.items()
        for target in re.findall(r"\]\(([^)\s]+)\)", text)
        if "://" not in target
    ]
    dead = []
    for name, path, heading in links:
        file = (ROOT / name).parent / path if path else ROOT / name
        if not file.exists() or (heading and heading not in _anchors(file)):
            dead.append((name, path, heading))
    assert dead == []


@cache
def _anchors(file: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_picture_is_there(theme: str) -> None:
    assert f"docs/tab-{theme}.png" in README
    assert 10_000 < (DOCS / f"tab-{theme}.png").stat().st_size < 150_000


def _examples() -> list[tuple[str, list[str]]]:
    """Commands, with the output that a page shows of them."""
    return [
        (command, output.splitlines())
        for name in ("README.md", "docs/comparing.md")
        for command, output in _OUTPUT.findall(PAGES[name])
        if not command.startswith("perfadvisor try ")  # it takes minutes: test_readme.py
    ]


def test_there_is_output_to_compare() -> None:
    assert len(_examples()) >= 3


@pytest.mark.parametrize(("command", "output"), _examples())
def test_commands_print_what_the_documents_show(
    command: str, output: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    done = run(*shlex.split(command)[1:], width=80)
    printed = [line.rstrip() for line in done.stdout.splitlines()]
    # Between two ellipses stands an unbroken part of the output; parts keep their order.
    start = 0
    for is_ellipsis, part in groupby(output, key="…".__eq__):
        lines = list(part)
        if is_ellipsis:
            continue
        places = range(start, len(printed))
        found = next((place for place in places if printed[place:][: len(lines)] == lines), None)
        assert found is not None, "not printed, or not in this order: " + "\n".join(lines)
        start = found + len(lines)


def _commands() -> list[str]:
    """Every use of the command in a block of code."""
    blocks = "\n".join(
        block
        for text in PAGES.values()
        for block in re.findall(r"^ *```\w*\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    )
    return re.findall(r"^\s*(?:\$ |- run: )?perfadvisor (.+)$", blocks, re.MULTILINE)


def test_commands_and_options_in_the_documents_exist() -> None:
    lines = _commands()
    assert len(lines) > 12
    for line in lines:
        name, *words = shlex.split(line, comments=True)
        words = words[: words.index("--")] if "--" in words else words  # another program's
        known = {option for parameter in app.commands[name].params for option in parameter.opts}
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= known, line


def test_every_command_and_option_is_documented() -> None:
    page = PAGES["docs/command-line.md"]
    for name, command in app.commands.items():
        if command.hidden:
            continue
        assert f"`perfadvisor {name}" in page, name
        for parameter in command.params:
            for option in parameter.opts:
                if option.startswith("--") and option != "--help":
                    assert re.search(rf"`{option}\b", page), f"{name} {option}"


def test_every_setting_is_documented() -> None:
    page = PAGES["docs/command-line.md"]
    for key in msgspec.structs.fields(config._Settings):
        assert re.search(rf"^\[*{key.name}\b", page, re.MULTILINE), key.name


def test_every_environment_variable_is_documented() -> None:
    sources = [path.read_text(encoding="utf-8") for path in ROOT.glob("tb_perfadvisor/**/*.py")]
    names = set(re.findall(r"PERFADVISOR_[A-Z_]+", "".join(sources)))
    assert len(names) >= 4
    page = PAGES["docs/command-line.md"]
    assert {name for name in names if f"| `{name}` |" not in page} == set()


def test_every_public_function_is_documented() -> None:
    for name in tb_perfadvisor.__all__:
        assert f"| `{name}(" in PAGES["docs/python.md"], name


def test_the_examples_in_python_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = re.findall(r"^```python\n(.*?)^```$", PAGES["docs/python.md"], re.M | re.S)
    assert len(examples) >= 5
    (tmp_path / "demo_logs").symlink_to(ROOT / "demo_logs")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for example in examples:
        if "to_frame()" in example and importlib.util.find_spec("pandas") is None:
            continue
        exec(example, names)  # in order, as in a notebook
    assert names["comparison"].targets[0].verdict == "faster"
    assert (tmp_path / "report.html").stat().st_size > 100_000


def test_what_users_of_other_profilers_are_told_exists() -> None:
    page = PAGES["docs/coming-from.md"]
    rules = {rule.id for rule in builtin_rules()}
    assert set(re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", page)) - rules == set()
    registry = (ROOT / "frontend" / "src" / "pages" / "registry.tsx").read_text(encoding="utf-8")
    places = {"Runs", "Compare", *re.findall(r'label: "([^"]+)"', registry)}
    assert set(re.findall(r"\*\*([^*]+)\*\*", page)) - places == set()


def test_every_route_is_documented() -> None:
    source = (ROOT / "tb_perfadvisor" / "plugin" / "plugin.py").read_text(encoding="utf-8")
    cases = re.findall(r"case \[([^\]]+)\]:", source)
    assert len(cases) >= 8
    for case in cases:
        parts = [part.strip() for part in case.split(",")]
        address = "/".join(
            part.strip('"') if part.startswith('"') else part.rpartition("_")[2].upper()
            for part in parts
        ).replace("captures/ID/views/VIEW", "captures/ID/views/VIEW")
        assert re.search(
            rf"`(?:GET|POST) {address}(?:\?…|\?format=…)?`", PAGES["docs/python.md"]
        ), address


def test_the_example_rule_passes_its_own_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGES["docs/adding-a-rule.md"], re.M | re.S)
    test, rule = (block for block in blocks if "from __future__" in block)  # whole modules
    (name,) = re.findall(r"^from (tb_perfadvisor\.rules\.\w+\.\w+) import", test, re.MULTILINE)
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(rule, f"{name} in docs/adding-a-rule.md", "exec"), vars(module))
    tests: dict[str, Any] = {"__name__": "example"}
    exec(compile(test, "test in docs/adding-a-rule.md", "exec"), tests)
    functions = [value for name, value in tests.items() if name.startswith("test_")]
    assert len(functions) == 3
    for function in functions:
        function()
