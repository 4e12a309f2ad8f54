"""How many samples a worker takes through the model at a time, as its operators' shapes show."""

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
"""Share of executions that must have the same batch. The rest are parts of a model that work
on something else: positions that all samples share, regions of an image."""


@memoized
def batch_size(signals: Signals) -> int | None:
    """Samples in a forward pass of one worker; None where the shapes don't tell.

    Convolutions tell it surest, then embeddings. A linear layer does not: what it takes may be
    samples, tokens or regions.
    """
    trace, operators = signals.trace, signals.operators
    known = distinct(operators.name).tolist()
    for names, tells in ((_CONVOLUTIONS, _of_convolution), (("aten::embedding",), _of_embedding)):
        own = [name for name in known if trace.strings[name] in names]
        votes: Counter[int] = Counter()
        for row in np.flatnonzero(is_in(operators.name, own)).tolist():
            batch = tells(_shapes(trace.text(int(operators.shapes[row]))))
            if batch is not None:
                votes[batch] += int(operators.count[row])
        if votes:
            batch, count = votes.most_common(1)[0]
            return batch if count >= _AGREEMENT * votes.total() else None
    return None


def _of_convolution(shapes: list[list[int]]) -> int | None:
    """The input's first dimension; one without a batch has a dimension less than the weight."""
    if len(shapes) < 2 or len(shapes[0]) != len(shapes[1]) or len(shapes[0]) < 3:
        return None
    return shapes[0][0]


def _of_embedding(shapes: list[list[int]]) -> int | None:
    """The first dimension of the indices, unless they are packed into one."""
    return shapes[1][0] if len(shapes) >= 2 and len(shapes[1]) == 2 else None


def _shapes(text: str) -> list[list[int]]:
    """The shapes of the inputs; what is no array's is empty."""
    try:
        inputs = json.loads(text)
    except ValueError:
        return []
    return [_shape(one) for one in inputs] if isinstance(inputs, list) else []


def _shape(value: Any) -> list[int]:
    is_shape = isinstance(value, list) and all(type(size) is int and size > 0 for size in value)
    return value if is_shape else []
