"""A model of fused attention kernels."""

from __future__ import annotations

import numpy as np

from tb_perfadvisor.hardware import Peaks
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.precision import width_of_types
from tb_perfadvisor.signals.device.unfused_attention import AttentionLayers
from tb_perfadvisor.trace import Precision
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.tables import Float64

_BACKWARD_FLOP = 2.5
"""Relative to forward: five products instead of two, since the scores are recomputed."""
_BACKWARD_TRAFFIC = 2.0
"""Relative to forward: reads inputs, output and its gradient, and writes three gradients."""
_PEAKS = {
    Precision.BITS_16: ("bf16", "fp16"),
    # Unless TF32 is allowed, fused kernels multiply 32-bit numbers on the vector units.
    Precision.BITS_32: ("fp32",),
}
_ITEM_BYTES = {Precision.BITS_16: 2, Precision.BITS_32: 4}


def fused_attention_ns(
    signals: Signals, attention: AttentionLayers, peaks: Peaks, efficiency: float
) -> Float64:
    """Time of a fused kernel, forward and backward of each layer in turn; NaN if unknown.

    Args:
        signals: The worker's facts.
        attention: The attention layers that are computed operator by operator.
        peaks: Of the device.
        efficiency: The share of the peak rate that the kernel reaches.
    """
    heads, queries, keys, size, value = attention.sizes.astype(np.float64).T
    flop = 2 * heads * queries * keys * (size + value)
    elements = heads * (queries + keys) * (size + value)
    rate, item_bytes = _rates_and_sizes(signals, attention, peaks)
    bandwidth = peaks.memory_bandwidth_bytes_per_s or np.nan
    forward = np.fmax(
        flop / (rate * efficiency), elements * item_bytes / (bandwidth * peaks.achievable)
    )
    backward = np.fmax(
        _BACKWARD_FLOP * flop / (rate * efficiency),
        _BACKWARD_TRAFFIC * elements * item_bytes / (bandwidth * peaks.achievable),
    )
    fused: Float64 = np.column_stack((forward, backward)).ravel() * 1e9
    fused[np.isnan(np.repeat(rate, 2))] = np.nan
    return fused


def _rates_and_sizes(
    signals: Signals, attention: AttentionLayers, peaks: Peaks
) -> tuple[Float64, Float64]:
    """Peak rate and bytes per element of each layer's data type; NaN where unknown."""
    table = signals.trace.operators
    types = signals.trace.by_event(table.row, table.dtypes, -1)[attention.first]
    rate, item_bytes = np.full(len(types), np.nan), np.full(len(types), np.nan)
    for text in distinct(types).tolist():
        width = width_of_types(signals.trace.text(text))
        known = (peaks.flop_per_s(name, tensor=name != "fp32") for name in _PEAKS.get(width, ()))
        rate[types == text] = next((peak for peak in known if peak is not None), np.nan)
        item_bytes[types == text] = _ITEM_BYTES.get(width, np.nan)
    return rate, item_bytes
