"""Finds products in graphs of TensorFlow of which gathers read a few numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tb_perfadvisor.instrument.examination.function_graphs import observed_in_graphs, place_of
from tb_perfadvisor.machine.facts import Observed

_PRODUCTS: Final = frozenset({"BatchMatMul", "BatchMatMulV2", "Einsum", "MatMul"})
_GATHERS: Final = frozenset({"GatherNd", "GatherV2"})
_SCATTERS: Final = frozenset({"ScatterNd", "UnsortedSegmentSum"})
"""Gradients of gathers."""
_POINTWISE: Final = frozenset(
    {
        *("AddV2", "BiasAdd", "Cast", "Identity", "Mul", "RealDiv", "Relu", "Sigmoid", "Sub"),
        *("Tanh", "Reshape"),
    }
)
_SIZES: Final = frozenset({"Shape", "ShapeN", "Size", "Rank"})
_MOVES: Final = frozenset({"Cast", "Identity", "Mul", "Reshape", "Transpose"})
_ENDS: Final = frozenset({*_PRODUCTS, "BiasAddGrad", "Sum"})
_UPDATES: Final = ("Assign", "ResourceApply")
_MOST_STEPS: Final = 6
_GRADIENT: Final = "gradient_tape/"


def gathered_products(function: Any) -> list[Observed]:
    """Products of a `tf.function` that has been called, of which gathers alone read a part.

    Their amounts are the parts that are read. What works on the same scores, such as the gradients
    and the updates of the table, is there as well.
    """
    return observed_in_graphs(function, _of_graph)


def _of_graph(graph: Any) -> Iterator[Observed]:
    operations = graph.get_operations()
    for product in operations:
        size = _size(product)
        if product.type not in _PRODUCTS or size is None or _is_gradient(product):
            continue
        pointwise: list[Any] = []
        gathers: list[Any] = []
        if not _is_only_gathered(product, size, pointwise, gathers):
            continue
        read = sum(_size(each) or size for each in gathers) / size
        path, line, function = place_of(gathers[0])
        scatters = [
            each
            for each in operations
            if each.type in _SCATTERS and _is_gradient(each) and _size(each) == size
        ]
        is_of_columns = gathers[0].outputs[0].shape[-1:] != product.outputs[0].shape[-1:]
        backward = [
            each
            for scatter in scatters
            for each in _gradients(scatter, product, is_of_columns=is_of_columns)
        ]
        for operation in (product, *pointwise, *gathers, *backward):
            yield Observed(
                kind="gathered product",
                operator=operation.name,
                path=path,
                line=line,
                function=function,
                share=0.0,
                shapes=" x ".join(map(str, product.outputs[0].shape)),
                amount=min(read, 1.0),
            )


def _is_only_gathered(
    source: Any, size: int, pointwise: list[Any], gathers: list[Any], steps: int = 0
) -> bool:
    """Whether gathers alone read a result, or what pointwise operators make of it."""
    readers = [
        each
        for output in source.outputs
        for each in output.consumers()
        if each.type not in _SIZES and not _is_gradient(each)
    ]
    if any(output is source.outputs[0] for output in source.graph.outputs):
        return False
    for reader in readers:
        if reader.type in _GATHERS and reader.inputs[0].op is source:
            gathers.append(reader)
        elif reader.type in _POINTWISE and _size(reader) == size and steps < _MOST_STEPS:
            pointwise.append(reader)
            if not _is_only_gathered(reader, size, pointwise, gathers, steps + 1):
                return False
        else:
            return False
    return bool(readers)


def _gradients(scatter: Any, product: Any, *, is_of_columns: bool) -> Iterator[Any]:
    """What computes with gradients of all scores, and what updates the table by them."""
    size, table = _size(product), _size(product.inputs[1].op)
    pending = [scatter]
    while pending:
        operation = pending.pop()
        yield operation
        is_of_scores = _size(operation) == size and operation.type not in _ENDS
        # Gathered rows still have a gradient for all of the weights.
        is_of_table = is_of_columns and not is_of_scores and _size(operation) == table
        for reader in (each for output in operation.outputs for each in output.consumers()):
            if is_of_scores:
                is_next = reader.type in _ENDS or _is_moved(reader, size)
            else:
                is_update = reader.type.startswith(_UPDATES) or _is_moved(reader, table)
                is_next = is_of_table and is_update
            if is_next:
                pending.append(reader)


def _is_moved(reader: Any, size: int | None) -> bool:
    return reader.type in _MOVES and _size(reader) == size


def _size(operation: Any) -> int | None:
    """The elements of its first result, where they are known."""
    shape = operation.outputs[0].shape if operation.outputs else None
    known: int | None = shape.num_elements() if shape is not None else None
    return known


def _is_gradient(operation: Any) -> bool:
    return _GRADIENT in operation.name
