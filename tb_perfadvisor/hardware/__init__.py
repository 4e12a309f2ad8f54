"""Peak rates, bandwidths and memory sizes of accelerators, and how they are recognized."""

from tb_perfadvisor.hardware.identify import Identity, identify
from tb_perfadvisor.hardware.lookup import (
    DeviceSpec,
    Peaks,
    find_device,
    known_devices,
    named_device,
)

__all__ = [
    "DeviceSpec",
    "Identity",
    "Peaks",
    "find_device",
    "identify",
    "known_devices",
    "named_device",
]
