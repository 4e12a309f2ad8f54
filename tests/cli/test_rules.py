"""`perfadvisor rules` and `perfadvisor explain`: the catalog, and one rule's page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tb_perfadvisor.rules.registry import RENAMED, all_rules
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


def test_former_ids_are_of_no_rule() -> None:
    ids = {rule.id for rule in all_rules()}
    assert ids.isdisjoint(RENAMED)
    assert set(RENAMED.values()) <= ids


@pytest.mark.parametrize(
    ("former", "message"),
    [
        (
            "unfused-elementwise",
            "the rule 'unfused-elementwise' is now called 'unfused-operators'.",
        ),
    ],
)
def test_a_former_id_is_answered_wherever_it_is_given(
    former: str, message: str, tmp_path: Path
) -> None:
    settings = tmp_path / "perfadvisor.toml"
    settings.write_text(f"[limits.{former}]\nminimum_share = 0.1\n")
    assert message in error("explain", former)
    assert message in error("analyze", SLOW, "--select", former)
    assert message in error("analyze", SLOW, "--config", settings)
    assert message in error("suggest", SLOW, "--rule", former)
