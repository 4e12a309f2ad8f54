"""`perfadvisor rules` and `perfadvisor explain`: the catalog, and one rule's page."""

from __future__ import annotations

import re

from tb_perfadvisor.rules.registry import all_rules
from tests.support.command import error, run


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
