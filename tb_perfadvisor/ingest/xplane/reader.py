"""An XSpace file as a trace."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import BinaryIO, Final

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.xplane.devices import describe_device, device_of_plane
from tb_perfadvisor.ingest.xplane.framework import recognise
from tb_perfadvisor.ingest.xplane.gpu import add_gpu_plane, api_copies
from tb_perfadvisor.ingest.xplane.hlo_table import HloOperations
from tb_perfadvisor.ingest.xplane.host import HostContext, add_host_plane
from tb_perfadvisor.ingest.xplane.memory import add_memory
from tb_perfadvisor.ingest.xplane.modules import Programs
from tb_perfadvisor.ingest.xplane.reading import Plane, read_planes
from tb_perfadvisor.ingest.xplane.space import looks_like_plane, read_space, space_notes
from tb_perfadvisor.ingest.xplane.threads import threads_of_api_lines
from tb_perfadvisor.ingest.xplane.tpu import HloRows, add_tpu_plane
from tb_perfadvisor.trace import Assembler, Device, Note, Source, Trace

_THREADS: Final = re.compile(r"/host:(CPU|CUPTI|ROCTRACER|TPU|python-tracer|\w+)")
_NOT_THREADS: Final = frozenset({"/host:metadata", "/host:perf_counters"})
# A line's time is either the wall clock's (after 2001) or counted from the start of the profile.
_EARLIEST_WALL_CLOCK_NS: Final = 10**18


def looks_like_xplane(head: bytes) -> bool:
    """Whether a file's first bytes are those of an XSpace."""
    return looks_like_plane(head)


def read_xplane(stream: BinaryIO, source: Source) -> Trace:
    """Read what one host recorded.

    Args:
        stream: The whole `*.xplane.pb`; one that was cut off is read up to the cut.
        source: Path, run, session and host; the rest is filled in here.

    Raises:
        UnreadableProfileError: When the bytes are no profile, or nothing in them can be read.
    """
    data = stream.read()
    space = read_space(data, where=source.path)
    broken: list[str] = []
    planes = list(read_planes(data, space, broken))
    if not any(plane.name for plane in planes):
        raise UnreadableProfileError(
            "no plane of this profile can be decoded.",
            where=source.path,
            hint="The file is damaged, or is no *.xplane.pb: record the profile again.",
        )
    assembler = Assembler()
    devices, notes = _add_planes(assembler, planes)
    broken_events = sum(line.broken_events for plane in planes for line in plane.lines)
    notes += space_notes(space, broken, broken_events)
    if not any(len(line) for plane in planes for line in plane.lines):
        notes.append(
            Note(
                "no-events",
                "warning",
                "The profile holds no events: nothing ran while it was recorded.",
                "Record while training steps run.",
            )
        )
    recording = recognise(planes)
    filled = replace(
        source,
        format="xplane",
        framework=recording.framework,
        producer=recording.producer,
        version=recording.version,
        host=source.host or (space.hostnames[0] if space.hostnames else ""),
        has_shapes=_has_shapes(planes) or None,
        has_stacks=recording.has_stacks,
        has_memory=recording.has_memory,
        is_synthetic=any(plane.stats.get("perfadvisor_synthetic") == 1 for plane in planes),
    )
    return assembler.finish(
        filled, devices=devices, notes=tuple(notes), clock_unix_ns=_clock(planes)
    )


def _add_planes(assembler: Assembler, planes: list[Plane]) -> tuple[tuple[Device, ...], list[Note]]:
    hosts = [
        plane for plane in planes if _THREADS.match(plane.name) and plane.name not in _NOT_THREADS
    ]
    parts = [(plane, found) for plane in planes if (found := device_of_plane(plane)) is not None]
    types = {type_ for _, (type_, _, _) in parts}
    has_device = any(len(line) for plane, _ in parts for line in plane.lines)
    limits = add_memory(assembler, hosts, first_device=0 if parts else -1)
    table = HloOperations(assembler, Programs(planes))
    for plane in hosts:
        threads = threads_of_api_lines(plane) if "GPU" in types else {}
        context = HostContext(has_device, threads, table)
        add_host_plane(assembler, plane, context)
    copies = api_copies(hosts)
    devices: dict[int, Device] = {}
    hlo_rows: HloRows = {}
    moved: list[int] = []
    for plane, (type_, index, part) in parts:
        device = describe_device(plane, limits.get(index))
        if device is not None:
            devices.setdefault(index, device)
        if type_ == "TPU":
            if add_tpu_plane(assembler, plane, index, hlo_rows, is_core=not part):
                moved.append(index)
        else:
            add_gpu_plane(assembler, plane, index, copies, table)
    notes = []
    if moved:
        names = ", ".join(str(index) for index in sorted(moved))
        notes.append(
            Note(
                "device-clock",
                "info",
                f"The clock of TPU {names} was corrected in the middle of operations, which "
                "stretches them: times of the device's own counter are used, and their place "
                "relative to the host's events is approximate.",
            )
        )
    return tuple(devices[index] for index in sorted(devices)), notes


def _has_shapes(planes: list[Plane]) -> bool:
    """Whether operators tell the shapes of what they work on."""
    return any(
        (plane.name.startswith("/host:") and "shape" in plane.metadata.stat_names.values())
        or (plane.name.startswith("/device:TPU") and any(map(_is_hlo, plane.metadata.names)))
        for plane in planes
    )


def _is_hlo(name: str) -> bool:
    return name.startswith("%") and " = " in name


def _clock(planes: list[Plane]) -> int | None:
    """The wall clock at time 0 of the lines; None when the file does not say."""
    first = min(
        (int(line.start_ns.min()) for plane in planes for line in plane.lines if len(line)),
        default=0,
    )
    if first >= _EARLIEST_WALL_CLOCK_NS:
        return 0
    for plane in planes:
        start = plane.stats.get("profile_start_time")
        if plane.name == "Task Environment" and isinstance(start, int):
            return start if 0 < start < 2**62 else None
    return None
