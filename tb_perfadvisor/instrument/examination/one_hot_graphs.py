"""Finds products by one-hot matrices in the graphs of TensorFlow's compiled functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from tb_perfadvisor.instrument.user_code import is_user_file, shown_path
from tb_perfadvisor.machine.facts import Observed

_MOVES: Final = frozenset({"Cast", "ExpandDims", "Identity", "Reshape", "Squeeze", "Transpose"})
_PRODUCTS: Final = frozenset({"BatchMatMul", "BatchMatMulV2", "Einsum", "MatMul"})
_AFTER: Final = frozenset({"BiasAdd", "Relu", "Sum"})
"""What runs in the same kernel as a product, or only adds its parts up."""
_MOST_STEPS: Final = 6
_MOST_VARIANTS: Final = 2
"""For other shapes, the graph is nearly the same."""
_MOST_OBSERVED: Final = 32


def one_hot_products(function: Any) -> list[Observed]:
    """The products of a `tf.function` that has been called by one-hot matrices.

    Their operators are names in the graph, which recordings show. Their amounts are the rows of the
    tables; what they take is not known here.
    """
    found: dict[str, Observed] = {}
    with suppress(Exception):
        for concrete in function._list_all_concrete_functions()[-_MOST_VARIANTS:]:
            for graph in _graphs(concrete.graph):
                found |= {each.operator: each for each in _of_graph(graph)}
    return list(found.values())[:_MOST_OBSERVED]


def _graphs(graph: Any) -> Iterator[Any]:
    """A function's graph, and those of the functions that it calls."""
    yield graph
    for inner in getattr(graph, "_functions", {}).values():
        with suppress(AttributeError):
            yield inner.graph


def _of_graph(graph: Any) -> Iterator[Observed]:
    for operation in graph.get_operations():
        if operation.type != "OneHot":
            continue
        rows = operation.outputs[0].shape[-1]
        path, line, function = _place(operation)
        for reader in _readers(operation, _MOVES):
            if rows is None or reader.type not in _PRODUCTS:
                continue
            for product in (reader, *(op for op in _readers(reader, ()) if op.type in _AFTER)):
                yield Observed(
                    kind="one-hot",
                    operator=product.name,
                    path=path,
                    line=line,
                    function=function,
                    share=0.0,
                    amount=float(rows),
                )


def _readers(operation: Any, through: frozenset[str] | tuple[str, ...]) -> Iterator[Any]:
    pending = [(operation, 0)]
    while pending:
        source, steps = pending.pop()
        for output in source.outputs:
            for reader in output.consumers():
                if reader.type in through and steps < _MOST_STEPS:
                    pending.append((reader, steps + 1))
                else:
                    yield reader


def _place(operation: Any) -> tuple[str, int, str]:
    """The innermost line of the user's code that made an operation."""
    for frame in reversed(operation.traceback or ()):
        if is_user_file(frame.filename):
            return shown_path(frame.filename), frame.lineno or 1, frame.name
    return "", 1, ""
