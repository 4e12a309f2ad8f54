"""A parsed file: its calls, the names that they go by, and how to change them."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

Node = Any
"""A node of libcst. Which fields it has is known only after a look at its class."""


_NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What Python's parser raises."""


def is_python(text: str) -> bool:
    """Whether Python's own parser takes a text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except _NOT_PYTHON:
        return False
    return True


class Code:
    """One parsed file."""

    def __init__(self, path: str, text: str) -> None:
        """Parse a file.

        Raises:
            ValueError: If it is not valid Python.
        """
        self.path = path
        self.text = text
        # Python's parser limits how deep brackets nest; libcst's overflows the stack.
        if not is_python(text):
            raise ValueError(f"{path} is not valid Python")
        try:
            self.module: Node = cst.parse_module(text)
        except (*_NOT_PYTHON, cst.ParserSyntaxError) as error:
            raise ValueError(f"{path} is not valid Python") from error

    @cached_property
    def nodes(self) -> list[Node]:
        """Every node, outer ones first."""
        return list(_walk(self.module))

    @cached_property
    def parents(self) -> dict[int, Node]:
        """The parent of each node, by the node's identity."""
        return {id(child): node for node in self.nodes for child in node.children}

    @cached_property
    def imports(self) -> dict[str, str]:
        """The dotted name that each imported name stands for."""
        names: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, cst.Import):
                for alias in node.names:
                    package = alias.evaluated_name.partition(".")[0]
                    if alias.evaluated_alias is not None:
                        names[alias.evaluated_alias] = alias.evaluated_name
                    else:
                        names[package] = package
            elif isinstance(node, cst.ImportFrom) and not isinstance(node.names, cst.ImportStar):
                origin = dotted_name(node.module) if node.module is not None else ""
                for alias in node.names:
                    name = alias.evaluated_alias or alias.evaluated_name
                    names[name] = f"{origin}.{alias.evaluated_name}"
        return names

    def has_global(self, module: str) -> bool:
        """Whether the file imports a module at its top level, by its own name."""
        return any(
            isinstance(statement, cst.Import)
            and any(
                alias.asname is None and dotted_name(alias.name).partition(".")[0] == module
                for alias in statement.names
            )
            for line in self.module.body
            if isinstance(line, cst.SimpleStatementLine)
            for statement in line.body
        )

    @cached_property
    def _positions(self) -> Any:
        return MetadataWrapper(self.module, unsafe_skip_copy=True).resolve(PositionProvider)

    def line(self, node: Node) -> int:
        """The line on which a node begins; a definition begins at its `def`, after decorators."""
        start = self._positions[node.name if isinstance(node, cst.FunctionDef) else node].start
        return int(start.line)

    def last_line(self, node: Node) -> int:
        """The line on which a node ends."""
        return int(self._positions[node].end.line)

    def name(self, node: Node) -> str:
        """The dotted name of an expression, by what is imported; empty if it has none."""
        dotted = dotted_name(node)
        head, dot, rest = dotted.partition(".")
        return f"{self.imports.get(head, head)}{dot}{rest}"

    def calls(self, *names: str) -> list[Node]:
        """The calls of functions by their dotted names; `*.fit` stands for any method `fit`."""
        return [node for node in self.nodes if self.is_call(node, *names)]

    def calls_matching(self, *patterns: re.Pattern[str]) -> list[Node]:
        """The calls of functions whose dotted name matches a pattern."""
        return [
            node
            for node in self.nodes
            if isinstance(node, cst.Call)
            and any(pattern.match(self.name(node.func)) for pattern in patterns)
        ]

    def is_call(self, node: Node, *names: str) -> bool:
        """Whether a node calls one of some functions."""
        if not isinstance(node, cst.Call):
            return False
        method = node.func.attr.value if isinstance(node.func, cst.Attribute) else None
        return self.name(node.func) in names or (method is not None and f"*.{method}" in names)

    def functions(self) -> list[Node]:
        """All functions, outer ones first."""
        return [node for node in self.nodes if isinstance(node, cst.FunctionDef)]

    def around(self, node: Node, *types: type) -> Node:
        """The innermost node of some types around a node; None if there is none."""
        at = self.parents.get(id(node))
        while at is not None and not isinstance(at, types):
            at = self.parents.get(id(at))
        return at

    def function_around(self, node: Node) -> Node | None:
        """The innermost function around a node, or the node itself if it is one."""
        return node if isinstance(node, cst.FunctionDef) else self.around(node, cst.FunctionDef)

    def target(self, node: Node) -> str:
        """The name that a statement assigns the value of an expression to; empty if none."""
        assignment = self.around(node, cst.Assign, cst.AnnAssign, cst.FunctionDef)
        if isinstance(assignment, cst.Assign):
            return dotted_name(assignment.targets[0].target)
        if isinstance(assignment, cst.AnnAssign):
            return dotted_name(assignment.target)
        return assignment.name.value if isinstance(assignment, cst.FunctionDef) else ""

    def source(self, node: Node) -> str:
        """The text of a node."""
        return str(self.module.code_for_node(node))

    def with_changes(self, replacements: Sequence[tuple[Node, Node]]) -> str:
        """The text after nodes are replaced."""
        return str(self.module.visit(_Replacing({id(old): new for old, new in replacements})).code)


class _Replacing(cst.CSTTransformer):
    """Replaces nodes by their identity, also those inside of replacements."""

    def __init__(self, new: dict[int, Node]) -> None:
        super().__init__()
        self._new = new

    def on_visit(self, node: Node) -> bool:
        return id(node) not in self._new

    def on_leave(self, original: Node, updated: Node) -> Node:
        if id(original) not in self._new:
            return updated
        others = {known: new for known, new in self._new.items() if known != id(original)}
        replacement = self._new[id(original)]
        return replacement.visit(_Replacing(others)) if others else replacement


def dotted_name(node: Node) -> str:
    """`a.b.c` of a name or an attribute; empty for other expressions."""
    if isinstance(node, cst.Name):
        return str(node.value)
    if isinstance(node, cst.Attribute):
        base = dotted_name(node.value)
        return f"{base}.{node.attr.value}" if base else ""
    return ""


def bindings(node: Node) -> Iterator[Node]:
    """The names and attributes that a node itself binds; those in a tuple, too."""
    if isinstance(
        node,
        cst.AssignTarget | cst.AnnAssign | cst.AugAssign | cst.NamedExpr | cst.For | cst.CompFor,
    ):
        target = node.target
    elif isinstance(node, cst.AsName | cst.Param):
        target = node.name
    else:
        return
    if isinstance(target, cst.Tuple | cst.List):
        yield from (each for each in inside(target) if isinstance(each, cst.Name | cst.Attribute))
    else:
        yield target


def expression(text: str) -> Node:
    """An expression by its text."""
    return cst.parse_expression(text)


def inside(node: Node) -> Iterator[Node]:
    """A node and all nodes in it."""
    return _walk(node)


def _walk(node: Node) -> Iterator[Node]:
    pending = [node]
    while pending:
        at = pending.pop()
        yield at
        pending.extend(reversed(at.children))
