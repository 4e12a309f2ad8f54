"""How many cache lines a lookup in a table reads, by how the table lies in memory."""

from __future__ import annotations

from math import ceil, prod
from typing import Any, Final

import torch
from torch import Tensor

_LINE_BYTES: Final = 64
_LEAST_TABLE_BYTES: Final = 4 << 20
"""What fits into a core's second-level cache is read fast, wherever it lies."""
_MOST_NUMBERS: Final = 1 << 20


def lines_read(name: str, args: Any) -> tuple[int, int] | None:
    """The cache lines that `index` or `index_select` reads, now and if each read lay together.

    Args:
        name: Of the operator.
        args: Its arguments.

    Returns:
        None for other operators, for masks, and for tables that are small, sparse, or expanded.
    """
    chosen = _chosen(name, args)
    if chosen is None:
        return None
    table, axis, numbers = chosen
    if table.layout is not torch.strided or 0 in table.stride():
        return None
    bytes_each = table.element_size()
    if table.numel() * bytes_each < _LEAST_TABLE_BYTES or not 1 < numbers.numel() <= _MOST_NUMBERS:
        return None
    together = _run(table, axis)
    others = table.numel() // max(table.shape[axis], 1)
    # Numbers that are neighbors in memory share a line.
    places = numbers.detach().reshape(-1).to(torch.int64) * (table.stride(axis) * bytes_each)
    distinct = int(torch.unique(places // _LINE_BYTES).numel())
    now = distinct * (others // together) * ceil(together * bytes_each / _LINE_BYTES)
    return now, numbers.numel() * ceil(others * bytes_each / _LINE_BYTES)


def _chosen(name: str, args: Any) -> tuple[Tensor, int, Tensor] | None:
    """The table, the axis along which it is read by numbers, and the numbers."""
    if name == "index_select" and len(args) > 2:
        return args[0], args[1] % max(args[0].dim(), 1), args[2]
    if name != "index" or len(args) < 2:
        return None
    by_numbers = [(axis, each) for axis, each in enumerate(args[1]) if each is not None]
    if len(by_numbers) != 1 or by_numbers[0][1].dtype in (torch.bool, torch.uint8):
        return None
    axis, numbers = by_numbers[0]
    return args[0], axis, numbers


def _run(table: Tensor, axis: int) -> int:
    """How many elements lie together for each number."""
    kept: list[tuple[int, int]] = [
        (stride, size)
        for at, (size, stride) in enumerate(zip(table.shape, table.stride(), strict=True))
        if at != axis and size > 1
    ]
    run = 1
    for stride, size in sorted(kept):
        if stride != run:
            break
        run *= size
    return min(run, max(prod(size for _, size in kept), 1))
