"""What a finding is about in this program, in a few words for its title."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tb_perfadvisor.rules.finding import Cell, Finding, Table
from tb_perfadvisor.trace.tables import Int64

MOST_CHARACTERS = 64
"""A title should fit on one line."""
_MOST_OF_NAME = 48
_LEADING_SHARE = 0.1
"""Making an operator with less of their time faster hardly shortens the step."""
_RETURN_TYPE = re.compile(r"^void\s+")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)::")
_TILES = re.compile(r"(?<=\w)_[a-zA-Z]*\d+x\d+\S*$")
"""The sizes in the name of a library's kernel, and what follows: `_MT256x208x64_MI16x16x1_…`."""
_ITERATOR = re.compile(r"^Iterator(?:::\w+)*::(\w+)(?:\[.*\])?$")
"""tf.data names each iterator with all that lie around it: `Iterator::Root::Prefetch::Map`."""
_REPEATED = re.compile(r"(^|/)(\w+):\2$")
"""TensorFlow names an operation and its type: `random_uniform/RandomUniform:RandomUniform`."""
_PYTHON_FRAME = re.compile(r"^(.+\.pyx?)\((\d+)\): ")
"""PyTorch's tracer: `models/net.py(57): forward`."""
_BUILT_IN = re.compile(r"^\$(\w+) (\w+)$")
"""JAX's tracer marks Python by a dollar sign, and gives no file for C functions: `$time sleep`."""
_HASH = re.compile(r"(?<!\s)\s*\b(?=\w*\d)[a-z0-9]{24,}\b")
_FEWEST = 4
"""A name before `<` or `(` that is shorter is part of a longer one: `<lambda>`."""
_PLACES = ("source", "line")
_PARTS = ("product", "array")


def instance_of(finding: Finding) -> str:
    """The instance that a finding states, or that its evidence lists first; else empty."""
    if finding.instance:
        return finding.instance
    for table in finding.evidence:
        if isinstance(table, Table) and table.names_instance and table.rows:
            return _of_row(table, table.rows[0])
    return ""


def leading_names(names: Sequence[str], own_ns: Int64) -> str:
    """The operators that a title names: `aten::mm and aten::addmm`, the costliest first."""
    leading = [
        name
        for name, is_large in zip(names, own_ns >= _LEADING_SHARE * own_ns.sum(), strict=True)
        if is_large
    ]
    text = ", ".join(leading[:-1]) + " and " * (len(leading) > 1) + leading[-1]
    return text if len(text) <= MOST_CHARACTERS else f"{names[0]} and {len(names) - 1} others"


def fetch_name(name: str) -> str:
    """The DataLoader whose iterator PyTorch names, or else the name itself."""
    return "DataLoader" if name.startswith("enumerate(DataLoader)") else name


def short_name(name: str) -> str:
    """A name of a kernel, operator or function without C++ types and parameters, and not too long.

    A path keeps its last two parts.
    """
    name = _ANONYMOUS.sub("", _RETURN_TYPE.sub("", name))
    if "::" in name or name.endswith((")", ">")):
        ends = [name.find(mark) for mark in "<(" if name.find(mark) >= _FEWEST]
        # A call of a jitted function names it in parentheses: `PjitFunction(train_step)`.
        if ends and "::" in name:
            name = name[: min(ends)]
    name = _TILES.sub("", name)
    name = _ITERATOR.sub(r"\1", name)
    name = _REPEATED.sub(r"\1\2", name)
    name = _PYTHON_FRAME.sub(r"\1:\2 ", name)
    name = _BUILT_IN.sub(r"\1.\2", name).removeprefix("$")
    if name.count("/") > 1:
        name = "/".join(name.split("/")[-2:])
    return name if len(name) <= _MOST_OF_NAME else f"{name[: _MOST_OF_NAME - 1]}…"


def short_annotation(name: str) -> str:
    """An annotation without ornaments and hashes: `## forward ##`, `Call CompiledFxGraph f4ii…`."""
    return _HASH.sub("", name.strip("# ")).strip() or name


def _of_row(table: Table, row: tuple[Cell, ...]) -> str:
    """The subject of a row, its size, and the line of code behind it."""
    cells = {column.key: cell for column, cell in zip(table.columns, row, strict=True)}
    subject, *_ = row
    if not isinstance(subject, str) or not subject or subject.startswith("("):
        return ""
    named = [short_name(subject)]
    named += [f"{cells[key]}" for key in _PARTS if cells.get(key)]
    places = [f" at {short_name(str(cells[key]))}" for key in _PLACES if cells.get(key)]
    text = " of ".join(named) + "".join(places[:1])
    if len(text) > MOST_CHARACTERS:
        text = " of ".join(named)
    return text if len(text) <= MOST_CHARACTERS else named[0]
