from __future__ import annotations

import importlib.util
import re
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


def test_every_variable_of_the_environment_is_explained() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    sources = [path.read_text(encoding="utf-8") for path in ROOT.glob("tb_perfadvisor/**/*.py")]
    named = set(re.findall(r"PERFADVISOR_[A-Z_]+", "".join(sources)))
    assert len(named) >= 4
    assert {name for name in named if f"| `{name}` |" not in readme} == set()
