"""The devices of a trace, and which of them are used."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.hardware import Identity, Peaks, identify, named_device
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.core.host_speed import outruns_hosts, starts_a_device
from tb_perfadvisor.trace import BUSY_KINDS, Device, EventKind, Trace, TrackKind
from tb_perfadvisor.trace.integer_groups import distinct, is_in, places_by_value, row_mask
from tb_perfadvisor.trace.intervals import EMPTY, Intervals, total_ns
from tb_perfadvisor.trace.tables import Int32

_OF_DEVICES = ("nccl", "xccl", "hccl")
"""Backends of torch.distributed that only work on devices. A backend that also covers the CPU is
called `cpu:gloo,cuda:nccl`."""
_DEVICE_COLLECTIVE = regex(rf"^(?:{'|'.join(_OF_DEVICES)}):")
_DEVICE_CALL = regex(
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
_REPLICA = regex(r"(?:^|/)replica_(\d{1,4})(?:[/_]|$)")
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
    listed = (device.index for device in trace.devices if _is_real(device))
    return tuple(sorted({*listed, *_devices_of(trace, BUSY_KINDS)}))


def _is_real(device: Device) -> bool:
    return device.memory_bytes is not None or device.multiprocessors is not None


def unused_devices(trace: Trace) -> tuple[Device, ...]:
    """Devices that exist but show no sign of use.

    Copies are a sign, and so are names of replicas. A program with replicas distributes its batches
    over all devices: a short recording may lack the work of some. Empty if in doubt.
    """
    if _most_replicas(trace) > len(used_devices(trace)):
        return ()
    busy = _devices_of(trace, BUSY_KINDS)
    return tuple(each for each in trace.devices if _is_real(each) and each.index not in busy)


def _most_replicas(trace: Trace) -> int:
    """How many replicas of the model there are at least, by their highest number; 0 for none."""
    numbers = [
        int(found[1])
        for text in trace.strings
        if "replica_" in text and (found := _REPLICA.search(text)) is not None
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
    if collectives and is_in(events.name[rows], collectives).any():
        return True
    calls = distinct(events.name[trace.rows(*_CALL_KINDS)])
    if any(_DEVICE_CALL.match(trace.strings[name]) for name in calls.tolist()):
        return True
    return starts_a_device(trace) or outruns_hosts(trace)


def _devices_of(trace: Trace, kinds: tuple[EventKind, ...]) -> tuple[int, ...]:
    has_events = np.zeros(len(trace.tracks.device), dtype=bool)
    for kind in kinds:
        has_events |= row_mask(len(has_events), trace.events.track[trace.rows(kind)])
    devices = distinct(trace.tracks.device[has_events])
    return tuple(devices[devices >= 0].tolist())


class DeviceTimeline(Struct, frozen=True):
    """Events of the busiest device of a trace; empty if the trace has no device work."""

    index: int | None
    """Device index; None on the CPU, and if device events are missing."""
    rows: Int32
    """Rows of its work (`BUSY_KINDS`) without containers, in order of start."""
    containers: Int32
    """Rows of ops that only hold other ops (an XLA while loop)."""
    waits: Intervals
    """When it waits in infeed or outfeed: idle, although the file shows an op."""
    busy: Intervals
    """Union of its work."""
    used: int
    """How many devices of the trace ran kernels or collectives."""
    is_missing: bool
    """Whether the program used a device but the profile has no events of it."""

    @property
    def is_host_only(self) -> bool:
        """Whether the program ran on the CPU alone."""
        return self.index is None and not self.is_missing


class DeviceFacts(Struct, frozen=True):
    """What is known about the device itself; None if unknown."""

    name: str
    """To show to users; empty if nothing tells what it is."""
    kind: str
    memory_bytes: int | None
    multiprocessors: int | None
    peaks: Peaks | None
    link_bandwidth_bytes_per_s: float | None
    """Per device and direction, within a node."""
    direct_links: int | None
    """Number of direct links to neighbors; None behind a switch, or if unknown."""
    architecture: str
    """Compute capability (NVIDIA) or gfx target (AMD); empty when unknown."""
    link: str
    """Kind of link: nvlink, xgmi, ici, pcie; empty when unknown."""
    host_link: str
    """The link to the host, such as `PCIe 5.0 x16`; empty when unknown."""
    host_link_bandwidth_bytes_per_s: float | None
    """What a copy from pinned memory reaches over it."""
    compute_capability: str = ""
    """As the file says, as in `9.4`; empty when unknown."""
    vendor: str = ""
    """nvidia, amd, google or intel; empty when unknown."""
    evidence: str = ""
    """What it was recognized by; empty if the profile names it."""
    candidates: tuple[str, ...] = ()
    """The devices that it may be, if several fit."""


def device_timeline(trace: Trace) -> DeviceTimeline:
    """The busiest device of a trace."""
    events = trace.events
    streams = trace.tracks.kind == TrackKind.DEVICE_STREAM
    rows = trace.rows(*BUSY_KINDS)
    rows = rows[streams[events.track[rows]]]
    device_of = trace.tracks.device[events.track[rows]]
    busiest, busy = None, EMPTY
    for device, places in places_by_value(device_of):
        device_rows = rows[places]
        intervals = events.spans(device_rows)
        if busiest is None or total_ns(intervals) > total_ns(busy):
            busiest, busy = device, intervals
    if busiest is None:
        # The program used a device that the recording lacks, or at least could see one. That is
        # different from a program on the CPU.
        is_missing = bool(trace.devices) or shows_device_use(trace)
        empty = np.empty(0, dtype=np.int32)
        return DeviceTimeline(None, empty, empty, EMPTY, EMPTY, 0, is_missing)
    device_rows = rows[device_of == busiest]
    parents = events.parent[device_rows]
    is_parent = row_mask(len(events), parents[parents >= 0])
    # Only XLA ops hold others. A kernel that seems to enclose its neighbor because clocks are
    # rounded is still a kernel.
    is_container = is_parent[device_rows] & (events.kind[device_rows] == EventKind.KERNEL)
    is_container &= row_mask(len(events), trace.hlo_events.row)[device_rows]
    waits = trace.rows(EventKind.INFEED_WAIT)
    waits = waits[trace.tracks.device[events.track[waits]] == busiest]
    leaf = device_rows[~is_container]
    used = len(used_devices(trace))
    return DeviceTimeline(
        index=busiest,
        rows=leaf,
        containers=device_rows[is_container],
        waits=events.spans(waits),
        busy=events.spans(leaf),
        # If the recorder summed up all devices, one timeline stands for all.
        used=used if trace.totals is None else max(len(trace.devices), used),
        is_missing=False,
    )


def device_facts(trace: Trace, index: int | None, chosen: str | None = None) -> DeviceFacts | None:
    """What the file and the hardware table say about a device; None without a device.

    The device that the user has `chosen` counts, whatever the file says.
    """
    if index is None:
        return None
    device = next((d for d in trace.devices if d.index == index), Device(index, "", "other"))
    if chosen is not None:
        spec = named_device(chosen)
        identity = Identity(spec.name, spec.vendor, spec.architecture, spec, CHOSEN)
        described = replace(
            device,
            kind=spec.kind,
            multiprocessors=device.multiprocessors or spec.multiprocessors,
        )
        return _facts(described, identity)
    return _facts(device, identify(device, lambda: _kernel_names(trace)))


CHOSEN = "your setting"
"""The evidence for a device that the user names."""


def _kernel_names(trace: Trace) -> list[str]:
    names = distinct(trace.events.name[trace.kernels.row])
    return [trace.strings[name] for name in names.tolist()]


_PART = 0.75
"""A plane that states less than this share of a chip's peak describes one of its cores."""


def _of_its_part(peaks: Peaks, device: Device) -> Peaks:
    """Peaks of what a plane of a TPU describes: the chip of the device table, or one of its cores.

    XProf lists the two cores of a TPU v5 separately, each with half of the chip's peak.
    """
    stated, known = device.reported_flop_per_s, peaks.flop_per_s("bf16")
    if device.kind != "tpu" or stated is None or known is None or stated >= _PART * known:
        return peaks
    share = stated / known
    return replace(
        peaks,
        tensor={name: rate * share for name, rate in peaks.tensor.items()},
        memory_bandwidth_bytes_per_s=device.reported_bandwidth_bytes_per_s
        or peaks.memory_bandwidth_bytes_per_s,
    )


def _facts(device: Device, identity: Identity) -> DeviceFacts:
    spec = identity.spec
    peaks = _of_its_part(spec.peaks, device) if spec else None
    if peaks is None and device.reported_flop_per_s is not None:
        peaks = Peaks.from_plane(
            flop_per_s=device.reported_flop_per_s,
            memory_bandwidth_bytes_per_s=device.reported_bandwidth_bytes_per_s,
        )
    return DeviceFacts(
        name=identity.name,
        kind=device.kind,
        memory_bytes=device.memory_bytes or (spec.memory_bytes if spec else None),
        multiprocessors=device.multiprocessors or (spec.multiprocessors if spec else None),
        peaks=peaks,
        link_bandwidth_bytes_per_s=spec.link_bandwidth_bytes_per_s if spec else None,
        direct_links=spec.direct_links if spec else None,
        architecture=identity.architecture,
        link=spec.link if spec else "",
        host_link=spec.host_link if spec else "",
        host_link_bandwidth_bytes_per_s=spec.host_link_bandwidth_bytes_per_s if spec else None,
        compute_capability=device.compute_capability,
        vendor=identity.vendor,
        evidence=identity.evidence,
        candidates=identity.candidates,
    )
