"""Which of the devices that a profile lists did anything."""

from __future__ import annotations

from tb_perfadvisor.trace import Device, EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct


def used_devices(trace: Trace) -> tuple[int, ...]:
    """Indices of the devices that ran kernels or collectives, in order; copies alone are no use."""
    rows = trace.rows(EventKind.KERNEL, EventKind.COLLECTIVE)
    devices = distinct(trace.tracks.device[trace.events.track[rows]])
    return tuple(devices[devices >= 0].tolist())


def unused_devices(trace: Trace) -> tuple[Device, ...]:
    """Devices that are described and ran nothing.

    One without so much as a memory size is a place in the file that the recorder kept free, not
    a device that the program could have used.
    """
    used = used_devices(trace)
    return tuple(
        device
        for device in trace.devices
        if device.index not in used
        and not (device.memory_bytes is None and device.multiprocessors is None)
    )
