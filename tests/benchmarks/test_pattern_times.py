"""The benchmark of regular expressions finds them wherever they stand."""

from __future__ import annotations

from pattern_times import OTHERS, expressions


def test_expressions_are_found_wherever_they_stand() -> None:
    found = {(each.module.partition(".")[2], each.pattern) for each in expressions(OTHERS)}
    assert ("trace.program", r"\s+") in found  # a constant
    assert ("ingest.xspace.interpret.detail_texts", "(?i)p2p|ptop|peer") in found  # in a table
    assert ("trace.hlo_text", r"\d{1,18}") in found
    assert len(found) > 300
