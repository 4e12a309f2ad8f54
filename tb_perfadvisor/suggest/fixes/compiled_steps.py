"""Steps that a fix compiles, and bodies of loops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.suggest.code import (
    Code,
    Edit,
    Fix,
    Node,
    Values,
    argument,
    bindings,
    dotted_name,
    expression,
    inside,
    is_name,
    positional,
    unpacks,
    with_argument,
)

_LOOPS = (cst.For, cst.While)
_NAMES = ("train_step", "compiled_train_step")


def loop_body(code: Code, tape: Node, decorator: str) -> Edit | None:
    """The edit that moves the statements from a tape to the update into a function.

    The call makes the tape, as in `with tf.GradientTape() as tape`. The decorator is what compiles
    the function: `tf.function`. The edit's `node` is a function that is not in the file yet: the
    caller decides whether it may be compiled. It has no replacements if there is a reason against
    the move. None if the tape is not in the body of a loop.
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


_EFFECTS = regex(
    r"\b(nonlocal|global|print|open|time|np|numpy|float|int|bool|block_until_ready|device_get"
    r"|logging|logger|next|input)\b|\.(item|numpy|tolist|write)\("
)
"""What a traced function would do once, or cannot do."""
_GROWING = regex(r"\b(\w+)\.(append|extend|update|add|setdefault)\(")
_TRACING = regex(
    r"^jax\.(jit|grad|value_and_grad|vmap|pmap|checkpoint|shard_map|(lax|tree|tree_util)\.\w+)$"
    r"|^tensorflow\.function$|^flax\.\w+\.(jit|grad|value_and_grad|vmap|scan)$|^functools\.partial$"
)


def _jit(code: Code, values: Values) -> Iterator[Edit]:
    """`@jax.jit` on the functions that the loop calls."""
    if not code.has_global("jax"):
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
        if name != other and not (_why_not(code, function) or _why_not_jitted(code, function))
    }
    for name, function in computing.items():
        if name in called_by_others:
            continue
        why = _why_not(code, function) or _why_not_jitted(code, function)
        if why:
            yield Edit(function, unsure=why)
            continue
        decorator = cst.Decorator(expression("jax.jit"))
        changed = function.with_changes(decorators=[decorator, *function.decorators])
        yield Edit(function, "@jax.jit", ((function, changed),))


def _computes(code: Code, function: Node) -> bool:
    """Whether a function calls JAX, or does arithmetic and nothing else."""
    names = [code.name(node.func) for node in inside(function.body) if isinstance(node, cst.Call)]
    return any(name.startswith("jax.") for name in names)


def _graph(code: Code, values: Values) -> Iterator[Edit]:
    """`@tf.function` on the function with the tape, or on a function of the loop's body."""
    name = next((name for name, origin in code.imports.items() if origin == "tensorflow"), None)
    traced = _traced(code)
    for tape in code.calls("tensorflow.GradientTape"):
        function = code.around(tape, cst.FunctionDef)
        if name is None or (function is not None and function.name.value in traced):
            continue
        moved = loop_body(code, tape, f"{name}.function")
        if moved is not None:
            why = moved.unsure or _why_not_traced(code, moved.node)
            changes = () if why else moved.replacements
            yield moved._replace(node=tape, unsure=why, replacements=changes)
            continue
        if function is None:
            continue
        why = _why_not(code, function)
        if "Variable(" in code.source(function):
            why = "it creates variables"
        if why:
            yield Edit(function, unsure=why)
            continue
        decorator = cst.Decorator(expression(f"{name}.function"))
        changed = function.with_changes(decorators=[decorator, *function.decorators])
        note = "Pass numbers that change as tensors: each Python number is traced anew."
        yield Edit(function, f"@{name}.function", ((function, changed),), note=note)


def _donated(code: Code, values: Values) -> Iterator[Edit]:
    """Donated arguments of a jitted step whose results replace them, wherever it is called."""
    for made in code.calls("jax.jit"):
        name = code.target(made)
        calls = code.calls(name) if name else []
        if argument(made, "donate_argnums") is not None or not calls:
            continue
        replaced = [_replaced_places(code, call) for call in calls]
        places = sorted(set.intersection(*replaced))
        if not any(replaced):
            continue
        given = {dotted_name(positional(calls[0])[place]) for place in places}
        if not places or _kept(code, given):
            yield Edit(made, unsure="its arguments may still be used after the call")
            continue
        numbers = ", ".join(map(str, places))
        value = f"({numbers},)" if len(places) == 1 else f"({numbers})"
        changed = with_argument(made, "donate_argnums", value)
        yield Edit(made, f"donate_argnums={value}", ((made, changed),))


def _replaced_places(code: Code, call: Node) -> set[int]:
    """The positional arguments of a call that its results replace."""
    assign = code.around(call, cst.Assign)
    if assign is None or assign.value is not call or len(assign.targets) != 1 or unpacks(call):
        return set()
    results = {dotted_name(node) for node in inside(assign.targets[0].target)}
    return {
        place
        for place, given in enumerate(positional(call))
        if dotted_name(given) and dotted_name(given) in results
    }


def _kept(code: Code, names: set[str]) -> bool:
    """Whether the file keeps a value under a second name, or in a collection."""
    values: list[Node] = []
    for node in code.nodes:
        if isinstance(node, cst.Assign | cst.AnnAssign):
            values.append(node.value)
            if isinstance(node.value, cst.Tuple | cst.List | cst.Dict):
                values += [element.value for element in node.value.elements]
    values += [value for call in code.calls("*.append") for value in positional(call)]
    return any(dotted_name(value) in names for value in values if value is not None)


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
    if function.asynchronous is not None or function.decorators:
        return "it is asynchronous or decorated"
    return _why_not_traced(code, function)


def _why_not_traced(code: Code, function: Node) -> str:
    """Why the body of a function may not be traced; empty if nothing speaks against it."""
    body = code.source(function.body)
    effect = _EFFECTS.search(body)
    if effect is not None:
        return f"it uses `{effect[0].strip('.(')}`, which a compiled function runs only once"
    own = {name for node in inside(function) for name in _bound_names(node)}
    for grown in _GROWING.finditer(body):
        if grown[1] not in own:
            return f"it changes `{grown[1]}`, which a compiled function does only once"
    for node in inside(function.body):
        if isinstance(node, cst.AssignTarget) and isinstance(
            node.target, cst.Attribute | cst.Subscript
        ):
            return "it changes an object in place"
        if isinstance(node, cst.Call) and code.name(node.func).partition(".")[0] == "random":
            return "it uses `random`, which a compiled function runs only once"
        if isinstance(node, _BRANCHES):
            return "it branches, perhaps on values that are not known while it is compiled"
        if isinstance(node, cst.Yield | cst.Await):
            return "it does not return at once"
    changing = sorted(_names_read(function.body) - own & _changing(code))
    if changing:
        return f"`{changing[0]}` changes, and a compiled function would keep its first value"
    return ""


_BRANCHES = (cst.If, cst.IfExp, cst.While, cst.Try, cst.Assert, cst.BooleanOperation)


def _names_read(node: Node) -> set[str]:
    return {inner.value for inner in inside(node) if isinstance(inner, cst.Name)}


def _bound_names(node: Node) -> set[str]:
    return {dotted_name(name) for name in bindings(node)}


def _changing(code: Code) -> set[str]:
    """The names, other than parameters, that the file binds more than once or in a loop."""
    once: set[str] = set()
    changing: set[str] = set()
    for node in code.nodes:
        if isinstance(node, cst.Param):
            continue
        names = _bound_names(node)
        changing |= names & once
        once |= names
        if isinstance(node, cst.For | cst.AugAssign) or code.around(node, cst.For, cst.While):
            changing |= names
    return changing


def _why_not_jitted(code: Code, function: Node) -> str:
    """Why an argument of a function may not be an array; empty if nothing suggests that."""
    names = {parameter.name.value for parameter in function.params.params}
    for node in inside(function.body):
        if not isinstance(node, cst.Call):
            continue
        called = dotted_name(node.func)
        head, _, method = called.partition(".")
        if head in names and method.rpartition(".")[2] not in _ARRAY_METHODS:
            return f"`{head}` may not be an array: the function calls it or its methods"
        if called == "range" and _names_read(node) & names:
            return "an argument may be a number that it counts to"
    for call in code.calls(function.name.value):
        for arg in call.args:
            if arg.star or isinstance(
                arg.value, cst.SimpleString | cst.Lambda | cst.FormattedString
            ):
                return "it is called with arguments that are not arrays"
            if is_name(arg.value, "True") or is_name(arg.value, "False"):
                return "it is called with a switch"
    return ""


_ARRAY_METHODS = frozenset(
    {"sum", "mean", "max", "min", "std", "var", "reshape", "astype", "transpose", "dot", "clip",
     "squeeze", "ravel", "flatten", "argmax", "items", "values", "keys", "copy"}
)  # fmt: skip


FIXES = (
    Fix(
        "jit",
        ("jax",),
        _jit,
        "Functions with effects, branches or changing globals, methods, generators, and arguments"
        " that may not be arrays.",
    ),
    Fix(
        "tf-function",
        ("GradientTape",),
        _graph,
        "Functions and loop bodies with effects, branches or changing globals, methods, and those"
        " that create variables.",
    ),
    Fix("donate", ("jax.jit",), _donated, "Arguments that may be used after the call."),
)
