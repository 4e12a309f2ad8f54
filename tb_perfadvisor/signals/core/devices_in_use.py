"""Which devices exist, which of them did any work, and whether a program uses a device at all."""

from __future__ import annotations

import re

import numpy as np

from tb_perfadvisor.signals.core.host_speed import outruns_hosts, starts_a_device
from tb_perfadvisor.trace import BUSY_KINDS, Device, EventKind, Trace
from tb_perfadvisor.trace.integer_groups import distinct

_OF_DEVICES = ("nccl", "xccl", "hccl")
"""Backends of torch.distributed that only work on devices. A backend that also covers the CPU is
called `cpu:gloo,cuda:nccl`."""
_DEVICE_COLLECTIVE = re.compile(rf"^(?:{'|'.join(_OF_DEVICES)}):")
_DEVICE_CALL = re.compile(
    r"(?:cuda|hip)[A-Z]|aten::_?(?:cudnn|miopen)_(?!is_acceptable)|aten::_thnn_fused"
    r"|aten::_scaled_dot_product_(?:efficient|cudnn)_attention"
)
"""Calls of a runtime, and operators that the CPU does not have. A recurrent layer asks on the CPU,
too, whether cuDNN could run it."""
_CALL_KINDS = (
    EventKind.OPERATOR,
    EventKind.SYNCHRONIZE,
    EventKind.ALLOCATE,
    EventKind.RUNTIME,
)
_REPLICA = re.compile(r"(?:^|/)replica_(\d{1,4})(?:[/_]|$)")
"""`replica_1/dense/MatMul`, as tf.distribute names operations."""
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
    """Devices that exist but show no sign of use.

    Copies are a sign, and so are names of replicas. A program with replicas distributes its batches
    over all devices: a short recording may lack the work of some. Empty if in doubt.
    """
    if _most_replicas(trace) > len(used_devices(trace)):
        return ()
    unused = set(existing_devices(trace)) - set(_devices_of(trace, BUSY_KINDS))
    return tuple(device for device in trace.devices if device.index in unused)


def _most_replicas(trace: Trace) -> int:
    """How many replicas of the model there are at least, by their highest number; 0 for none."""
    numbers = [
        int(found[1]) for text in trace.strings if (found := _REPLICA.search(text)) is not None
    ]
    return max(numbers, default=-1) + 1


def shows_device_use(trace: Trace) -> bool:
    """Whether the host's events, or the backend, show that the program works on a device.

    Launches and other calls of a device's runtime, operators that only devices have, collectives
    of devices, the start of a device's runtime, and operators that return sooner than any host
    computes them. If a trace has no events of a device nevertheless, they were not recorded.
    """
    events = trace.events
    if (events.kind == EventKind.LAUNCH).any() or trace.source.backend in _OF_DEVICES:
        return True
    collectives = [i for i, text in enumerate(trace.strings) if _DEVICE_COLLECTIVE.match(text)]
    rows = trace.rows(*_HOST_KINDS)
    if collectives and np.isin(events.name[rows], collectives).any():
        return True
    calls = distinct(events.name[trace.rows(*_CALL_KINDS)])
    if any(_DEVICE_CALL.match(trace.strings[name]) for name in calls.tolist()):
        return True
    return starts_a_device(trace) or outruns_hosts(trace)


def _devices_of(trace: Trace, kinds: tuple[EventKind, ...]) -> tuple[int, ...]:
    rows = trace.rows(*kinds)
    devices = distinct(trace.tracks.device[trace.events.track[rows]])
    return tuple(devices[devices >= 0].tolist())
