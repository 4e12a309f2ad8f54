"""Arguments of trainers: Hugging Face's TrainingArguments, Lightning's Trainer, Keras's compile."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from tb_perfadvisor.suggest.arguments import argument, is_name, unpacks, with_argument
from tb_perfadvisor.suggest.change import Change, Fix
from tb_perfadvisor.suggest.code import Code, dotted_name

_HUGGING_FACE = re.compile(r"^transformers\.(\w+\.)*\w*TrainingArguments$")
_LIGHTNING = re.compile(r"^(pytorch_)?lightning\.(pytorch\.)?(\w+\.)*(Trainer|Fabric)$")


def _trainer(code: Code, remedy: str) -> Iterator[Change]:
    """The arguments that the remedy's own call has, if they are literals."""
    wanted = _arguments_of(remedy)
    for call in code.calls_matching(_HUGGING_FACE, _LIGHTNING):
        new = {name: value for name, value in wanted.items() if argument(call, name) is None}
        if not new:
            continue
        if unpacks(call):
            yield Change(call, unsure="other arguments may set the same")
            continue
        changed = call
        for name, value in new.items():
            changed = with_argument(changed, name, value)
        what = ", ".join(f"{name}={value}" for name, value in new.items())
        yield Change(call, what, ((call, changed),))


def _arguments_of(remedy: str) -> dict[str, str]:
    """The keyword arguments with literal values of the trainer in a snippet."""
    try:
        snippet = Code("snippet", remedy)
    except ValueError:
        return {}
    return {
        arg.keyword.value: snippet.source(arg.value)
        for node in snippet.nodes
        if isinstance(node, cst.Call)
        and re.search(r"(TrainingArguments|Trainer|Fabric)$", snippet.name(node.func))
        for arg in node.args
        if arg.keyword is not None
        and (isinstance(arg.value, cst.Integer | cst.SimpleString) or is_name(arg.value, "True"))
    }


def _as_graph(code: Code, remedy: str) -> Iterator[Change]:
    """Keras's step as a graph."""
    for call in code.calls("*.compile"):
        if is_name(argument(call, "run_eagerly"), "True"):
            changed = with_argument(call, "run_eagerly", "False")
            yield Change(call, "run_eagerly=False", ((call, changed),))
    for call in code.calls("tensorflow.config.run_functions_eagerly"):
        if call.args and is_name(call.args[0].value, "True"):
            given = call.args[0].value
            yield Change(call, "run_functions_eagerly(False)", ((given, cst.Name("False")),))


def _steps_per_call(code: Code, remedy: str) -> Iterator[Change]:
    """Several steps in each call of Keras's fit."""
    steps = re.search(r"steps_per_execution=(\d+)", remedy)
    for call in code.calls("*.compile"):
        if steps is None or argument(call, "steps_per_execution") is not None:
            continue
        is_of_module = dotted_name(call.func).partition(".")[0] in code.imports  # `re.compile`
        if argument(call, "loss") is None and (is_of_module or len(call.args) < 2):
            continue  # another library's compile
        if unpacks(call):
            yield Change(call, unsure="other arguments may set steps_per_execution")
            continue
        changed = with_argument(call, "steps_per_execution", steps[1])
        note = "Callbacks for batches are called once per call; fit needs a multiple of the steps."
        yield Change(call, f"steps_per_execution={steps[1]}", ((call, changed),), note=note)


FIXES = (
    Fix(
        r"TrainingArguments\(|\bTrainer\(|Fabric\(",
        ("TrainingArguments", "Trainer(", "Fabric("),
        _trainer,
    ),
    Fix(r"run_eagerly", ("run_eagerly", "run_functions_eagerly"), _as_graph),
    Fix(r"steps_per_execution=\d", (".compile(",), _steps_per_call),
)
