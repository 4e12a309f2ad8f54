"""Steps as one program: `jax.jit` and `tf.function`, and donated arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from tb_perfadvisor.suggest.arguments import argument, positional
from tb_perfadvisor.suggest.change import Change, Fix
from tb_perfadvisor.suggest.code import Code, Node, dotted_name, expression, inside

_EFFECTS = re.compile(
    r"\b(nonlocal|global|print|open|time|np|numpy|float|int|bool|block_until_ready|device_get"
    r"|logging|logger)\b|\.(item|numpy|tolist|write)\("
)
"""What a traced function would do once, or cannot do."""
_GROWING = re.compile(r"\b(\w+)\.(append|extend|update|add|setdefault)\(")
_TRACING = re.compile(
    r"^jax\.(jit|grad|value_and_grad|vmap|pmap|checkpoint|shard_map|(lax|tree|tree_util)\.\w+)$"
    r"|^tensorflow\.function$|^flax\.\w+\.(jit|grad|value_and_grad|vmap|scan)$|^functools\.partial$"
)


def _jit(code: Code, remedy: str) -> Iterator[Change]:
    """`@jax.jit` on the functions that the loop calls."""
    if "jax" not in code.imports:
        return
    hot, traced = _called_in_loops(code), _traced(code)
    computing = {
        function.name.value: function
        for function in code.functions()
        if function.name.value in hot - traced and _computes(code, function)
    }
    called_by_others = {
        name
        for other, function in computing.items()
        for name in _called(function)
        if name != other and not _why_not(code, function)
    }
    for name, function in computing.items():
        if name in called_by_others:
            continue
        why = _why_not(code, function)
        if why:
            yield Change(function, unsure=why)
            continue
        decorator = cst.Decorator(expression("jax.jit"))
        changed = function.with_changes(decorators=[decorator, *function.decorators])
        yield Change(function, "@jax.jit", ((function, changed),))


def _computes(code: Code, function: Node) -> bool:
    """Whether a function calls JAX, or does arithmetic and nothing else."""
    names = [code.name(node.func) for node in inside(function.body) if isinstance(node, cst.Call)]
    return any(name.startswith("jax.") for name in names)


def _graph(code: Code, remedy: str) -> Iterator[Change]:
    """`@tf.function` on the function with the tape."""
    name = next((name for name, origin in code.imports.items() if origin == "tensorflow"), None)
    traced = _traced(code)
    for tape in code.calls("tensorflow.GradientTape"):
        function = code.around(tape, cst.FunctionDef)
        if function is None or name is None or function.name.value in traced:
            continue
        why = _why_not(code, function)
        if "Variable(" in code.source(function):
            why = "it creates variables"
        if why:
            yield Change(function, unsure=why)
            continue
        decorator = cst.Decorator(expression(f"{name}.function"))
        changed = function.with_changes(decorators=[decorator, *function.decorators])
        note = "Pass numbers that change as tensors: each Python number is traced anew."
        yield Change(function, f"@{name}.function", ((function, changed),), note=note)


def _donated(code: Code, remedy: str) -> Iterator[Change]:
    """Donated arguments of a jitted step whose results replace them."""
    for made in code.calls("jax.jit"):
        name = code.target(made)
        if argument(made, "donate_argnums") is not None or not name:
            continue
        for call in code.calls(name):
            assign = code.around(call, cst.Assign)
            if assign is None or assign.value is not call or len(assign.targets) != 1:
                continue
            results = {dotted_name(node) for node in inside(assign.targets[0].target)}
            places = [
                place
                for place, given in enumerate(positional(call))
                if dotted_name(given) and dotted_name(given) in results
            ]
            if places:
                numbers = ", ".join(map(str, places))
                value = f"({numbers},)" if len(places) == 1 else f"({numbers})"
                args = [*made.args[:-1], made.args[-1].with_changes(comma=_COMMA)]
                new = cst.Arg(expression(value), keyword=cst.Name("donate_argnums"), equal=_EQUAL)
                changed = made.with_changes(args=[*args, new])
                yield Change(made, f"donate_argnums={value}", ((made, changed),))
                break


_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
_EQUAL = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def _called(node: Node) -> set[str]:
    """The names of functions that a node calls."""
    return {dotted_name(inner.func) for inner in inside(node) if isinstance(inner, cst.Call)}


def _called_in_loops(code: Code) -> set[str]:
    """The functions that loops call, directly or through other functions."""
    functions = {function.name.value: function for function in code.functions()}
    hot: set[str] = set()
    pending = {
        name
        for node in code.nodes
        if isinstance(node, cst.For | cst.While)
        for name in _called(node.body)
    }
    while pending:
        hot |= pending
        pending = {
            name for called in pending if called in functions for name in _called(functions[called])
        } - hot
    return hot & functions.keys()


def _traced(code: Code) -> set[str]:
    """The functions that a transformation gets or decorates."""
    names = set()
    for node in code.nodes:
        if isinstance(node, cst.Call) and _TRACING.match(code.name(node.func)):
            names |= {dotted_name(arg.value) for arg in node.args}
        elif isinstance(node, cst.FunctionDef):
            for decorator in node.decorators:
                made = decorator.decorator
                if _TRACING.match(code.name(made.func if isinstance(made, cst.Call) else made)):
                    names.add(node.name.value)
    return names


def _why_not(code: Code, function: Node) -> str:
    """Why a function may not be traced; empty if nothing speaks against it."""
    parameters = function.params
    if isinstance(parameters.star_arg, cst.Param) or parameters.star_kwarg is not None:
        return "it takes any number of arguments"
    if any(name.value == "self" for name in (p.name for p in parameters.params)):
        return "it is a method"
    body = code.source(function.body)
    effect = _EFFECTS.search(body)
    if effect is not None:
        return f"it uses `{effect[0].strip('.(')}`, which a compiled function runs only once"
    own = {
        name.value
        for node in inside(function.body)
        if isinstance(node, cst.AssignTarget)
        for name in inside(node)
        if isinstance(name, cst.Name)
    }
    for grown in _GROWING.finditer(body):
        if grown[1] not in own:
            return f"it changes `{grown[1]}`, which a compiled function does only once"
    if any(isinstance(node, cst.If | cst.While | cst.Try) for node in inside(function.body)):
        return "it branches, perhaps on values that are not known while it is compiled"
    return ""


FIXES = (
    Fix(r"jax\.jit", ("jax",), _jit),
    Fix(r"tf\.function", ("GradientTape",), _graph),
    Fix(r"donate_arg", ("jax.jit",), _donated),
)
