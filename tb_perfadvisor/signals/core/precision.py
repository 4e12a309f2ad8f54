"""The width of the numbers that device compute works with.

The kernel's name (or its HLO) is the best source. If it says nothing, the input types of the
operator that launched the kernel count, if the profile has them. Otherwise the width is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.signals.core.attribution import Attribution
from tb_perfadvisor.signals.core.causes import COMPUTE, OF_PRECISION
from tb_perfadvisor.signals.core.operators import launching_operator, work_operators
from tb_perfadvisor.trace import EventKind, Precision, Trace
from tb_perfadvisor.trace.integer_groups import places_by_value
from tb_perfadvisor.trace.tables import Int32

_WIDTHS = {
    "c10::Half": Precision.BITS_16,
    "c10::BFloat16": Precision.BITS_16,
    "half": Precision.BITS_16,
    "bfloat16": Precision.BITS_16,
    "float": Precision.BITS_32,
    "c10::complex<float>": Precision.BITS_32,
    "double": Precision.BITS_64,
    "c10::complex<double>": Precision.BITS_64,
}
_NARROWEST_FIRST = (Precision.BITS_8, Precision.BITS_16, Precision.BITS_32, Precision.BITS_64)


def width_of_types(dtypes: str) -> Precision:
    """The smallest width among an operator's input types, which semicolons separate."""
    widths = set()
    for dtype in dtypes.split(";"):
        if dtype.startswith("c10::Float8"):
            widths.add(Precision.BITS_8)
        elif dtype in _WIDTHS:
            widths.add(_WIDTHS[dtype])
    return next((width for width in _NARROWEST_FIRST if width in widths), Precision.UNKNOWN)


def effective_precision(trace: Trace, rows: Int32) -> NDArray[np.uint8]:
    """`Precision` of device events; unknown for events that are not kernels; shape (rows,)."""
    named = trace.by_event(trace.kernels.row, trace.kernels.precision, Precision.UNKNOWN)
    precision: NDArray[np.uint8] = named[rows]
    is_unnamed = (precision == Precision.UNKNOWN) & (trace.events.kind[rows] == EventKind.KERNEL)
    if is_unnamed.any() and len(trace.operators.row):
        operator = work_operators(trace, launching_operator(trace), rows[is_unnamed])
        types = np.full(len(trace.events) + 1, -1, dtype=np.int32)
        types[trace.operators.row] = trace.operators.dtypes
        text = types[operator]  # row -1 reads the extra last slot: unknown
        width = np.zeros(len(text), dtype=np.uint8)
        for index, places in places_by_value(text):
            if index >= 0:
                width[places] = width_of_types(trace.strings[index])
        precision = precision.copy()
        precision[is_unnamed] = width
    return precision


def compute_shares(trace: Trace, attribution: Attribution) -> Mapping[Precision, float] | None:
    """Shares of device compute time by width; the recorder's own if it summed them up.

    All widths sum to 1. None without compute, or if the recorder's sums do not tell.
    """
    if trace.totals is not None:
        shares = trace.totals.precision
        return None if shares is None else {width: shares.get(width, 0.0) for width in Precision}
    compute_ns = attribution.total_ns(*COMPUTE)
    if not compute_ns:
        return None
    return {w: attribution.total_ns(cause) / compute_ns for w, cause in OF_PRECISION.items()}
