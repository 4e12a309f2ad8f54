"""What older versions of the packages that we require do differently, found in our own source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "tb_perfadvisor"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "msgspec" in path.read_text("utf-8"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_errors_of_msgspec_are_caught_by_their_name(path: Path) -> None:
    # They are ValueErrors only since msgspec 0.22.
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not isinstance(node, ast.Try):
            continue
        body = "\n".join(map(ast.unparse, node.body))
        if any(call in body for call in ("msgspec.json.decode(", "msgspec.convert(")):
            caught = " ".join(ast.unparse(each.type) for each in node.handlers if each.type)
            assert "ValueError" not in caught or "msgspec" in caught, f"line {node.lineno}"
