"""Operators that no host can run in the time that they took: they only launched work on a device.

An operator on a device returns when its work is queued, in microseconds whatever its size. On the
CPU it takes as long as its arithmetic, and as reading and writing its tensors.
"""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.operators import Shape, parse_shapes
from tb_perfadvisor.trace import EventKind, Trace
from tb_perfadvisor.trace.integer_groups import group_rows

_FLOP_PER_S = 1e15
"""Two sockets of 128 cores with matrix units reach 0.4e15 in 16 bits."""
_BYTES_PER_S = 2e12
"""Two sockets with twelve channels of the fastest memory reach 1.7e12."""
_CACHED_BYTES = 512 << 20
"""Smaller tensors may stay in the caches of a large server, which are faster than its memory."""
_FEWEST_BYTES_PER_ELEMENT = 2
_WIDTHS = {"float": 4, "double": 8, "c10::bfloat16": 2, "c10::half": 2, "int": 4, "long int": 8}
_PRODUCTS = regex(r"^aten::(?:mm|addmm_?|bmm|baddbmm_?)$")
_ELEMENTWISE = regex(
    r"^aten::(?:add|sub|mul|div|pow|exp|sqrt|rsqrt|neg|tanh|sigmoid|relu|gelu|silu|sin|cos|square)_?$"
)
"""Operators that read their largest input and write as much, whatever the arguments are."""
_STARTED_NS = 100_000_000
"""Reserving memory on the host takes microseconds. The first time on a device starts its runtime,
which takes from a tenth of a second to several seconds."""
_RESERVING = ("aten::empty_strided", "aten::empty")
_COPYING = ("aten::to", "aten::_to_copy", "aten::copy_")
_PRETENDING = regex(r"fake_tensor\.py|Torch-Compiled Region|CompiledFxGraph|_dynamo/")
"""A compiler runs operators on tensors without content, in no time."""


def outruns_hosts(trace: Trace) -> bool:
    """Whether most of the large operators return sooner than any host computes them.

    False without shapes, and if a compiler may have run operators on tensors without content.
    """
    events, table = trace.events, trace.operators
    first, group = group_rows(events.name[table.row], table.shapes, table.dtypes)
    least_ns = [
        _least_ns(trace.name(row), parse_shapes(trace.text(shapes)), trace.text(dtypes))
        for row, shapes, dtypes in zip(
            table.row[first].tolist(),
            table.shapes[first].tolist(),
            table.dtypes[first].tolist(),
            strict=True,
        )
    ]
    least = np.array(least_ns, dtype=float)[group]  # NaN for None
    impossible = (events.duration_ns[table.row] < least).sum()
    if 2 * impossible <= (least >= 0).sum():
        return False
    return not any(_PRETENDING.search(text) for text in trace.strings)


def starts_a_device(trace: Trace) -> bool:
    """Whether a copy to another place began by reserving memory for a tenth of a second or more."""
    events = trace.events
    rows = trace.rows(EventKind.OPERATOR)
    rows = rows[events.duration_ns[rows] >= _STARTED_NS]
    for row in rows.tolist():
        parent = int(events.parent[row])
        if trace.name(row) in _RESERVING and parent >= 0 and trace.name(parent) in _COPYING:
            return True
    return False


def _least_ns(name: str, shapes: tuple[Shape, ...], dtypes: str) -> float | None:
    """The least time that any host needs for an operator; None if that is too short to tell."""
    if _PRODUCTS.match(name):
        matrices = [shape for shape in shapes if len(shape) >= 2][-2:]
        if len(matrices) < 2:
            return None
        flop = 2.0 * np.prod(matrices[0], dtype=float) * matrices[1][-1]
        return flop / _FLOP_PER_S * 1e9 if flop > _FLOP_PER_S / 1e6 else None
    if _ELEMENTWISE.match(name):
        width = _WIDTHS.get(dtypes.split(";")[0], _FEWEST_BYTES_PER_ELEMENT)
        elements = max((np.prod(shape, dtype=float) for shape in shapes if shape), default=0.0)
        if elements * width < _CACHED_BYTES / 2:
            return None
        return float(2 * elements * width / _BYTES_PER_S * 1e9)
    return None
