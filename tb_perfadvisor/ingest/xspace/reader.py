"""Reads an XSpace file as a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import BinaryIO, Final

from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.errors import PerfAdvisorError, UnreadableProfileError
from tb_perfadvisor.ingest.files.access import open_file
from tb_perfadvisor.ingest.files.tree import FileEntry
from tb_perfadvisor.ingest.xspace.decode.messages import FileReader
from tb_perfadvisor.ingest.xspace.decode.space import (
    METADATA,
    Damage,
    Plane,
    Space,
    is_host,
    looks_like_plane,
    outline,
    read_plane,
    read_space,
    space_notes,
)
from tb_perfadvisor.ingest.xspace.interpret.devices import (
    FrameworkClues,
    PlaneDevice,
    add_derived_line,
    describe_device,
    place_devices,
)
from tb_perfadvisor.ingest.xspace.interpret.gpu_planes import (
    ApiCopies,
    add_gpu_plane,
    add_memory,
    has_streams,
)
from tb_perfadvisor.ingest.xspace.interpret.hlo.programs import Programs
from tb_perfadvisor.ingest.xspace.interpret.host_planes import (
    HostContext,
    add_host_plane,
    threads_of_api_lines,
    threads_of_plugin_lines,
)
from tb_perfadvisor.ingest.xspace.interpret.run_links import HostRuns
from tb_perfadvisor.ingest.xspace.interpret.tpu_planes import (
    ClockChanges,
    HloOperations,
    TpuOperations,
    add_tpu_plane,
    has_operations,
)
from tb_perfadvisor.note import Note
from tb_perfadvisor.trace import Assembler, Device, Source, Trace
from tb_perfadvisor.units import format_duration

_ENVIRONMENT: Final = "Task Environment"
_LONGEST_NAME: Final = 100
# The time of a line is either wall-clock time (after 2001) or relative to the profile's start.
_EARLIEST_WALL_CLOCK_NS: Final = 10**18


def looks_like_xplane(head: bytes) -> bool:
    """Whether a file starts like an XSpace."""
    return looks_like_plane(head)


def read_xplane(stream: BinaryIO, source: Source, threads: int = 0) -> Trace:
    """Read the profile of one host.

    The stream is the `*.xplane.pb`. It is read plane by plane if it is seekable. A truncated file
    is read up to its end. `source` has path, run, session and host; the other fields are filled in
    here. `threads` decode the events beside this one, which finds them.
    """
    with ThreadPoolExecutor(threads) if threads else nullcontext() as executor:
        file = FileReader(stream, where=source.path, executor=executor, blocks=1 + threads)
        return _Reader(file, read_space(file, where=source.path), source).read()


class _Reader:
    """Adds planes to a trace one by one; each is freed after it was added."""

    def __init__(self, file: FileReader, space: Space, source: Source) -> None:
        self._file = file
        self._space = space
        self._source = source
        self._assembler = Assembler()
        self._clues = FrameworkClues()
        self._damage = Damage()
        self._programs = Programs(file.budget)
        self._runs = HostRuns()
        self._first_ns: list[int] = []
        self._profile_start_ns: int | None = None
        self._has_shapes = False
        self._is_synthetic = False
        self._estimated_by = ""
        self._places: dict[str, PlaneDevice] = {}
        self._outlines = [outline(file, begin, end) for begin, end in space.planes]
        self._damage.planes += [
            number for number, plane in enumerate(self._outlines) if plane is None
        ]

    def read(self) -> Trace:
        named = {plane.name: plane for plane in self._outlines if plane is not None and plane.name}
        if not named:
            raise UnreadableProfileError(
                "no plane of this profile can be decoded.",
                where=self._source.path,
                hint="The file is damaged or is not an *.xplane.pb: record the profile again.",
            )
        without_lines = [name for name, plane in named.items() if not plane.lines]
        self._places = place_devices(named, without_lines)
        # Programs come first, because operations refer to them. Devices come last, because the
        # host's allocators and calls describe them.
        for plane in self._planes(lambda name: not is_host(name) and name not in self._places):
            self._add_metadata(plane)
        table = HloOperations(self._assembler, self._programs)
        limits, copies = self._add_hosts(table)
        devices, clocks = self._add_devices(limits, copies, table)
        recording = self._clues.recording()
        filled = replace(
            self._source,
            format="xplane",
            framework=recording.framework,
            producer=recording.producer,
            version=recording.version,
            host=self._source.host or next(iter(self._space.hostnames), ""),
            has_shapes=self._has_shapes or None,
            has_stacks=recording.has_stacks,
            has_memory=recording.has_memory,
            is_synthetic=self._is_synthetic,
        )
        trace = self._assembler.finish(
            filled, devices=devices, notes=self._notes(clocks), clock_unix_ns=self._clock()
        )
        trace = replace(
            trace,
            program_memory=self._programs.memory(),
            lookups=self._programs.lookups(),
        )
        # Only GPUs have streams and kernel names.
        is_gpu = any(place.type == "GPU" for place in self._places.values())
        return trace if is_gpu else replace(trace, programs=self._programs.values())

    def _planes(self, is_wanted: Callable[[str], bool]) -> Iterator[Plane]:
        for index, plane_outline in enumerate(self._outlines):
            if plane_outline is not None and is_wanted(plane_outline.name):
                plane = read_plane(self._file, plane_outline)
                if plane is None:
                    self._damage.planes.append(index)
                else:
                    self._clues.add(plane)
                    self._is_synthetic |= plane.stats.get("perfadvisor_synthetic") == 1
                    yield plane

    def _add_metadata(self, plane: Plane) -> None:
        if plane.name == METADATA:
            self._programs.add(plane)
        elif plane.name == _ENVIRONMENT:
            estimated_by = plane.stats.get("perfadvisor_estimated_by")
            if isinstance(estimated_by, str):
                self._estimated_by = estimated_by[:_LONGEST_NAME]
            start = plane.stats.get("profile_start_time")
            if isinstance(start, int) and 0 < start < 2**62:
                self._profile_start_ns = start

    def _add_hosts(self, table: HloOperations) -> tuple[dict[int, int], ApiCopies]:
        """Add host threads; returns memory limits of devices and copies that calls launched."""
        has_device = any(
            plane_outline.has_events(self._file)
            for plane_outline in self._outlines
            if plane_outline is not None and plane_outline.name in self._places
        )
        has_gpu = any(place.type == "GPU" for place in self._places.values())
        first_device = min((place.index for place in self._places.values()), default=-1)
        limits: dict[int, int] = {}
        copies = ApiCopies()
        for plane in self._planes(is_host):
            self._inspect_lines(plane)
            self._has_shapes |= "shape" in plane.stat_names
            threads = threads_of_plugin_lines(plane)
            if has_gpu:
                threads |= threads_of_api_lines(plane)
            add_memory(self._assembler, plane, limits, first_device, threads)
            has_tpu = bool(self._places) and not has_gpu
            context = HostContext(has_device, has_tpu, threads, table, self._runs)
            add_host_plane(self._assembler, plane, context)
            copies.add(plane)
        return limits, copies

    def _add_devices(
        self, limits: dict[int, int], copies: ApiCopies, table: HloOperations
    ) -> tuple[tuple[Device, ...], dict[int, ClockChanges]]:
        """Add device planes; returns the devices and how their times were changed, by index."""
        devices: dict[int, Device] = {}
        clocks: dict[int, ClockChanges] = {}
        operations = TpuOperations(self._assembler, self._programs)
        for plane in self._planes(lambda name: name in self._places):
            self._inspect_lines(plane)
            place = self._places[plane.name]
            device = describe_device(plane, place, limits.get(place.index) or None)
            if device is not None:
                devices.setdefault(place.index, device)
            is_gpu, is_tpu = place.type == "GPU", place.type == "TPU"
            # Devices of plug-ins record either like a GPU or like a TPU.
            is_tpu |= not is_gpu and has_operations(plane) and not has_streams(plane)
            if place.part and not is_tpu:
                for line in plane.lines:
                    add_derived_line(self._assembler, line, place.index)
            elif is_tpu:
                self._has_shapes |= any(map(_is_hlo, plane.metadata.names))
                is_core = not place.part
                clocks[place.index] = add_tpu_plane(
                    self._assembler, plane, place.index, operations, self._runs, is_core=is_core
                )
            else:
                add_gpu_plane(self._assembler, plane, place.index, copies, table, is_known=is_gpu)
        return tuple(devices[index] for index in sorted(devices)), clocks

    def _inspect_lines(self, plane: Plane) -> None:
        self._damage.events += plane.broken_events
        self._damage.lines += plane.damaged_lines
        if len(plane.events):
            self._first_ns.append(int(plane.events.start_ns.min()))

    def _clock(self) -> int | None:
        """The wall-clock time at time 0 of the lines; None if unknown."""
        if min(self._first_ns, default=0) >= _EARLIEST_WALL_CLOCK_NS:
            return 0
        return self._profile_start_ns

    def _notes(self, clocks: dict[int, ClockChanges]) -> tuple[Note, ...]:
        notes = []
        if self._estimated_by:
            notes.append(
                Note(
                    "estimated-durations",
                    "info",
                    "This program was compiled, but no device ran it: all durations are estimates "
                    f"of {self._estimated_by}.",
                )
            )
        shifted = {index: change.shift_ns for index, change in clocks.items() if change.shift_ns}
        if shifted:
            amounts = ", ".join(
                f"TPU {index} by {format_duration(abs(shift_ns))}"
                for index, shift_ns in sorted(shifted.items())
            )
            notes.append(
                Note(
                    "device-clock-shift",
                    "info",
                    "By the clocks in the file, programs ran before they were launched, or after "
                    f"calls that waited for them had returned. The times were moved: {amounts}.",
                )
            )
        moved = sorted(index for index, change in clocks.items() if change.is_by_counter)
        if moved:
            names = ", ".join(map(str, moved))
            notes.append(
                Note(
                    "device-clock",
                    "info",
                    f"The clock of TPU {names} was corrected during operations, which distorts "
                    "durations. The times of the device's counter are used instead; their position "
                    "relative to host events is approximate.",
                )
            )
        notes += space_notes(self._space, self._damage)
        if not self._first_ns:
            notes.append(
                Note(
                    "no-events",
                    "warning",
                    "The profile has no events: nothing ran while it was recorded.",
                    "Record while training steps run.",
                )
            )
        return tuple(notes)


def _is_hlo(name: str) -> bool:
    return name.startswith("%") and " = " in name


_MAX_COMPLAINTS = 4


class Integrity(Struct, frozen=True):
    """The problems of an xplane."""

    broken: str = ""
    """Why it cannot be read completely; empty if it can."""
    complaints: tuple[str, ...] = ()
    """The first errors and warnings of its profiler."""


def check_integrity(root: str, file: FileEntry) -> Integrity:
    """Check a local xplane. Skips the content of planes, so the size of the file hardly matters."""
    name = file.path.rsplit("/", 1)[-1]
    try:
        with open_file(root, file) as stream:
            space = read_space(FileReader(stream, where=name), where=name)
    except PerfAdvisorError as error:
        return Integrity(f"{error.message} {error.hint}".rstrip())
    cut = "it is truncated. Copy it again from where it was written."
    complaints = (*space.errors, *space.warnings)[:_MAX_COMPLAINTS]
    return Integrity(cut if space.is_truncated else "", complaints)
