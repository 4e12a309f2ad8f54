"""How many times a product or a layer gets the same rows."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

_FEWEST_ELEMENTS: Final = 4096
"""Products of less take microseconds."""
_MOST_ROWS: Final = 1 << 17
_MOST_COLUMNS: Final = 64
"""Rows that agree in so many places, evenly spaced, are the same."""
_ADDING: Final = frozenset({"addmm", "addmv"})
"""Their data comes second."""
_BY_ROW: Final = frozenset({"mm", "linear", "_transformer_encoder_layer_fwd", *_ADDING})
_BY_IMAGE: Final = frozenset({"convolution", "conv1d", "conv2d"})
_WORDS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def copies_of_data(name: str, args: Any) -> int:
    """How many times an operator that works on each row, or each image, gets the same ones.

    Args:
        name: Of the operator.
        args: Its arguments.
    """
    if name not in _BY_ROW | _BY_IMAGE:
        return 1
    data = args[1] if name in _ADDING else args[0]
    if data.layout is not torch.strided or data.dim() < 2:
        return 1
    items = data.shape[0] if name in _BY_IMAGE else data.numel() // max(data.shape[-1], 1)
    return copies(data.detach(), items)


def copies(tensor: Tensor, items: int) -> int:
    """How many times all rows come, one after the other or each of them in a row.

    Args:
        tensor: Its content decides, not how it was made.
        items: How many rows it is divided into.

    Returns:
        1 if there is no such order, and for tensors that are too small or too large to look at; 0
        if all of it is one number other than zero: nobody's data looks so.
    """
    words = _WORDS.get(tensor.element_size())
    if not 1 < items <= _MOST_ROWS or tensor.numel() < _FEWEST_ELEMENTS or words is None:
        return 1
    rows = tensor.reshape(items, -1)
    rows = rows[:, :: max(rows.shape[1] // _MOST_COLUMNS, 1)][:, :_MOST_COLUMNS]
    numbers = rows.contiguous().view(words).to(torch.int64)
    found = (numbers * _factors()[: numbers.shape[1]].to(numbers.device)).sum(1)
    if bool((numbers == numbers[0, 0]).all()):
        is_zero = not numbers[0, 0]  # padding, or a state that is not known yet
        return 1 if is_zero else 0
    same = (found == found[0]).nonzero().flatten().tolist()
    if len(same) < 2:
        return 1
    first, second = 0, same[1]
    if second > 1:  # all rows, then all of them again
        period = second - first
        is_regular = items % period == 0 and bool((found.view(-1, period) == found[:period]).all())
        return items // period if is_regular else 1
    run = next((at for at, place in enumerate(same) if at != place), len(same))
    is_regular = items % run == 0
    if not is_regular:
        return 1
    by_run = found.view(-1, run)
    return run if bool((by_run == by_run[:, :1]).all()) else 1


@cache
def _factors() -> Tensor:
    """Odd numbers that look random: sums of products with them tell rows apart."""
    numbers = np.random.default_rng(1).integers(0, 1 << 62, _MOST_COLUMNS) * 2 + 1
    return torch.from_numpy(numbers)
