"""The drawings in the tests of all rules."""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from functools import cache
from pathlib import Path

from tb_perfadvisor.testing import DrawingError, draw

_RULE_TESTS = Path(__file__).parents[1] / "rules"


@cache
def drawings() -> dict[str, str]:
    """Texts that are complete drawings, by file and line; others are templates."""
    found = {}
    for path in sorted(_RULE_TESTS.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and re.match(r"\s*cell\s.*\|", node.value, re.DOTALL):
                with suppress(DrawingError):
                    draw(node.value)
                    found[f"{path.stem}:{node.lineno}"] = node.value
    return found
