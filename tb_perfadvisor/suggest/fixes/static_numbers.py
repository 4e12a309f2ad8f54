"""Static arguments that are only factors or terms of arrays, and so need not be static."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from tb_perfadvisor.suggest.code import (
    Code,
    Edit,
    Fix,
    Node,
    Values,
    argument,
    dotted_name,
    inside,
    integer,
    positional,
    without_argument,
)

_ARITHMETIC = (cst.Add, cst.Subtract, cst.Multiply, cst.Divide, cst.Power)
_NOTE = "Results change by rounding: the number is computed with as an array."


def _static(code: Code, values: Values) -> Iterator[Edit]:
    """Stop making a number static, so that a new value does not recompile the function."""
    for made in code.calls("jax.jit"):
        given = argument(made, "static_argnums")
        place, function = integer(given), _jitted(code, made)
        if given is None or function is None:
            continue
        parameters = [parameter.name.value for parameter in function.params.params]
        if place is None or place >= len(parameters):
            yield Edit(made, unsure="several arguments are static")
        elif not _is_only_computed_with(code, function, place):
            yield Edit(made, unsure=f"`{parameters[place]}` may have to be static")
        else:
            changed = without_argument(made, "static_argnums")
            yield Edit(made, f"`{parameters[place]}` is not static", ((made, changed),), note=_NOTE)


def _jitted(code: Code, made: Node) -> Node | None:
    """The function that a call jits; None unless the file has exactly one of that name."""
    names = [dotted_name(given) for given in positional(made)]
    found = [each for each in code.functions() if [each.name.value] == names]
    return found[0] if len(found) == 1 else None


def _is_only_computed_with(code: Code, function: Node, place: int) -> bool:
    """Whether each use of a parameter is in arithmetic with another parameter.

    The other one is an array, because it is not static. So the result is an array in any case.
    """
    name = function.params.params[place].name.value
    arrays = {parameter.name.value for parameter in function.params.params} - {name}
    return all(
        _meets(code, node, arrays)
        for node in inside(function.body)
        if isinstance(node, cst.Name) and node.value == name
    )


def _meets(code: Code, use: Node, arrays: set[str]) -> bool:
    """Whether the arithmetic around a use has one of some names as an operand."""
    at = use
    while True:
        parent = code.parents[id(at)]
        if not isinstance(parent, cst.BinaryOperation):
            return False  # also if another function gets the value
        if not isinstance(parent.operator, _ARITHMETIC):
            return False
        other = parent.right if parent.left is at else parent.left
        if isinstance(other, cst.Name) and other.value in arrays:
            return True
        at = parent


FIXES = (
    Fix(
        "dynamic-number",
        ("static_argnums",),
        _static,
        "Numbers that decide shapes, indices or branches, and several static arguments.",
    ),
)
