"""What older versions of the packages that we require do differently, found in our own source."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tb_perfadvisor"


def test_errors_of_msgspec_are_caught_by_their_name() -> None:
    # They are ValueErrors only since msgspec 0.22.
    faults = []
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text("utf-8")
        tries = ast.walk(ast.parse(text)) if "msgspec" in text else ()
        for node in tries:
            if not isinstance(node, ast.Try):
                continue
            body = "\n".join(map(ast.unparse, node.body))
            if any(call in body for call in ("msgspec.json.decode(", "msgspec.convert(")):
                caught = " ".join(ast.unparse(each.type) for each in node.handlers if each.type)
                if "ValueError" in caught and "msgspec" not in caught:
                    faults.append(f"{path}:{node.lineno}")
    assert faults == []


def test_every_requirement_has_a_lowest_version() -> None:
    with patch("setuptools.setup") as setup:
        runpy.run_path(str(ROOT / "setup.py"))
    given = setup.call_args.kwargs
    extras = [each for extra in given["extras_require"].values() for each in extra]
    required = [*given["install_requires"], *extras]
    assert len(required) > 40
    assert [each for each in required if ">=" not in each] == []


def test_the_engine_needs_no_tensorboard() -> None:
    text = (ROOT / "requirements-engine.txt").read_text("utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert {"numpy>=1.24", "libcst>=1.5"} <= set(lines)
    assert not any(line.startswith(("tensorboard", "werkzeug")) for line in lines)
