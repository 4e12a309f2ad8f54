"""Which of the listed devices did any work."""

from __future__ import annotations

from tb_perfadvisor.trace import Device, EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct


def used_devices(trace: Trace) -> tuple[int, ...]:
    """Indices of the devices that ran kernels or collectives, not only copies; in order."""
    rows = trace.rows(EventKind.KERNEL, EventKind.COLLECTIVE)
    devices = distinct(trace.tracks.device[trace.events.track[rows]])
    return tuple(devices[devices >= 0].tolist())


def unused_devices(trace: Trace) -> tuple[Device, ...]:
    """Devices that are listed but ran nothing.

    A device without even a memory size is a placeholder of the recorder, not a device that the
    program could have used.
    """
    used = used_devices(trace)
    return tuple(
        device
        for device in trace.devices
        if device.index not in used
        and not (device.memory_bytes is None and device.multiprocessors is None)
    )
