"""PyTorch kernels that add values to indexed rows with atomic operations.

Excludes kernels that sort their indices first, such as fbgemm's embeddings: they sum each row
without atomic operations.
"""

from __future__ import annotations

import re
from functools import cache
from math import prod

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.core.operator_shapes import parse_shapes, shapes_of
from tb_perfadvisor.signals.device.device_work import operators_of, work_rows
from tb_perfadvisor.signals.memo import memoized
from tb_perfadvisor.signals.signals import Signals
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.tables import Float64, Int32

_INDEX_BYTES = {"int": 4, "long": 8, "long int": 8}
_VALUE_BYTES = {"double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2}


@cache
def _scatter_kernels() -> re.Pattern[str]:
    """PyTorch's kernels for scatter_add, index_add, and the backward of embeddings and indexing."""
    return re.compile(
        r".*(?:_scatter_gather_elementwise_kernel.*ReduceAdd|indexFunc(?:Large|Small)Index.*ReduceAdd"
        r"|embedding_backward_feature_kernel|EmbeddingBag_accGradParametersKernel)"
    )


class Scatters(Struct, frozen=True):
    """Scatter kernels of the used window, in order of start; columns of shape (n,)."""

    rows: Int32
    traffic_bytes: Float64
    """Indices and values read, and sums read and written once per value; NaN if unknown."""


@memoized
def scatters(signals: Signals) -> Scatters:
    """Kernels that add to indexed rows, and their minimum traffic."""
    trace, events = signals.trace, signals.trace.events
    rows = work_rows(signals)
    rows = rows[events.kind[rows] == EventKind.KERNEL]
    names = distinct(events.name[rows]).tolist()
    scatter_names = [name for name in names if _scatter_kernels().match(trace.strings[name])]
    rows = rows[is_in(events.name[rows], scatter_names)]
    operators = operators_of(signals, rows)
    table = trace.operators
    columns = (
        np.where(operators >= 0, events.name[operators], -1),
        shapes_of(trace, operators),
        np.where(operators >= 0, trace.by_event(table.row, table.dtypes, -1)[operators], -1),
    )
    kinds, inverse = np.unique(np.column_stack(columns), axis=0, return_inverse=True)
    traffic = [_traffic_bytes(*map(trace.text, kind)) for kind in kinds.tolist()]
    return Scatters(rows, np.array(traffic, dtype=np.float64)[inverse.ravel()])


def _traffic_bytes(name: str, shapes: str, dtypes: str) -> float:
    tensors = [
        (prod(shape), dtype)
        for shape, dtype in zip(parse_shapes(shapes), dtypes.split(";"), strict=False)
        if shape
    ]
    if name.endswith("_"):
        # The first input is the target, of which only some rows are updated.
        tensors = tensors[1:]
    indices = sum(count * _INDEX_BYTES.get(dtype, 0) for count, dtype in tensors)
    values = sum(count * _VALUE_BYTES.get(dtype, 0) for count, dtype in tensors)
    return float(indices + 3 * values) if values else float("nan")
