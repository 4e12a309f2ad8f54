"""Each regular expression that sees text of a profile takes time in proportion to its length."""

from __future__ import annotations

import pytest

from pattern_times import OTHERS, Expression, expressions, fault


@pytest.fixture(scope="module")
def all_expressions() -> list[Expression]:
    return list(expressions(OTHERS))


def test_time_grows_with_the_length_of_a_text(all_expressions: list[Expression]) -> None:
    assert [found for found in map(fault, all_expressions) if found] == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("pattern", "method"),
    [(r"[\w:]*X", "search"), (r"\s+$", "search"), (r"\w*a\w*b", "match")],
)
def test_a_square_is_noticed(pattern: str, method: str) -> None:
    assert fault(Expression("made", pattern, 0, frozenset({method})))


@pytest.mark.nightly
@pytest.mark.parametrize("pattern", [r"(?<![\w:])[\w:]*X", r"(?<!\s)\s+$", r"a\w{0,60}b"])
def test_what_can_be_written_instead(pattern: str) -> None:
    assert not fault(Expression("made", pattern, 0, frozenset({"search"})))


def test_expressions_are_found_wherever_they_stand(all_expressions: list[Expression]) -> None:
    found = {(each.module.partition(".")[2], each.pattern) for each in all_expressions}
    assert ("trace.names", r"\s+") in found  # a constant
    assert ("ingest.xspace.interpret.detail_texts", "(?i)p2p|ptop|peer") in found  # in a table
    assert ("ingest.kernels.kernel_names", r"(?i)rotary|(?<![a-z])(?:fused_)?rope_|apply_rope") in (
        found
    )  # a text that is searched for in a loop
    assert ("trace.hlo_text", r"\d{1,18}") in found
    assert len(found) > 300
