"""Which devices exist, which of them did any work, and whether a program uses a device at all."""

from __future__ import annotations

import re

import numpy as np

from tb_perfadvisor.trace import BUSY_KINDS, Device, EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct

_OF_DEVICES = ("nccl", "xccl", "hccl")
"""Backends of torch.distributed that only work on devices. A backend that also covers the CPU is
called `cpu:gloo,cuda:nccl`."""
_DEVICE_COLLECTIVE = re.compile(rf"^(?:{'|'.join(_OF_DEVICES)}):")
_HOST_KINDS = (EventKind.ANNOTATION, EventKind.OPERATOR)


def used_devices(trace: Trace) -> tuple[int, ...]:
    """Indices of the devices that ran kernels or collectives, in order.

    Copies alone are no use of a device, unless no device does more.
    """
    computing = _devices_of(trace, (EventKind.KERNEL, EventKind.COLLECTIVE))
    return computing or _devices_of(trace, BUSY_KINDS)


def existing_devices(trace: Trace) -> tuple[int, ...]:
    """Indices of the devices that the program could use: listed ones, and those with events.

    A listed device without even a memory size is a placeholder of the recorder.
    """
    listed = (
        device.index
        for device in trace.devices
        if not (device.memory_bytes is None and device.multiprocessors is None)
    )
    return tuple(sorted({*listed, *_devices_of(trace, BUSY_KINDS)}))


def unused_devices(trace: Trace) -> tuple[Device, ...]:
    """Devices that exist but ran nothing."""
    unused = set(existing_devices(trace)) - set(used_devices(trace))
    return tuple(device for device in trace.devices if device.index in unused)


def shows_device_use(trace: Trace) -> bool:
    """Whether the host's events, or the backend, show that the program works on a device.

    If a trace has no events of a device nevertheless, they were not recorded.
    """
    events = trace.events
    if (events.kind == EventKind.LAUNCH).any() or trace.source.backend in _OF_DEVICES:
        return True
    collectives = [i for i, text in enumerate(trace.strings) if _DEVICE_COLLECTIVE.match(text)]
    rows = trace.rows(*_HOST_KINDS)
    return bool(collectives) and bool(np.isin(events.name[rows], collectives).any())


def _devices_of(trace: Trace, kinds: tuple[EventKind, ...]) -> tuple[int, ...]:
    rows = trace.rows(*kinds)
    devices = distinct(trace.tracks.device[trace.events.track[rows]])
    return tuple(devices[devices >= 0].tolist())
