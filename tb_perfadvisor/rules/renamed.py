"""Ids that rules had before, so that settings, scripts and notes that name them get an answer."""

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
