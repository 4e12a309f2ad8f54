"""A rule checks what signals measure, and says it. A longer one measures, too."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from tb_perfadvisor.advice.catalog import change_ids
from tb_perfadvisor.rules.registry import builtin_rules

MOST_LINES = 120
_CHANGES = frozenset(change_ids())


def lines_of_code(path: Path) -> int:
    """Lines of a module without its docstrings, comments, imports, and names of advice."""
    text = path.read_text(encoding="utf-8")
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt | ast.expr) and _is_no_code(node):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in left_out
        for number, line in enumerate(text.splitlines(), start=1)
    )


def _is_no_code(node: ast.stmt | ast.expr) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "advise"
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        texts = {leaf.value for leaf in ast.walk(node.value) if isinstance(leaf, ast.Constant)}
        return bool(texts) and texts <= _CHANGES
    return False


def test_a_rule_is_at_most_so_long() -> None:
    """Move measuring to a signal."""
    paths = {Path(inspect.getfile(rule)) for rule in builtin_rules()}
    lines = {path.name: lines_of_code(path) for path in paths}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def test_what_counts(tmp_path: Path) -> None:
    path = tmp_path / "rule.py"
    path.write_text(
        '"""Not a line."""\n\nimport re\nfrom os import (\n    path,\n)\n\n# Nor this.\n'
        '_ADVICE = {\n    "a": ("compile",),\n}\n'
        "_PLAIN = ('compile',\n    'larger-batch')\n"
        "class Rule:\n    def check(self):\n"
        '        """Nor\n        this."""\n        yield Finding(\n'
        '            remedies=advise(\n                "compile",\n            ),\n        )\n'
    )
    # The three lines of _ADVICE, whose keys are no advice; class, def, yield and its end.
    assert lines_of_code(path) == 7
