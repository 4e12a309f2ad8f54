"""The part of a loop's body that trains becomes a function, which TensorFlow can compile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import libcst as cst

from tb_perfadvisor.suggest.code import Code, Node, bindings, dotted_name, inside
from tb_perfadvisor.suggest.edit import Edit

_LOOPS = (cst.For, cst.While)
_NAMES = ("train_step", "compiled_train_step")


def loop_body(code: Code, tape: Node, decorator: str) -> Edit | None:
    """The edit that moves the statements from a tape to the update into a function.

    Args:
        code: The file.
        tape: The call that makes the tape, as in `with tf.GradientTape() as tape`.
        decorator: What compiles the function: `tf.function`.

    Returns:
        An edit whose `node` is a function that is not in the file yet: the caller decides whether
        it may be compiled. Without replacements if there is a reason against the move; None if the
        tape is not in the body of a loop.
    """
    statement = code.around(tape, cst.With)
    block = code.parents.get(id(statement))
    loop = code.parents.get(id(block))
    if not isinstance(loop, _LOOPS) or loop.body is not block:
        return None
    body = list(block.body)
    first = body.index(statement)
    updates = [place for place in range(first, len(body)) if _updates(code, body[place])]
    if not updates:
        return Edit(statement, unsure="no optimizer applies the gradients in the same loop")
    moved = body[first : updates[-1] + 1]
    outer = loop
    while isinstance(around := code.around(outer, cst.FunctionDef, *_LOOPS), _LOOPS):
        outer = around
    given, results, why = _interface(code, moved, outer)
    name = next((name for name in _NAMES if name not in code.text), "")
    if why or not name:
        return Edit(statement, unsure=why or "the file has a train_step already")
    function = _function(name, decorator, given, results, moved)
    call = f"{name}({', '.join(given)})"
    call = f"{', '.join(results)} = {call}" if results else call
    kept = cst.parse_statement(f"{call}\n").with_changes(leading_lines=statement.leading_lines)
    body[first : updates[-1] + 1] = [kept]
    outer_block = code.parents[id(outer)]
    lines = list(outer_block.body)
    at = lines.index(outer)
    lines[at:at] = [function]
    return Edit(
        function,
        f"@{decorator} on a function of the loop's body",
        (
            (outer_block, outer_block.with_changes(body=lines)),
            (block, block.with_changes(body=body)),
        ),
        note="It is traced once: Python code in it runs only then.",
    )


def _function(
    name: str, decorator: str, given: Iterable[str], results: Sequence[str], moved: list[Node]
) -> Node:
    head: Node = cst.parse_statement(f"@{decorator}\ndef {name}({', '.join(given)}):\n    pass\n")
    lines = [moved[0].with_changes(leading_lines=[]), *moved[1:]]
    if results:
        lines.append(cst.parse_statement(f"return {', '.join(results)}\n"))
    return head.with_changes(
        leading_lines=[cst.EmptyLine(indent=False)], body=head.body.with_changes(body=lines)
    )


def _updates(code: Code, line: Node) -> bool:
    return any(code.is_call(node, "*.apply_gradients", "*.apply") for node in inside(line))


def _interface(code: Code, moved: list[Node], outer: Node) -> tuple[list[str], list[str], str]:
    """The arguments and the results of the function, or why there can be none."""
    in_moved = {id(node) for line in moved for node in inside(line)}
    bound = _bound(moved)
    in_loops = _bound([outer], without=in_moved)
    read = [name for line in moved for name in _read(code, line)]
    given = [name for name in dict.fromkeys(read) if name in in_loops]
    elsewhere = {
        dotted_name(node)
        for node in code.nodes
        if isinstance(node, cst.Name) and id(node) not in in_moved and _is_read(code, node)
    }
    results = [name for name in bound if name in elsewhere]
    added = {
        dotted_name(node.target)
        for node in inside(outer)
        if isinstance(node, cst.AugAssign)
    }  # fmt: skip
    numbers = added | _counters(outer)
    counted = next((name for name in given if name in numbers), "")
    why = ""
    if counted:
        why = f"`{counted}` is another number in each step, for each of which it would be traced"
    elif any(isinstance(node, cst.AugAssign) for line in moved for node in inside(line)):
        why = "it adds to a value that the loop keeps"
    elif tapes := [name for name in _tapes(moved) if name in elsewhere]:
        why = f"`{tapes[0]}` may be used after the step"
    return given, results, why


def _bound(lines: Iterable[Node], without: Iterable[int] = ()) -> list[str]:
    """The names that some lines bind, in order; those of loops and comprehensions inside, too."""
    left_out = set(without)
    return list(
        dict.fromkeys(
            dotted_name(target)
            for line in lines
            for node in inside(line)
            if id(node) not in left_out
            for target in bindings(node)
            if isinstance(target, cst.Name)
        )
    )


def _read(code: Code, line: Node) -> list[str]:
    return [node.value for node in inside(line)
            if isinstance(node, cst.Name) and _is_read(code, node)]  # fmt: skip


def _is_read(code: Code, node: Node) -> bool:
    """Whether a name is a variable that is read, not an attribute, a keyword or a target."""
    parent = code.parents.get(id(node))
    if isinstance(parent, cst.Attribute):
        return parent.value is node
    if isinstance(parent, cst.Arg):
        return parent.value is node
    return not any(node is target for target in bindings(parent)) and not isinstance(
        parent, cst.FunctionDef | cst.ClassDef | cst.ImportAlias
    )


def _counters(outer: Node) -> set[str]:
    """The names that loops count with: targets of `range`, and the first of `enumerate`."""
    names = set()
    for loop in inside(outer):
        if not isinstance(loop, cst.For) or not isinstance(loop.iter, cst.Call):
            continue
        called = dotted_name(loop.iter.func).rpartition(".")[2]
        targets = [node.value for node in inside(loop.target) if isinstance(node, cst.Name)]
        names |= set(targets if called in ("range", "trange") else ())
        names |= set(targets[:1] if called == "enumerate" else ())
    return names


def _tapes(moved: list[Node]) -> list[str]:
    return [dotted_name(node.name) for line in moved for node in inside(line)
            if isinstance(node, cst.AsName)]  # fmt: skip
