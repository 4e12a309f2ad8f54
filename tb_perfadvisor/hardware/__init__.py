"""Peak rates, bandwidths and memory sizes of accelerators by device name."""

from tb_perfadvisor.hardware.lookup import find_device, known_devices
from tb_perfadvisor.hardware.peaks import DeviceSpec, Peaks

__all__ = ["DeviceSpec", "Peaks", "find_device", "known_devices"]
