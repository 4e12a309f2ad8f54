"""The code of a program, as patches need it."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from tb_perfadvisor.advice import Value
from tb_perfadvisor.signals.workload.workload import Part

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


_LINE_END = cst.TrailingWhitespace()


def argument(call: Node, name: str) -> Node:
    """The value of a keyword argument; None if the call does not set it."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == name:
            return arg.value
    return None


def positional(call: Node) -> list[Node]:
    """The values of the positional arguments."""
    return [arg.value for arg in call.args if arg.keyword is None and not arg.star]


def unpacks(call: Node) -> bool:
    """Whether a call unpacks arguments (`*args`, `**options`), so that more may be set."""
    return any(arg.star for arg in call.args)


def overrides(call: Node) -> bool:
    """Whether `with_arguments` can set an argument that unpacked ones may set, too.

    What is unpacked is the last argument, and has a name: `**options`.
    """
    unpacked = [arg for arg in call.args if arg.star]
    return not unpacked or (
        len(unpacked) == 1
        and unpacked[0].star == "**"
        and unpacked[0] is call.args[-1]
        and bool(dotted_name(unpacked[0].value))
    )


def with_arguments(call: Node, wanted: Mapping[str, str]) -> Node:
    """A call with keyword arguments set, whatever the arguments are that it unpacks.

    Raises:
        ValueError: If the call does not let `overrides` be true.
    """
    inner = {name: value for name, value in wanted.items() if argument(call, name) is None}
    for name, value in wanted.items():
        if name not in inner or not unpacks(call):
            call = with_argument(call, name, value)
    if not inner or not unpacks(call):
        return call
    if not overrides(call):
        raise ValueError("the call unpacks other arguments")
    *others, last = call.args
    items = ", ".join(f'"{name}": {value}' for name, value in inner.items())
    merged = expression(f"{{**{dotted_name(last.value)}, {items}}}")
    return call.with_changes(args=[*others, last.with_changes(value=merged)])


def integer(node: Node | None) -> int | None:
    """The value of an integer literal."""
    return int(node.value.replace("_", ""), 0) if isinstance(node, cst.Integer) else None


def is_name(node: Node | None, name: str) -> bool:
    """Whether a node is a name, such as `True`."""
    return isinstance(node, cst.Name) and node.value == name


def with_argument(call: Node, name: str, value: str) -> Node:
    """A call with a keyword argument set; a new one follows the others in their style."""
    args = list(call.args)
    new_value = expression(value)
    for place, arg in enumerate(args):
        if arg.keyword is not None and arg.keyword.value == name:
            args[place] = arg.with_changes(value=new_value)
            return call.with_changes(args=args)
    new = cst.Arg(
        value=new_value,
        keyword=cst.Name(name),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )
    if not args:
        return call.with_changes(args=[new])
    last = args[-1]
    has_trailing_comma = isinstance(last.comma, cst.Comma)
    if len(args) > 1:
        gap = args[-2].comma.whitespace_after
    elif has_trailing_comma:
        gap = call.whitespace_before_args
    else:
        gap = cst.SimpleWhitespace(" ")
    # A comment after the last argument stays with it.
    end = last.comma.whitespace_after if has_trailing_comma else last.whitespace_after_arg
    if isinstance(gap, cst.ParenthesizedWhitespace):
        gap = gap.with_changes(first_line=_LINE_END, empty_lines=[])
    if isinstance(gap, cst.ParenthesizedWhitespace) and isinstance(
        end, cst.ParenthesizedWhitespace
    ):
        gap = gap.with_changes(first_line=end.first_line)
        end = end.with_changes(first_line=_without_comment(end.first_line))
    args[-1] = last.with_changes(
        comma=cst.Comma(whitespace_after=gap), whitespace_after_arg=cst.SimpleWhitespace("")
    )
    if has_trailing_comma:
        new = new.with_changes(comma=cst.Comma(whitespace_after=end))
    else:
        new = new.with_changes(whitespace_after_arg=end)
    return call.with_changes(args=[*args, new])


def _without_comment(line: Node) -> Node:
    return line.with_changes(comment=None, whitespace=cst.SimpleWhitespace(""))


def without_argument(call: Node, name: str) -> Node:
    """A call without a keyword argument."""
    args = [arg for arg in call.args if arg.keyword is None or arg.keyword.value != name]
    if args and len(args) < len(call.args):
        last = call.args[-1]
        args[-1] = args[-1].with_changes(
            comma=last.comma, whitespace_after_arg=last.whitespace_after_arg
        )
    return call.with_changes(args=args)


def literal_behind(code: Code, value: Node) -> Node | None:
    """The integer literal that a value surely comes from; None if there is none, or several.

    A value is a name that the file assigns once, or `args.name` of an option with that default.
    """
    if isinstance(value, cst.Attribute) and dotted_name(value).count(".") == 1:
        return _default_of_option(code, value.attr.value)
    return _only_value(code, value.value) if isinstance(value, cst.Name) else None


def is_only_for(code: Code, value: Node, uses: frozenset[str]) -> bool:
    """Whether the literal behind a value may change: nothing else would change with it.

    The value is the name or attribute, as the argument of a call. `uses` are keyword arguments of
    that call that may use it, as formatted strings may.
    """
    name, call = dotted_name(value), code.around(value, cst.Call)
    return not any(
        dotted_name(node) == name
        and not _is_bound(code, node)
        and not _is_for(code, node, call, uses)
        for node in code.nodes
        if isinstance(node, cst.Name | cst.Attribute)
    )


def _is_bound(code: Code, node: Node) -> bool:
    return any(node is bound for bound in bindings(code.parents.get(id(node))))


def _is_for(code: Code, node: Node, call: Node, uses: frozenset[str]) -> bool:
    """Whether a value is only formatted, or is for one of some keyword arguments of a call."""
    at = code.around(node, cst.Arg, cst.FormattedStringExpression)
    if isinstance(at, cst.FormattedStringExpression):
        return True
    return (
        at is not None
        and at.keyword is not None
        and at.keyword.value in uses
        and code.parents[id(at)] is call
    )


def _only_value(code: Code, name: str) -> Node | None:
    bound = [
        node for node in code.nodes if any(dotted_name(target) == name for target in bindings(node))
    ]
    values = []
    for node in bound:
        if isinstance(node, cst.AssignTarget):
            is_whole = isinstance(node.target, cst.Name)
            values.append(code.parents[id(node)].value if is_whole else None)
        else:
            values.append(node.value if isinstance(node, cst.AnnAssign | cst.NamedExpr) else None)
    return _literal(values)


def _default_of_option(code: Code, name: str) -> Node | None:
    spelled = {f"--{name}", f"--{name.replace('_', '-')}"}
    values = [
        argument(call, "default")
        for call in code.calls("*.add_argument")
        if spelled
        & {node.evaluated_value for node in positional(call) if isinstance(node, cst.SimpleString)}
    ]
    return _literal(values)


def _literal(values: list[Node | None]) -> Node | None:
    (value,) = values if len(values) == 1 else (None,)
    return value if isinstance(value, cst.Integer) else None


Values = Mapping[str, Value]
"""What a finding computed for its remedy, by name: the bucket size, the number of workers."""


class Edit(NamedTuple):
    """An edit that would carry out a remedy."""

    node: Node
    """Where it is."""
    what: str = ""
    """What it does, in a few words: `num_workers=4, persistent_workers=True`."""
    replacements: tuple[tuple[Node, Node], ...] = ()
    unsure: str = ""
    """Why a program cannot make it safely; empty if it can."""
    note: str = ""
    """What to check after it."""
    present: str = ""
    """What the code has already of what the remedy asks for: `num_workers=4`."""


class Fix(NamedTuple):
    """A mechanical way to carry out remedies.

    The catalog of advice says which changes it carries out. Remedies are chosen to fit the program,
    so a fix never applies to another kind of program.
    """

    id: str
    """As in the catalog."""
    mentions: tuple[str, ...]
    """A file that contains none of these texts needs no look."""
    find: Callable[[Code, Values], Iterator[Edit]]
    """Finds the changes in a file."""
    refuses: str
    """Where it gives the place and the reason instead, in a sentence."""
    part: Part | None = None
    """A part that the profile shows if the profiled program had what is `present`. If the profile
    does not show it, the code has changed since."""
