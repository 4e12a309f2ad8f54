"""Reads and changes the arguments of calls, in the style in which they are written."""

from __future__ import annotations

from collections.abc import Mapping

import libcst as cst

from tb_perfadvisor.suggest.code import Node, dotted_name, expression

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
