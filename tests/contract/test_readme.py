from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def _rule_table() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "rule_table", Path(__file__).parent / "rule_table.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_rules_is_current() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert _rule_table().with_table(text) == text, "stale: run `make readme`"


def test_the_picture_is_there() -> None:
    assert (ROOT / "docs" / "tab.png").stat().st_size > 10_000
