"""Former ids of rules, so that settings, scripts and notes that name them get an answer."""

from __future__ import annotations

from types import MappingProxyType

RENAMED = MappingProxyType(
    {
        "backward-synchronisation": "backward-synchronization",
        "checkpoint-on-cpu": "recompute",
        "costly-product-order": "excess-work",
        "depthwise-convolution": "grouped-convolution",
        "device-synchronisation": "device-synchronization",
        "double-precision-on-cpu": "double-precision",
        "early-reduction": "exposed-communication",
        "input-imbalance": "straggler",
        "repeated-products": "excess-work",
        "unfused-elementwise": "unfused-operators",
        "unused-results": "excess-work",
    }
)
"""The present id by the former one. An entry stays for good."""

RETIRED = frozenset(
    {
        "attention-in-memory",
        "bias-before-batch-norm",
        "costly-jacobian-mode",
        "costly-metrics",
        "dense-table-gradients",
        "dense-transform",
        "differences-of-pairs",
        "dominant-operators",
        "double-precision-program",
        "explicit-inverse",
        "fft-length",
        "gathered-for-part",
        "gathered-scores",
        "idle-gradients",
        "independent-trips",
        "linear-recurrence",
        "long-convolution",
        "mapped-loop",
        "mapped-samples",
        "masks-from-memory",
        "needless-probabilities",
        "one-hot-lookup",
        "optimizer-state-memory",
        "pairwise-differences",
        "product-order",
        "recomputed-constants",
        "regrown-sequence",
        "repeated-rows",
        "repeated-updates",
        "scatter-bound",
        "scattered-reads",
        "scores-in-memory",
        "slow-operation",
        "slow-product-on-cpu",
        "step-drift",
        "structured-product",
        "subnormal-numbers",
        "twin-products",
        "weights-read-twice",
        "whole-hessian",
        "whole-sort",
    }
)
"""Rules that were removed, because they found too little in real programs. An entry stays."""
