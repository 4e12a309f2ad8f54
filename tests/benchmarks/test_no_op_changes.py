"""Changes that do nothing: the programs that they make do the same."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from no_op_changes import no_op_patches
from tests.support.patches import git_apply

PROGRAM = '''\
import math


def outer(values):
    """A function with a function in it keeps its names."""
    total = 0

    def inner(value):
        return value + total

    return [inner(each) for each in values]


def spread(values, mean):
    squares = [(value - mean) ** 2 for value in values]; count = len(squares)
    for square in squares:
        assert square >= 0, f"{square} of {count}"
    return math.sqrt(sum(squares) / count)


RESULT = [outer([1, 2]), spread(values=[1.0, 2.0, 4.0], mean=7 / 3)]
'''


def changed(tmp_path: Path, patch: str) -> str:
    (tmp_path / "train.py").write_text(PROGRAM, "utf-8")
    git_apply(tmp_path, patch)
    return (tmp_path / "train.py").read_text("utf-8")


@pytest.mark.parametrize("what", ["comment", "docstring", "renamed variable"])
def test_the_program_computes_the_same(tmp_path: Path, what: str) -> None:
    results = []
    for code in (PROGRAM, changed(tmp_path, no_op_patches(PROGRAM, "train.py")[what])):
        names: dict[str, object] = {}
        exec(compile(code, "train.py", "exec"), names)
        results.append(names["RESULT"])
    assert results[0] == results[1]


def test_what_changes(tmp_path: Path) -> None:
    patches = no_op_patches(PROGRAM, "train.py")
    comment = changed(tmp_path, patches["comment"])
    assert "    for square in squares:\n        # What follows is as it was.\n" in comment
    assert ast.dump(ast.parse(comment)) == ast.dump(ast.parse(PROGRAM))
    docstring = changed(tmp_path, patches["docstring"])
    assert 'mean):\n    """Do what the name says."""\n' in docstring
    renamed = changed(tmp_path, patches["renamed variable"])
    assert renamed.count("renamed_by_a_change") == 4
    # Arguments may be given by name, and what a nested function names is not local alone.
    assert "squares" not in renamed
    assert renamed.count("values") == PROGRAM.count("values")
    assert renamed.count("total") == PROGRAM.count("total")


def test_programs_without_a_place_have_fewer_patches() -> None:
    assert set(no_op_patches("x = 1\n", "a.py")) == set()
    assert set(no_op_patches("for x in range(3):\n    print(x)\n", "a.py")) == {"comment"}
