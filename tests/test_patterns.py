"""Regular expressions are compiled when they are first used, and behave as compiled ones."""

from __future__ import annotations

import re

import pytest

from tb_perfadvisor.patterns import regex


def test_an_expression_that_is_not_used_is_not_compiled() -> None:
    assert regex("(").pattern == "("
    with pytest.raises(re.error):
        regex("(").search("")


def test_methods_are_those_of_the_compiled_expression() -> None:
    word, line = regex(r"(\w)\w*", re.IGNORECASE), regex(rb"^b", re.MULTILINE)
    assert [found[1] for found in word.finditer("an example")] == ["a", "e"]
    assert word.sub(r"\1", "an example") == "a e"
    assert word.flags == re.compile(word.pattern, re.IGNORECASE).flags
    assert line.search(b"a\nb", 1) is not None
    assert line.match(b"a") is None
