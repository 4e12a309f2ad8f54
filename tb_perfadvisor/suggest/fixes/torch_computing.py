"""Precision, compilation and layouts of PyTorch programs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from tb_perfadvisor.suggest.arguments import argument, is_name, positional, with_argument
from tb_perfadvisor.suggest.code import Code, Node, dotted_name, expression, inside
from tb_perfadvisor.suggest.edit import Edit, Fix, Values
from tb_perfadvisor.suggest.fixes.torch_optimizing import OPTIMIZERS

_TF32_SWITCHES = ("torch.backends.cuda.matmul.allow_tf32", "torch.backends.cudnn.allow_tf32")
_COMPILES = re.compile(r"\btorch\.compile\(|@torch\.compile|\b\w+\.compile\(\)")
_ROUNDING = "Results change by rounding: compare the loss over some hundred steps."
_IS_SCRIPT = re.compile(r"\b__name__\s*==")
_REFUSES_AUTOCAST = re.compile(r"\bBCELoss\(|\bbinary_cross_entropy\(")
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
        if "autocast" in code.text or not code.has_global("torch"):
            yield Edit(call, unsure="the file casts already, or does not import torch")
        elif _REFUSES_AUTOCAST.search(code.text):
            yield Edit(call, unsure="binary cross-entropy of probabilities refuses autocast")
        elif not forward:
            yield Edit(call, unsure="where the forward pass begins is not certain")
        else:
            device = values.get("device", "cuda")
            cast = cst.parse_statement(
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
                ((block, block.with_changes(body=changed)),),
                note=_ROUNDING,
            )


def _forward(code: Code, before: list[Node], loss: str) -> list[Node]:
    """The assignments right before `loss.backward()` that the loss depends on."""
    needed, found = {loss}, list[Node]()
    for line in reversed(before):
        assign = _only_assignment(line)
        if assign is None or not _computes_any(code, assign, needed):
            break
        needed |= _names(assign.value)
        found.insert(0, line)
    # Any part of the forward pass that is further up would run outside of autocast.
    earlier = [_only_assignment(line) for line in before[: len(before) - len(found)]]
    has_more = any(each is not None and _computes_any(code, each, needed) for each in earlier)
    return [] if has_more else found


def _only_assignment(line: Node) -> Node | None:
    """The assignment that a line consists of; None for any other line."""
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return None
    assign = line.body[0]
    return assign if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None


def _computes_any(code: Code, assign: Node, names: set[str]) -> bool:
    """Whether an assignment computes one of the names, rather than fetching or creating it."""
    calls = [node for node in inside(assign.value) if isinstance(node, cst.Call)]
    is_arrival = any(code.is_call(node, "*.to", "*.cuda", "next") for node in calls)
    made = dotted_name(assign.value.func) if isinstance(assign.value, cst.Call) else ""
    is_object = made.rpartition(".")[2][:1].isupper()  # an instance of a class, such as a model
    is_needed = bool(_names(assign.targets[0].target) & names)
    return is_needed and bool(calls) and not is_arrival and not is_object


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
    for call in code.calls("*.to"):
        is_model = f"{code.target(call)}.parameters()" in code.text
        if (
            code.target(call)
            and is_model
            and code.has_global("torch")
            and "Conv3d" not in code.text  # its weights have no such layout
            and argument(call, "memory_format") is None
        ):
            changed = with_argument(call, "memory_format", "torch.channels_last")
            yield Edit(call, "memory_format=torch.channels_last", ((call, changed),))


FIXES = (
    Fix("tf32", ("torch",), _tf32, "Files that are no scripts and set no precision."),
    Fix(
        "autocast",
        (".backward(",),
        _autocast,
        "Files that cast already, binary cross-entropy of probabilities, and forward passes whose"
        " beginning is not certain.",
    ),
    Fix("compile", ("optim",), _compile, "Files that compile already, and modules of a trainer."),
    Fix("channels-last", (".to(",), _channels_last, "Models with 3-d convolutions."),
)
