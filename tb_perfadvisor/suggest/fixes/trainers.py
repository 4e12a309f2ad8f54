"""Arguments of trainers: Hugging Face's TrainingArguments, Lightning's Trainer, Keras's compile."""

from __future__ import annotations

import json
from collections.abc import Iterator

import libcst as cst

from tb_perfadvisor.advice import Value
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.suggest.code import (
    Code,
    Edit,
    Fix,
    Values,
    argument,
    dotted_name,
    is_name,
    unpacks,
    with_argument,
)

_HUGGING_FACE = regex(r"^transformers\.(\w+\.)*\w*TrainingArguments$")
_LIGHTNING = regex(r"^(pytorch_)?lightning\.(pytorch\.)?(\w+\.)*(Trainer|Fabric)$")


def _trainer(code: Code, values: Values) -> Iterator[Edit]:
    """The arguments that the remedy gives a trainer."""
    for call in code.calls_matching(_HUGGING_FACE, _LIGHTNING):
        new = {name: value for name, value in values.items() if argument(call, name) is None}
        if not new:
            continue
        if unpacks(call):
            yield Edit(call, unsure="other arguments may set the same")
            continue
        changed = call
        for name, value in new.items():
            changed = with_argument(changed, name, _literal(value))
        what = ", ".join(f"{name}={_literal(value)}" for name, value in new.items())
        yield Edit(call, what, ((call, changed),))


def _literal(value: Value) -> str:
    """A value as Python code, with the quotes that formatters use."""
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _as_graph(code: Code, values: Values) -> Iterator[Edit]:
    """Keras's step as a graph."""
    for call in code.calls("*.compile"):
        if is_name(argument(call, "run_eagerly"), "True"):
            changed = with_argument(call, "run_eagerly", "False")
            yield Edit(call, "run_eagerly=False", ((call, changed),))
    for call in code.calls("tensorflow.config.run_functions_eagerly"):
        if call.args and is_name(call.args[0].value, "True"):
            given = call.args[0].value
            yield Edit(call, "run_functions_eagerly(False)", ((given, cst.Name("False")),))


def _steps_per_call(code: Code, values: Values) -> Iterator[Edit]:
    """Several steps in each call of Keras's fit."""
    steps = str(values["steps"])
    for call in code.calls("*.compile"):
        if argument(call, "steps_per_execution") is not None:
            continue
        is_of_module = dotted_name(call.func).partition(".")[0] in code.imports  # `re.compile`
        if argument(call, "loss") is None and (is_of_module or len(call.args) < 2):
            continue  # another library's compile
        if unpacks(call):
            yield Edit(call, unsure="other arguments may set steps_per_execution")
            continue
        changed = with_argument(call, "steps_per_execution", steps)
        note = "Callbacks for batches are called once per call; fit needs a multiple of the steps."
        yield Edit(call, f"steps_per_execution={steps}", ((call, changed),), note=note)


FIXES = (
    Fix(
        "trainer-arguments",
        ("TrainingArguments", "Trainer(", "Fabric("),
        _trainer,
        "Arguments that are set already, and trainers whose arguments are unpacked.",
    ),
    Fix(
        "keras-graph",
        ("run_eagerly", "run_functions_eagerly"),
        _as_graph,
        "Programs that do not ask for eager steps.",
    ),
    Fix(
        "steps-per-execution",
        (".compile(",),
        _steps_per_call,
        "Calls whose arguments are unpacked, and `compile` of other libraries.",
    ),
)
