"""Literals behind names: a constant of the file, or the default of a command-line option."""

from __future__ import annotations

import libcst as cst

from tb_perfadvisor.suggest.arguments import argument, positional
from tb_perfadvisor.suggest.code import Code, Node, bindings, dotted_name


def literal_behind(code: Code, value: Node) -> Node | None:
    """The integer literal that a value surely comes from; None if there is none, or several.

    Args:
        code: The file.
        value: A name that the file assigns once, or `args.name` of an option with that default.
    """
    if isinstance(value, cst.Attribute) and dotted_name(value).count(".") == 1:
        return _default_of_option(code, value.attr.value)
    return _only_value(code, value.value) if isinstance(value, cst.Name) else None


def is_only_for(code: Code, value: Node, uses: frozenset[str]) -> bool:
    """Whether the literal behind a value may change: nothing else would change with it.

    Args:
        code: The file.
        value: The name or attribute, as the argument of a call.
        uses: Keyword arguments of that call that may use it, as formatted strings may.
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
