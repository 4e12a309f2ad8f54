"""`perfadvisor rules` and `perfadvisor explain`: the catalog, and one rule's page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tb_perfadvisor.rules.registry import all_rules
from tb_perfadvisor.rules.renamed import RENAMED, RETIRED
from tests.support.command import SLOW, error, run


def test_rules_and_their_pages() -> None:
    listed = run("rules").stdout
    for rule in all_rules():
        assert re.search(rf"^{rule.id} +{rule.category} +{rule.title}", listed, re.MULTILINE)
    page = run("explain", "input-stall").stdout
    assert page.startswith("# input-stall\n")
    assert "## When to ignore" in page
    assert "`input-stall.minimum_share` = 0.05 (5.0 %)" in page
    assert "Did you mean 'input-stall'? `perfadvisor rules` lists all" in error(
        "explain", "input-stal"
    )
    assert "Did you mean" not in error("explain", "quux")


@pytest.mark.parametrize("former", RENAMED)
def test_a_renamed_rule_is_named_wherever_its_former_id_is_given(
    former: str, tmp_path: Path
) -> None:
    ids = {rule.id for rule in all_rules()}
    assert former not in ids
    assert RENAMED[former] in ids
    message = f"the rule {former!r} is now called {RENAMED[former]!r}."
    settings = tmp_path / "perfadvisor.toml"
    settings.write_text(f"[limits.{former}]\nminimum_share = 0.1\n")
    assert message in error("explain", former)
    assert message in error("analyze", SLOW, "--select", former)
    assert message in error("analyze", SLOW, "--config", settings)
    assert message in error("suggest", SLOW, "--rule", former)


def test_a_retired_rule_is_said_to_be_so_wherever_its_id_is_given(tmp_path: Path) -> None:
    assert not RETIRED & {rule.id for rule in all_rules()}
    settings = tmp_path / "perfadvisor.toml"
    settings.write_text("[limits.whole-sort]\nminimum_share = 0.1\n")
    for words in (
        ("explain", "whole-sort"),
        ("analyze", SLOW, "--select", "whole-sort"),
        ("analyze", SLOW, "--config", settings),
        ("suggest", SLOW, "--rule", "whole-sort"),
    ):
        said = error(*words)
        assert "the rule 'whole-sort' was retired." in said
        assert "Remove it from your settings" in said
