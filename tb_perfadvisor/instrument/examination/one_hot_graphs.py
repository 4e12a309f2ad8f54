"""Finds products by one-hot matrices in the graphs of TensorFlow's compiled functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tb_perfadvisor.instrument.examination.function_graphs import observed_in_graphs, place_of
from tb_perfadvisor.machine.facts import Observed

_MOVES: Final = frozenset({"Cast", "ExpandDims", "Identity", "Reshape", "Squeeze", "Transpose"})
_PRODUCTS: Final = frozenset({"BatchMatMul", "BatchMatMulV2", "Einsum", "MatMul"})
_AFTER: Final = frozenset({"BiasAdd", "Relu", "Sum"})
"""What runs in the same kernel as a product, or only adds its parts up."""
_MOST_STEPS: Final = 6


def one_hot_products(function: Any) -> list[Observed]:
    """The products of a `tf.function` that has been called by one-hot matrices.

    Their operators are names in the graph, which recordings show. Their amounts are the rows of the
    tables; what they take is not known here.
    """
    return observed_in_graphs(function, _of_graph)


def _of_graph(graph: Any) -> Iterator[Observed]:
    for operation in graph.get_operations():
        if operation.type != "OneHot":
            continue
        rows = operation.outputs[0].shape[-1]
        path, line, function = place_of(operation)
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
