"""Former ids of rules, so that settings, scripts and notes that name them get an answer."""

from __future__ import annotations

from types import MappingProxyType

RENAMED = MappingProxyType(
    {
        "backward-synchronisation": "backward-synchronization",
        "depthwise-convolution": "grouped-convolution",
        "device-synchronisation": "device-synchronization",
        "unfused-elementwise": "unfused-operators",
    }
)
"""The present id by the former one. An entry stays for good."""

RETIRED = frozenset(
    {
        "attention-in-memory",
        "bias-before-batch-norm",
        "costly-metrics",
        "dense-table-gradients",
        "dense-transform",
        "differences-of-pairs",
        "gathered-scores",
        "long-convolution",
        "mapped-samples",
        "one-hot-lookup",
        "product-order",
        "regrown-sequence",
        "repeated-rows",
        "scattered-reads",
        "subnormal-numbers",
        "whole-sort",
    }
)
"""Rules that were removed, because they found too little in real programs. An entry stays."""
