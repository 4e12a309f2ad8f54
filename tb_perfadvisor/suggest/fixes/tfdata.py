"""Pipelines of tf.data: calls in parallel, prefetching, caching."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from tb_perfadvisor.suggest.arguments import argument, integer, is_name, with_argument
from tb_perfadvisor.suggest.change import Change, Fix
from tb_perfadvisor.suggest.code import Code, Node, dotted_name, expression

_SOURCE = re.compile(
    r"^tensorflow\.data\.(Dataset\.\w+|\w+Dataset)$|^(\w+\.)*\w+_dataset_from_directory$"
)
_BEFORE_CACHE = frozenset({"repeat", "shuffle", "batch", "padded_batch", "prefetch", "cache"})
_TRANSPARENT = frozenset({"with_options", "apply"})
_RANDOM = re.compile(r"random|shuffle|augment", re.IGNORECASE)
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


def _parallel(code: Code, remedy: str) -> Iterator[Change]:
    """Calls of a map's function in parallel; their results stay in order."""
    for pipeline in pipelines(code):
        maps = [
            call
            for name, call in pipeline.steps
            if name in ("map", "interleave") and _runs_one_call(call)
        ]
        if maps:
            # Later calls contain earlier ones, which stay the same nodes in their replacements.
            changes = tuple(
                (call, with_argument(call, "num_parallel_calls", "tf.data.AUTOTUNE"))
                for call in reversed(maps)
            )
            yield Change(maps[-1], "num_parallel_calls=tf.data.AUTOTUNE", changes)


def _runs_one_call(call: Node) -> bool:
    given = argument(call, "num_parallel_calls")
    return len(call.args) == 1 if given is None else is_name(given, "None")


def _prefetch(code: Code, remedy: str) -> Iterator[Change]:
    """A prefetch at the end."""
    for pipeline in pipelines(code):
        ends = [name for name, _ in pipeline.steps if name not in _TRANSPARENT]
        if ends and ends[-1] != "prefetch" and _is_whole(code, pipeline):
            changed = _called(pipeline.last, "prefetch", "tf.data.AUTOTUNE")
            yield Change(pipeline.last, "prefetch(tf.data.AUTOTUNE)", ((pipeline.last, changed),))


def _is_whole(code: Code, pipeline: Pipeline) -> bool:
    """Whether no other expression continues what the pipeline's function returns."""
    function = code.around(pipeline.last, cst.FunctionDef)
    name = function.name.value if function is not None else ""
    return not any(
        code.is_call(_chain(node).source, name)
        for node in code.nodes
        if name and isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute)
    )


def _cache(code: Code, remedy: str) -> Iterator[Change]:
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
            yield Change(maps[-1], unsure=why)
            continue
        note = "All prepared elements of one epoch must fit in memory."
        yield Change(maps[-1], "cache()", ((maps[-1], _called(maps[-1], "cache")),), note=note)


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
        function = call.args[0].value if call.args else None
        text = code.source(function) if function is not None else ""
        called = {dotted_name(node.func) for node in code.nodes if isinstance(node, cst.Call)}
        for definition in code.functions():
            name = definition.name.value
            if name == text or (re.search(rf"\b{name}\b", text) and name in called):
                text += code.source(definition)
        if _RANDOM.search(text):
            return "the function is random, so that each epoch must call it"
        if isinstance(function, cst.Name) and text == function.value:
            return f"`{text}` is defined elsewhere; it may be random"
    return ""


def _called(node: Node, method: str, value: str = "") -> Node:
    """`node.method(value)`, on a line of its own if the node's own method is."""
    func = cst.Attribute(value=node, attr=cst.Name(method))
    if isinstance(node.func, cst.Attribute):
        func = func.with_changes(dot=node.func.dot)
    args = [cst.Arg(expression(value))] if value else []
    return cst.Call(func=func, args=args)


FIXES = (
    Fix(r"num_parallel_calls", ("tf.data", "tensorflow.data"), _parallel),
    Fix(r"\.cache\(\)", ("tf.data", "tensorflow.data"), _cache),
    Fix(r"\.prefetch\(", ("tf.data", "tensorflow.data"), _prefetch),
)
