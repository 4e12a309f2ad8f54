"""Installed packages add rules through the entry point group `perfadvisor_rules`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.rules import added_rules
from tb_perfadvisor.rules.registry import all_rules, find_rule

RULE = '''
from tb_perfadvisor.rules.base import Rule

class AddedRule(Rule):
    """A rule of another package."""

    id = "added-rule"
    title = "Do what it says"
    category = "launch"

    def check(self, signals):
        return ()

class Alias:
    """Passes for a class although it is none, as `tuple[int, ...]` does on Python 3.10."""

    __class__ = type

alias = Alias()
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package whose module `package_with_rule` has a rule."""
    (tmp_path / "package_with_rule.py").write_text(RULE, encoding="utf-8")
    info = tmp_path / "package_with_rule-1.dist-info"
    info.mkdir()
    metadata = "Metadata-Version: 2.1\nName: package-with-rule\nVersion: 1\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    set_entry_point(tmp_path, "package_with_rule:AddedRule")
    monkeypatch.syspath_prepend(tmp_path)
    clear_caches()
    yield tmp_path
    monkeypatch.undo()
    clear_caches()


def clear_caches() -> None:
    added_rules.cache_clear()
    all_rules.cache_clear()


def set_entry_point(folder: Path, value: str) -> None:
    text = f"[perfadvisor_rules]\nadded = {value}\n"
    (folder / "package_with_rule-1.dist-info" / "entry_points.txt").write_text(text, "utf-8")


@pytest.mark.usefixtures("package")
def test_a_rule_of_an_installed_package_is_found() -> None:
    assert find_rule("added-rule").title == "Do what it says"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("package_with_rule:Missing", "cannot be loaded"),
        ("no_such_module:Rule", "cannot be loaded"),
        ("pathlib:Path", "is not a Rule"),
        ("package_with_rule:alias", "is not a Rule"),
    ],
)
def test_an_entry_point_that_is_no_rule_is_a_usage_error(
    package: Path, value: str, message: str
) -> None:
    set_entry_point(package, value)
    with pytest.raises(UsageError, match=message):
        all_rules()


def test_without_such_packages_all_rules_are_builtin() -> None:
    assert added_rules() == ()
