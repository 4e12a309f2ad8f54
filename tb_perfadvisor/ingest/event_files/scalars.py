"""The scalars of an event file: all of them, and nothing else.

Events are messages (`tensorboard/compat/proto/event.proto` and `summary.proto`): a time, a step,
and a summary of values with a tag each. A value is a scalar if it is a number (TensorFlow 1,
PyTorch) or a tensor with a single one (TensorFlow 2, JAX).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from tb_perfadvisor.trace.tables import Float64, Int64

# Fields of Event, Summary, Summary.Value and TensorProto.
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5
_VALUE = 1
_TAG, _SIMPLE_VALUE, _TENSOR = 1, 2, 8
_DTYPE, _CONTENT, _FLOATS, _DOUBLES, _INTS, _INT64S = 1, 4, 5, 6, 7, 10
# Types of `tensorflow/core/framework/types.proto`, and how numpy calls them.
_TYPES: Final = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 14: "bfloat16", 19: "<f2"}
_NONE: Final = np.empty(0, np.int64)


class _Values(Struct, frozen=True):
    """Scalars of one block; columns of shape (values,)."""

    tag: list[bytes]
    step: Int64
    unix_ns: Int64
    value: Float64
