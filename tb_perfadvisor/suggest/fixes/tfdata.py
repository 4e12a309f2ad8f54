"""Pipelines of tf.data: calls in parallel, prefetching, caching."""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from typing import NamedTuple

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
    integer,
    is_name,
    with_argument,
)

_SOURCE = regex(
    r"^tensorflow\.data\.(Dataset\.\w+|\w+Dataset)$|^(\w+\.)*\w+_dataset_from_directory$"
)
_BEFORE_CACHE = frozenset({"repeat", "shuffle", "batch", "padded_batch", "prefetch", "cache"})
_MAKES_DATASET = frozenset(
    {"apply", "batch", "bucket_by_sequence_length", "cache", "concatenate", "counter", "enumerate",
     "filter", "flat_map", "group_by_window", "ignore_errors", "interleave", "map", "padded_batch",
     "prefetch", "prefetch_to_device", "ragged_batch", "rebatch", "rejection_resample", "repeat",
     "scan", "shard", "shuffle", "skip", "snapshot", "sparse_batch", "take", "take_while",
     "unbatch", "unique", "window", "with_options"}
)  # fmt: skip
"""Methods of a dataset that return a dataset."""
_TRANSPARENT = frozenset({"with_options", "apply"})
_RANDOM = regex(r"random|shuffle|augment", re.IGNORECASE)
_PURE = ("tensorflow", "numpy", "math", "os", "pathlib", "functools")
"""Libraries in which everything random has a name that says so."""
_MOST_CACHED = 10_000
"""Elements of a range: of more, prepared ones rarely fit in memory."""


class Pipeline(NamedTuple):
    """The calls that make one dataset, first to last."""

    source: Node
    steps: tuple[tuple[str, Node], ...]
    """The methods and their calls."""
    last: Node
    """The whole expression."""

    def has(self, method: str) -> bool:
        """Whether a method is called."""
        return any(name == method for name, _ in self.steps)


def pipelines(code: Code) -> list[Pipeline]:
    """The pipelines of a file: expressions, joined where one continues a name of its function.

    Datasets inside of functions that a pipeline calls (`interleave`) are parts of it.
    """
    parts_of: list[list[Pipeline]] = []
    by_name: dict[tuple[str, int], list[Pipeline]] = {}
    for node in code.nodes:
        is_outermost = not isinstance(code.parents.get(id(node)), cst.Attribute)
        if not isinstance(node, cst.Call) or not is_outermost or code.around(node, cst.Lambda):
            continue
        chain = _chain(node)
        if chain.steps and chain.steps[-1][0] not in _MAKES_DATASET:
            continue  # it asks the dataset something, such as its `cardinality()`
        scope = id(code.around(node, cst.FunctionDef))
        parts = by_name.get((dotted_name(chain.source), scope)) if chain.steps else None
        if parts is None:
            is_source = isinstance(chain.source, cst.Call) and _SOURCE.match(
                code.name(chain.source.func)
            )
            if not is_source:
                continue
            parts = []
            parts_of.append(parts)
        parts.append(chain)
        by_name[code.target(node), scope] = parts
    return [
        Pipeline(
            parts[0].source, tuple(step for part in parts for step in part.steps), parts[-1].last
        )
        for parts in parts_of
    ]


def _chain(node: Node) -> Pipeline:
    steps: list[tuple[str, Node]] = []
    at = node
    while isinstance(at, cst.Call) and isinstance(at.func, cst.Attribute):
        if isinstance(at.func.value, cst.Call) or (
            isinstance(at.func.value, cst.Name) and at.func.value.value not in ("tf", "tensorflow")
        ):
            steps.insert(0, (at.func.attr.value, at))
            at = at.func.value
        else:
            break
    return Pipeline(at, tuple(steps), node)


def _parallel(code: Code, values: Values) -> Iterator[Edit]:
    """Calls of a map's function in parallel; their results stay in order."""
    autotune = _autotune(code)
    for pipeline in pipelines(code) if autotune else ():
        maps = [
            call
            for name, call in pipeline.steps
            if name in ("map", "interleave") and _runs_one_call(call)
        ]
        if maps:
            # Later calls contain earlier ones, which stay the same nodes in their replacements.
            changes = tuple(
                (call, with_argument(call, "num_parallel_calls", autotune))
                for call in reversed(maps)
            )
            yield Edit(maps[-1], f"num_parallel_calls={autotune}", changes)


def _autotune(code: Code) -> str:
    """`tf.data.AUTOTUNE`, by the name under which the file imports TensorFlow; else empty."""
    names = [name for name, origin in code.imports.items() if origin == "tensorflow"]
    return f"{names[0]}.data.AUTOTUNE" if names else ""


def _runs_one_call(call: Node) -> bool:
    given = argument(call, "num_parallel_calls")
    return len(call.args) == 1 if given is None else is_name(given, "None")


def _prefetch(code: Code, values: Values) -> Iterator[Edit]:
    """A prefetch at the end."""
    autotune = _autotune(code)
    for pipeline in pipelines(code) if autotune else ():
        ends = [name for name, _ in pipeline.steps if name not in _TRANSPARENT]
        if ends and ends[-1] != "prefetch" and _is_whole(code, pipeline):
            changed = _called(pipeline.last, "prefetch", autotune)
            yield Edit(pipeline.last, f"prefetch({autotune})", ((pipeline.last, changed),))


def _is_whole(code: Code, pipeline: Pipeline) -> bool:
    """Whether no other expression continues what the pipeline's function returns."""
    function = code.around(pipeline.last, cst.FunctionDef)
    name = function.name.value if function is not None else ""
    return not any(
        code.is_call(_chain(node).source, name)
        for node in code.nodes
        if name and isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute)
    )


def _cache(code: Code, values: Values) -> Iterator[Edit]:
    """A cache after the last map of the first epoch."""
    for pipeline in pipelines(code):
        if pipeline.has("cache") or pipeline.has("snapshot"):
            continue
        early = []
        for name, call in pipeline.steps:
            if name in _BEFORE_CACHE:
                break
            early.append((name, call))
        maps = [call for name, call in early if name == "map"]
        if not maps:
            continue
        why = _why_not_cached(code, pipeline, maps)
        if why:
            yield Edit(maps[-1], unsure=why)
            continue
        note = "All prepared elements of one epoch must fit in memory."
        yield Edit(maps[-1], "cache()", ((maps[-1], _called(maps[-1], "cache")),), note=note)


def _why_not_cached(code: Code, pipeline: Pipeline, maps: list[Node]) -> str:
    source = code.name(pipeline.source.func).rpartition(".")[2]
    if source == "from_generator":
        return "the generator may never end, or differ from one epoch to the next"
    if (
        source == "range"
        and (integer(pipeline.source.args[-1].value) or _MOST_CACHED + 1) > _MOST_CACHED
    ):
        return "the number of elements is unknown or large"
    for call in maps:
        parts = _parts(code, call.args[0].value) if call.args else []
        if any(_RANDOM.search(code.source(part)) for part in parts):
            return "the function is random, so that each epoch must call it"
        elsewhere = [name for part in parts for name in _defined_elsewhere(code, part)]
        if elsewhere:
            return f"`{elsewhere[0]}` is defined elsewhere; it may be random"
    return ""


def _parts(code: Code, function: Node) -> list[Node]:
    """A function that is mapped, and the functions of the file that it uses."""
    definitions = {definition.name.value: definition for definition in code.functions()}
    parts, pending = [function], [function]
    while pending:
        names = {node.value for node in inside(pending.pop()) if isinstance(node, cst.Name)}
        new = [definitions.pop(name) for name in sorted(names & definitions.keys())]
        parts += new
        pending += new
    return parts


def _defined_elsewhere(code: Code, part: Node) -> list[str]:
    """The functions that a part of a mapped function calls and that this file does not define."""
    called = [node.func for node in inside(part) if isinstance(node, cst.Call)]
    if isinstance(part, cst.Name | cst.Attribute):
        called.append(part)
    own = {dotted_name(name) for node in inside(part) for name in bindings(node)}
    known = {definition.name.value for definition in code.functions()} | own | set(dir(builtins))
    return [
        name
        for name in map(dotted_name, called)
        if name
        and name.partition(".")[0] not in known
        and not code.imports.get(name.partition(".")[0], "").startswith(_PURE)
    ]


def _called(node: Node, method: str, value: str = "") -> Node:
    """`node.method(value)`, on a line of its own if the node's own method is."""
    # Move parentheses around the node to the new call.
    func = cst.Attribute(value=node.with_changes(lpar=[], rpar=[]), attr=cst.Name(method))
    if isinstance(node.func, cst.Attribute):
        func = func.with_changes(dot=node.func.dot)
    args = [cst.Arg(expression(value))] if value else []
    return cst.Call(func=func, args=args, lpar=node.lpar, rpar=node.rpar)


FIXES = (
    Fix(
        "parallel-calls",
        ("tf.data", "tensorflow.data"),
        _parallel,
        "Maps that have a number of calls, and functions inside of `interleave`.",
    ),
    Fix(
        "cache",
        ("tf.data", "tensorflow.data"),
        _cache,
        "Functions that are random or defined elsewhere, generators, and large or unknown numbers"
        " of elements.",
    ),
    Fix(
        "prefetch",
        ("tf.data", "tensorflow.data"),
        _prefetch,
        "Pipelines that another function continues.",
    ),
)
