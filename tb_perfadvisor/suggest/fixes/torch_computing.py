"""Precision, compilation and layouts of PyTorch programs."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.suggest.code import (
    Code,
    Edit,
    Fix,
    Node,
    Values,
    dotted_name,
    expression,
    inside,
    is_name,
    positional,
    with_argument,
)
from tb_perfadvisor.suggest.fixes.torch_optimizing import OPTIMIZERS

_TF32_SWITCHES = ("torch.backends.cuda.matmul.allow_tf32", "torch.backends.cudnn.allow_tf32")
_COMPILES = regex(r"\btorch\.compile\(|@torch\.compile|\b\w+\.compile\(\)")
_ROUNDING = "Results change by rounding: compare the loss over some hundred steps."
_IS_SCRIPT = regex(r"\b__name__\s*==")
_REFUSES_AUTOCAST = regex(r"\bBCELoss\(|\bbinary_cross_entropy\(")
_ARRIVALS = ("*.to", "*.cuda", "*.view", "*.reshape", "*.size", "*.unsqueeze", "*.squeeze", "next")
_TF32_CALL = "torch.set_float32_matmul_precision"


def _tf32(code: Code, values: Values) -> Iterator[Edit]:
    """TF32 for products of 32-bit matrices."""
    for call in code.calls(_TF32_CALL):
        given = call.args[0].value if call.args else None
        if isinstance(given, cst.SimpleString) and given.evaluated_value == "highest":
            yield Edit(call, '"high"', ((given, expression('"high"')),), note=_ROUNDING)
    for node in code.nodes:
        if (
            isinstance(node, cst.Assign)
            and is_name(node.value, "False")
            and code.name(node.targets[0].target) in _TF32_SWITCHES
        ):
            change = (node.value, cst.Name("True"))
            yield Edit(node, "allow_tf32 = True", (change,), note=_ROUNDING)
    is_set = "tf32" in code.text or _TF32_CALL in code.text
    imported = [line for line in code.module.body if _is_import(line)]
    if _IS_SCRIPT.search(code.text) and not is_set and code.has_global("torch"):
        line = cst.parse_statement(f'{_TF32_CALL}("high")\n')
        line = line.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        body = list(code.module.body)
        body.insert(body.index(imported[-1]) + 1, line)
        yield Edit(
            imported[-1],
            f'{_TF32_CALL}("high")',
            ((code.module, code.module.with_changes(body=body)),),
            note=_ROUNDING,
        )


def _is_import(line: Node) -> bool:
    return isinstance(line, cst.SimpleStatementLine) and isinstance(
        line.body[0], cst.Import | cst.ImportFrom
    )


def _autocast(code: Code, values: Values) -> Iterator[Edit]:
    """Autocast around the forward pass: the statements that lead to the loss."""
    for call in code.calls("*.backward"):
        if positional(call):
            continue  # a gradient is passed, so it is not called on a loss
        block = code.around(call, cst.IndentedBlock)
        body = list(block.body) if block is not None else []
        statement = code.around(call, cst.SimpleStatementLine)
        loss = dotted_name(call.func.value)
        forward = _forward(code, body[: body.index(statement)], loss) if statement in body else []
        if "autocast" in code.text:
            yield Edit(call, unsure="the file casts already")
        elif _REFUSES_AUTOCAST.search(code.text):
            yield Edit(call, unsure="binary cross-entropy of probabilities refuses autocast")
        elif not forward:
            yield Edit(call, unsure="where the forward pass begins is not certain")
        elif read := _read_by_numpy(code, forward, loss):
            yield Edit(call, unsure=f"NumPy, which reads `{read}`, has no bfloat16")
        else:
            device = values.get("device", "cuda")
            cast: Node = cst.parse_statement(
                f'with torch.autocast("{device}", dtype=torch.bfloat16):\n    pass\n'
            )
            lines = [forward[0].with_changes(leading_lines=[]), *forward[1:]]
            wrapped = cast.with_changes(
                leading_lines=forward[0].leading_lines, body=cast.body.with_changes(body=lines)
            )
            first = body.index(forward[0])
            changed = [*body[:first], wrapped, *body[first + len(forward) :]]
            yield Edit(
                forward[0],
                "torch.autocast around the forward pass",
                ((block, block.with_changes(body=changed)), *_importing_torch(code)),
                note=_ROUNDING,
            )


def _forward(code: Code, before: list[Node], loss: str) -> list[Node]:
    """The statements right before `loss.backward()` from the first that the loss depends on."""
    needed, first = {loss}, len(before)
    for place in reversed(range(len(before))):
        assign = _only_assignment(before[place])
        if assign is not None and _computes_any(code, assign, needed):
            needed |= _names(assign.value)
            first = place
        elif not _is_zeroing(code, before[place]):
            break
    last = len(before)
    while last > first and _only_assignment(before[last - 1]) is None:
        last -= 1
    # Any part of the forward pass that is further up would run outside of autocast.
    earlier = [_only_assignment(line) for line in before[:first]]
    has_more = any(each is not None and _computes_any(code, each, needed) for each in earlier)
    return [] if has_more else before[first:last]


def _is_zeroing(code: Code, line: Node) -> bool:
    """Whether a line only sets gradients to zero, which changes no result of the forward pass."""
    call = line.body[0].value if _is_expression(line) else None
    return code.is_call(call, "*.zero_grad")


def _is_expression(line: Node) -> bool:
    return (
        isinstance(line, cst.SimpleStatementLine)
        and len(line.body) == 1
        and isinstance(line.body[0], cst.Expr)
    )


def _read_by_numpy(code: Code, forward: list[Node], loss: str) -> str:
    """A result of the forward pass that the file converts for NumPy; empty if there is none."""
    bound = {name for line in forward if (assign := _only_assignment(line)) is not None
             for name in _names(assign.targets[0].target)}  # fmt: skip
    for call in code.calls("*.numpy"):
        read = next(
            (name for name in sorted(_names(call.func.value)) if name in bound - {loss}), ""
        )
        if read:
            return read
    return ""


def _importing_torch(code: Code) -> tuple[tuple[Node, Node], ...]:
    """The change that imports torch by its own name; none if the file does."""
    if code.has_global("torch"):
        return ()
    body = _with_torch(code, list(code.module.body))
    return ((code.module, code.module.with_changes(body=body)),)


def _with_torch(code: Code, body: list[Node]) -> list[Node]:
    """The statements of a file with an import of torch after the last other one, if it has none."""
    if code.has_global("torch"):
        return body
    places = [place for place, line in enumerate(body) if _is_import(line)]
    after = places[-1] + 1 if places else 0
    return [*body[:after], cst.parse_statement("import torch\n"), *body[after:]]


def _only_assignment(line: Node) -> Node | None:
    """The assignment that a line consists of; None for any other line."""
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return None
    assign = line.body[0]
    return assign if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None


def _computes_any(code: Code, assign: Node, names: set[str]) -> bool:
    """Whether an assignment computes one of the names, rather than fetching or creating it."""
    calls = [node for node in inside(assign.value) if isinstance(node, cst.Call)]
    is_needed = bool(_names(assign.targets[0].target) & names)
    return is_needed and any(_computes(code, call) for call in calls)


def _computes(code: Code, call: Node) -> bool:
    """Whether a call computes, rather than fetching, viewing or making an object."""
    made = dotted_name(call.func).rpartition(".")[2]  # a class, such as a model or `Variable`
    return not made[:1].isupper() and not code.is_call(call, *_ARRIVALS)


def _names(node: Node) -> set[str]:
    return {inner.value for inner in inside(node) if isinstance(inner, cst.Name)}


def _compile(code: Code, values: Values) -> Iterator[Edit]:
    """`model.compile()` before the optimizer: unlike `torch.compile`, it renames no parameter."""
    for call in code.calls(*OPTIMIZERS):
        given: Node = call.args[0].value if call.args else None
        statement = code.around(call, cst.SimpleStatementLine)
        if (
            not code.is_call(given, "*.parameters")
            or statement is None
            or _COMPILES.search(code.text)
        ):
            continue
        model = dotted_name(given.func.value)
        if model == "self":
            yield Edit(call, unsure="its trainer may not call `forward` through the module")
            continue
        block = code.parents[id(statement)]
        line = cst.parse_statement(f"{model}.compile()\n")
        body = list(block.body)
        at = body.index(statement)
        body[at : at + 1] = [
            line.with_changes(leading_lines=statement.leading_lines),
            statement.with_changes(leading_lines=[]),
        ]
        if model:
            yield Edit(
                call,
                f"{model}.compile()",
                ((block, block.with_changes(body=body)),),
                note="The first steps compile: leave them out of the next recording.",
            )


def _channels_last(code: Code, values: Values) -> Iterator[Edit]:
    """Weights with their channels last, and no `view`, which refuses that layout."""
    if "Conv3d" in code.text or "channels_last" in code.text:  # its weights have no such layout
        return
    views = tuple(
        (call.func.attr, cst.Name("reshape"))
        for call in code.calls("*.view")
        if (function := code.around(call, cst.FunctionDef)) is not None
        and function.name.value == "forward"
    )
    for given in code.calls("*.parameters"):
        model, call = dotted_name(given.func.value), code.around(given, cst.Call)
        statement = code.around(given, cst.SimpleStatementLine)
        is_optimizer = call is not None and dotted_name(call.func).rpartition(".")[2][:1].isupper()
        if not is_optimizer or not model or model == "self" or statement is None:
            continue
        moved = [each for each in code.calls("*.to") if code.target(each) == model]
        what = "memory_format=torch.channels_last"
        if moved:
            changed = with_argument(moved[0], "memory_format", "torch.channels_last")
            changes: tuple[tuple[Node, Node], ...] = ((moved[0], changed),)
        else:
            what = f"{model}.to({what})"
            line = cst.parse_statement(f"{what}\n")
            line = line.with_changes(leading_lines=statement.leading_lines)
            block = code.parents[id(statement)]
            body = list(block.body)
            at = body.index(statement)
            body[at : at + 1] = [line, statement.with_changes(leading_lines=[])]
            if block is code.module:
                body = _with_torch(code, body)
            changes = ((block, block.with_changes(body=body)),)
        if not any(old is code.module for old, _ in changes):
            changes += _importing_torch(code)
        yield Edit(moved[0] if moved else call, what, (*changes, *views))


FIXES = (
    Fix("tf32", ("torch",), _tf32, "Files that are no scripts and set no precision."),
    Fix(
        "autocast",
        (".backward(",),
        _autocast,
        "Files that cast already, binary cross-entropy of probabilities, results that NumPy reads,"
        " and forward passes whose beginning is not certain.",
    ),
    Fix("compile", ("optim",), _compile, "Files that compile already, and modules of a trainer."),
    Fix("channels-last", (".parameters()",), _channels_last, "Models with 3-d convolutions."),
)
