"""Changes of a program that change nothing it does: a comment, a docstring, a renamed variable."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator

_COMMENT = "# What follows is as it was."
_DOCSTRING = '"""Do what the name says."""'
_NEW_NAME = "renamed_by_a_change"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def no_op_patches(code: str, name: str) -> dict[str, str]:
    """Patches by what they do; not all of them exist for every program.

    Args:
        code: A file of the program.
        name: Of the file, relative to where the patches are applied.
    """
    changed = {
        "comment": _with_comment(code),
        "docstring": _with_docstring(code),
        "renamed variable": _with_new_name(code),
    }
    return {what: _patch(code, new, name) for what, new in changed.items() if new is not None}


def _with_comment(code: str) -> str | None:
    """A comment in the first loop."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.For | ast.While) and node.body[0].lineno > node.lineno:
            return _with_line(code, node.body[0], _COMMENT)
    return None


def _with_docstring(code: str) -> str | None:
    """A docstring for the first function without one."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, Function) and not ast.get_docstring(node):
            first = node.body[0]
            if first.lineno > node.lineno and not getattr(first, "decorator_list", ()):
                return _with_line(code, first, _DOCSTRING)
    return None


def _with_line(code: str, before: ast.stmt, text: str) -> str:
    lines = code.splitlines(keepends=True)
    lines.insert(before.lineno - 1, f"{' ' * before.col_offset}{text}\n")
    return "".join(lines)


def _with_new_name(code: str) -> str | None:
    """A new name for the first local variable of a function that nothing else can see."""
    if _NEW_NAME in code:
        return None
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, Function):
            for variable in _local_variables(node):
                return _renamed(code, node, variable)
    return None


def _local_variables(function: Function) -> Iterator[str]:
    """Variables that only the function's own statements name, in its order."""
    inside = list(ast.walk(function))
    scopes = (ast.Lambda, ast.ClassDef, ast.Global, ast.Nonlocal, Function)
    if any(isinstance(node, scopes) for node in inside if node is not function):
        return
    names = [node for node in inside if isinstance(node, ast.Name)]
    if any(node.id in {"locals", "eval", "exec", "vars"} for node in names):
        return
    arguments = {node.arg for node in inside if isinstance(node, ast.arg)}
    # Before Python 3.12, what stands in an f-string has no place of its own.
    in_texts = {
        part.id
        for node in inside
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if isinstance(part, ast.Name)
    }
    for node in sorted(names, key=lambda each: (each.lineno, each.col_offset)):
        if isinstance(node.ctx, ast.Store) and node.id not in arguments | in_texts:
            yield node.id


def _renamed(code: str, function: Function, variable: str) -> str:
    lines = [line.encode() for line in code.splitlines(keepends=True)]
    found = [
        node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == variable
    ]
    for node in sorted(found, key=lambda each: (each.lineno, each.col_offset), reverse=True):
        line, begin = lines[node.lineno - 1], node.col_offset
        end = begin + len(variable.encode())
        lines[node.lineno - 1] = line[:begin] + _NEW_NAME.encode() + line[end:]
    return b"".join(lines).decode()


def _patch(old: str, new: str, name: str) -> str:
    before, after = (text.splitlines(keepends=True) for text in (old, new))
    return "".join(difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"))
