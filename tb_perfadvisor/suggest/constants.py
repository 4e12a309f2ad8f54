"""Literals behind names: a constant of the file, or the default of a command-line option."""

from __future__ import annotations

import libcst as cst

from tb_perfadvisor.suggest.arguments import argument, positional
from tb_perfadvisor.suggest.code import Code, Node, dotted_name


def literal_behind(code: Code, value: Node) -> Node | None:
    """The integer literal that a value surely comes from; None if there is none, or several.

    Args:
        code: The file.
        value: A name that the file assigns once, or `args.name` of an option with that default.
    """
    if isinstance(value, cst.Attribute) and dotted_name(value).count(".") == 1:
        return _default_of_option(code, value.attr.value)
    if isinstance(value, cst.Name):
        return _only_value(code, value.value)
    return None


def _only_value(code: Code, name: str) -> Node | None:
    values: list[Node | None] = []
    for node in code.nodes:
        if (
            isinstance(node, cst.Assign)
            and any(dotted_name(target.target) == name for target in node.targets)
        ) or (isinstance(node, cst.AnnAssign | cst.NamedExpr) and dotted_name(node.target) == name):
            values.append(node.value)
        elif (isinstance(node, cst.AugAssign) and dotted_name(node.target) == name) or (
            isinstance(node, cst.Param) and node.name.value == name
        ):
            values.append(None)  # another value, or the caller's
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
