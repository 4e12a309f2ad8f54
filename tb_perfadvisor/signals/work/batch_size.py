"""The number of samples in a forward pass, from the shapes of its operators."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np

from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace.integer_groups import distinct, is_in

_CONVOLUTIONS = ("aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::convolution")
_AGREEMENT = 0.9
"""Share of executions that must have the same batch size. Others may process something else:
positions that all samples share, or regions of an image."""


@memoized
def batch_size(signals: Signals) -> int | None:
    """Samples in a forward pass of one rank; None if the shapes do not tell.

    Convolutions are the most reliable, then embeddings. Linear layers are not used: their rows may
    be samples, tokens or regions.
    """
    trace, operators = signals.trace, signals.operators
    known = distinct(operators.name).tolist()
    for names, batch_in in (
        (_CONVOLUTIONS, _batch_of_convolution),
        (("aten::embedding",), _batch_of_embedding),
    ):
        matching = [name for name in known if trace.strings[name] in names]
        votes: Counter[int] = Counter()
        for row in np.flatnonzero(is_in(operators.name, matching)).tolist():
            batch = batch_in(_shapes(trace.text(int(operators.shapes[row]))))
            if batch is not None:
                votes[batch] += int(operators.count[row])
        if votes:
            batch, count = votes.most_common(1)[0]
            return batch if count >= _AGREEMENT * votes.total() else None
    return None


def _batch_of_convolution(shapes: list[list[int]]) -> int | None:
    """The input's first dimension, if it has as many dimensions as the weight."""
    if len(shapes) < 2 or len(shapes[0]) != len(shapes[1]) or len(shapes[0]) < 3:
        return None
    return shapes[0][0]


def _batch_of_embedding(shapes: list[list[int]]) -> int | None:
    """The first dimension of the indices; None if sequences are packed into one dimension."""
    return shapes[1][0] if len(shapes) >= 2 and len(shapes[1]) == 2 else None


def _shapes(text: str) -> list[list[int]]:
    """The shapes of the inputs; empty for inputs that are not arrays."""
    try:
        inputs = json.loads(text)
    except ValueError:
        return []
    return [_shape(value) for value in inputs] if isinstance(inputs, list) else []


def _shape(value: Any) -> list[int]:
    is_shape = isinstance(value, list) and all(type(size) is int and size > 0 for size in value)
    return value if is_shape else []
