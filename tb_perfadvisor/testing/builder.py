"""A fluent builder of traces, for what a drawing cannot show.

    trace = (
        TraceBuilder()
        .device("NVIDIA H100 80GB HBM3", multiprocessors=132)
        .step(0, ms(0), ms(10))
        .operator("aten::mm", ms(1), ms(2), shapes=[[8, 128], [128, 64]], dtypes=["float"] * 2)
        .kernel("ampere_sgemm_128x64_nn", ms(2), ms(9), precision=Precision.BITS_32)
        .build()
    )

A device event without `launched_by` is launched by the latest launch at or before its start, on any
host thread: a call of `launch`, or an operator, which then gets a launch call inside.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.note import Note
from tb_perfadvisor.testing import symbols
from tb_perfadvisor.testing.symbols import Symbol
from tb_perfadvisor.trace import (
    Assembler,
    CopyDirection,
    Device,
    EventKind,
    Framework,
    KernelFamily,
    Precision,
    Run,
    Source,
    Trace,
    TrackKind,
)
from tb_perfadvisor.trace.kinds import FIRST_DEVICE_KIND
from tb_perfadvisor.units import NS_PER_MS, NS_PER_US

_STRINGS = {
    "operation", "dtype", "group", "description", "ranks", "shapes", "dtypes", "values", "frame",
    "module", "category", "text", "source_line", "path", "dataset", "types",
    "inside_opcodes", "inside_paths", "product",
}  # fmt: skip
_LAUNCH_NAMES = {
    EventKind.KERNEL: "cudaLaunchKernel",
    EventKind.COLLECTIVE: "cudaLaunchKernelExC",
    EventKind.COPY: "cudaMemcpyAsync",
    EventKind.MEMSET: "cudaMemsetAsync",
}


class Track(Struct, frozen=True):
    """Where an event is placed."""

    kind: TrackKind
    label: str
    thread: int
    device: int = -1
    process: str = ""


class Placed(Struct):
    """An event, with links to other events by their keys."""

    symbol: Symbol
    start_ns: int
    end_ns: int
    track: Track
    step: int = -1
    key: str = ""
    launched_by: str | None = None
    forward: str = ""

    @property
    def is_device_work(self) -> bool:
        """Whether it is device work; waits are not."""
        return FIRST_DEVICE_KIND <= self.symbol.kind < EventKind.DEVICE_SYNC


def assemble(
    source: Source,
    events: Sequence[Placed],
    memory: Sequence[tuple[dict[str, int], Track | None]],
    *,
    devices: tuple[Device, ...],
    notes: tuple[Note, ...],
) -> Trace:
    """Make a trace of events, and of memory changes with their threads."""
    assembler = Assembler()
    launcher = _launchers(events)
    called = {index: _called(source, events, index, launcher) for index in set(launcher.values())}
    ids: dict[int, int] = {}
    hlo_rows: dict[tuple[Any, ...], int] = {}
    numbers = {index: number for number, index in enumerate(sorted(called), start=1)}
    for index, event in enumerate(events):
        correlation = -1
        if index in launcher:
            correlation = numbers[launcher[index]]
        elif index in numbers and not event.symbol.launches:
            correlation = numbers[index]
        ids[index] = _add_event(assembler, event, correlation)
        if index in numbers and event.symbol.launches:
            _add_event(assembler, _launch_in(event, called[index]), numbers[index])
        _add_attributes(assembler, ids[index], event, hlo_rows)
    by_key = _by_key(events)
    for index, event in enumerate(events):
        if event.forward:
            assembler.link_forward([ids[index]], [ids[by_key[event.forward]]])
    for row, thread in memory:
        track = -1 if thread is None else _track(assembler, thread)
        assembler.add_memory(track=track, **row)
    return assembler.finish(
        source, devices=devices, notes=notes, clock_unix_ns=source.origin_unix_ns
    )


def _by_key(events: Sequence[Placed]) -> dict[str, int]:
    return {event.key: index for index, event in enumerate(events) if event.key}


def _launchers(events: Sequence[Placed]) -> dict[int, int]:
    """The index of the launching event, by the index of the device event."""
    by_key = _by_key(events)
    candidates = sorted(
        (event.start_ns, index)
        for index, event in enumerate(events)
        if event.symbol.kind == EventKind.LAUNCH or event.symbol.launches
    )
    launchers: dict[int, int] = {}
    for index, event in enumerate(events):
        if event.launched_by is not None:
            if event.launched_by:
                launchers[index] = by_key[event.launched_by]
        elif event.is_device_work:
            earlier = [candidate for start, candidate in candidates if start <= event.start_ns]
            if earlier:
                launchers[index] = earlier[-1]
    return launchers


def _called(
    source: Source, events: Sequence[Placed], launcher: int, launchers: dict[int, int]
) -> str:
    """The name of the runtime call inside an operator, by the first event that it launches."""
    if source.framework == "jax":
        return "DoEnqueueProgram"
    first = min(index for index, by in launchers.items() if by == launcher)
    return _LAUNCH_NAMES.get(events[first].symbol.kind, "cudaLaunchKernel")


def _add_event(assembler: Assembler, event: Placed, correlation: int) -> int:
    track = event.track
    added = assembler.add_events(
        event.start_ns,
        event.end_ns - event.start_ns,
        kind=event.symbol.kind,
        name=assembler.intern(event.symbol.name),
        track=_track(assembler, track),
        step=event.step,
        correlation=correlation,
    )
    return int(added[0])


def _add_attributes(
    assembler: Assembler, id_: int, event: Placed, hlo_rows: dict[tuple[Any, ...], int]
) -> None:
    symbol = event.symbol
    for columns, add in (
        (symbol.kernel, assembler.add_kernels),
        (symbol.copy, assembler.add_copies),
        (symbol.collective, assembler.add_collectives),
        (symbol.operator, assembler.add_operators),
        (symbol.iterator, assembler.add_iterators),
    ):
        if columns:
            add([id_], **_interned(assembler, columns))
    if symbol.hlo or event.track.label == "XLA Ops":
        key = (symbol.name, *sorted(symbol.hlo.items()))
        if key not in hlo_rows:
            rows = assembler.add_hlo(
                [assembler.intern(symbol.name)], **_interned(assembler, symbol.hlo)
            )
            hlo_rows[key] = int(rows[0])
        assembler.add_hlo_events([id_], [hlo_rows[key]])


def _track(assembler: Assembler, track: Track) -> int:
    return assembler.add_track(
        track.kind,
        process=track.process,
        thread=track.thread,
        device=track.device,
        label=track.label,
    )


def _interned(assembler: Assembler, columns: Mapping[str, Any]) -> dict[str, Any]:
    """One row of a table: texts as indices, each column of shape (1,)."""
    return {
        name: [assembler.intern(value) if name in _STRINGS else value]
        for name, value in columns.items()
    }


def _launch_in(event: Placed, name: str) -> Placed:
    """The launch at the beginning of an operator: its first quarter."""
    quarter = max((event.end_ns - event.start_ns) // 4, 1)
    symbol = symbols.host(name, EventKind.LAUNCH)
    return Placed(symbol, event.start_ns, event.start_ns + quarter, event.track)


_FIRST_THREAD = 1001


def ms(milliseconds: float) -> int:
    """Milliseconds as integer nanoseconds."""
    return round(milliseconds * NS_PER_MS)


def us(microseconds: float) -> int:
    """Microseconds as integer nanoseconds."""
    return round(microseconds * NS_PER_US)


Builder = TypeVar("Builder", bound="TraceBuilder")


class TraceBuilder:
    """Collects events and their attributes; every method returns the builder."""

    def __init__(self, framework: Framework = "pytorch", **source: Any) -> None:
        """Start empty.

        Args:
            framework: What recorded the trace.
            **source: Fields of `Source`; its origin is the origin of the times given here.
        """
        self._source = Source(path="drawn", format="drawn", framework=framework, is_synthetic=True)
        self._events: list[Placed] = []
        self._devices: list[Device] = []
        self._memory: list[tuple[dict[str, int], Track | None]] = []
        self._notes: list[Note] = []
        self._threads: dict[str, int] = {}
        self.source(**source)

    def source(self: Builder, **values: Any) -> Builder:
        """Set fields of `Source`, such as rank, world_size, backend and has_shapes."""
        known = set(Source.__struct_fields__)
        if unknown := values.keys() - known:
            raise TypeError(f"Source has no field {sorted(unknown)}")
        self._source = replace(self._source, **values)
        return self

    def device(
        self: Builder,
        name: str,
        *,
        kind: Literal["gpu", "tpu", "other"] = "gpu",
        index: int | None = None,
        **facts: Any,
    ) -> Builder:
        """Describe an accelerator; facts are fields of `Device`."""
        place = len(self._devices) if index is None else index
        return self.add_device(Device(index=place, name=name, kind=kind, **facts))

    def add_device(self: Builder, device: Device) -> Builder:
        """Add an accelerator as a reader would describe it."""
        self._devices.append(device)
        return self

    def note(self: Builder, note: Note) -> Builder:
        """Add a note, as a reader would."""
        self._notes.append(note)
        return self

    def step(
        self: Builder,
        number: int,
        start_ns: int,
        end_ns: int,
        *,
        name: str = "",
        thread: str = "main",
    ) -> Builder:
        """Mark a step on a host thread, as the framework names it."""
        name = name or symbols.step_name(self._source.framework, number)
        symbol = symbols.host(name, EventKind.STEP)
        return self.add(symbol, start_ns, end_ns, thread=thread, step=number)

    def host(
        self: Builder,
        kind: EventKind,
        name: str,
        start_ns: int,
        end_ns: int,
        *,
        thread: str = "main",
        key: str = "",
    ) -> Builder:
        """Any event on a host thread."""
        return self.add(symbols.host(name, kind), start_ns, end_ns, thread=thread, key=key)

    def annotation(
        self: Builder, name: str, start_ns: int, end_ns: int, *, thread: str = "main"
    ) -> Builder:
        """A named range."""
        return self.host(EventKind.ANNOTATION, name, start_ns, end_ns, thread=thread)

    def launch(
        self: Builder,
        start_ns: int,
        end_ns: int,
        *,
        name: str = "cudaLaunchKernel",
        thread: str = "main",
        key: str = "",
    ) -> Builder:
        """A call that enqueues device work; `key` lets an event name it in `launched_by`."""
        return self.host(EventKind.LAUNCH, name, start_ns, end_ns, thread=thread, key=key)

    def synchronize(
        self: Builder,
        start_ns: int,
        end_ns: int,
        *,
        name: str = "cudaStreamSynchronize",
        thread: str = "main",
    ) -> Builder:
        """A call that waits for the device."""
        return self.host(EventKind.SYNCHRONIZE, name, start_ns, end_ns, thread=thread)

    def operator(
        self: Builder,
        name: str,
        start_ns: int,
        end_ns: int,
        *,
        thread: str = "main",
        shapes: Sequence[Sequence[int]] | None = None,
        dtypes: Sequence[str] | None = None,
        values: Sequence[str] | None = None,
        launches: bool = True,
        key: str = "",
        forward: str = "",
        **columns: Any,
    ) -> Builder:
        """An operator; further columns are those of `OperatorTable` (frame, module, sequence)."""
        if shapes is not None:
            columns["shapes"] = json.dumps(shapes, separators=(",", ":"))
        if dtypes is not None:
            columns["dtypes"] = ";".join(dtypes)
        if values is not None:
            columns["values"] = json.dumps(values)
        symbol = symbols.operator(name, launches=launches, **columns)
        return self.add(symbol, start_ns, end_ns, thread=thread, key=key, forward=forward)

    def kernel(
        self: Builder,
        name: str,
        start_ns: int,
        end_ns: int,
        *,
        device: int = 0,
        stream: int = 7,
        family: KernelFamily = KernelFamily.OTHER,
        precision: Precision = Precision.UNKNOWN,
        launched_by: str | None = None,
        **columns: Any,
    ) -> Builder:
        """A kernel; further columns are those of `KernelTable`."""
        symbol = symbols.kernel(name, family=family, precision=precision, **columns)
        return self.add(
            symbol, start_ns, end_ns, device=device, stream=stream, launched_by=launched_by
        )

    def copy(
        self: Builder,
        direction: CopyDirection,
        start_ns: int,
        end_ns: int,
        *,
        size_bytes: int = -1,
        pageable: int = -1,
        name: str = "",
        device: int = 0,
        stream: int = 7,
        launched_by: str | None = None,
    ) -> Builder:
        """A copy, named as CUPTI names it."""
        symbol = symbols.copy(
            name or _copy_name(direction, pageable),
            direction,
            size_bytes=size_bytes,
            pageable=pageable,
        )
        return self.add(
            symbol, start_ns, end_ns, device=device, stream=stream, launched_by=launched_by
        )

    def collective(
        self: Builder,
        name: str,
        start_ns: int,
        end_ns: int,
        *,
        operation: str = "all-reduce",
        device: int = 0,
        stream: int = 20,
        thread: str = "",
        launched_by: str | None = None,
        **columns: Any,
    ) -> Builder:
        """A collective on a stream or, with `thread`, on the host."""
        symbol = symbols.collective(name, operation, on_host=bool(thread), **columns)
        if thread:
            return self.add(symbol, start_ns, end_ns, thread=thread)
        return self.add(
            symbol, start_ns, end_ns, device=device, stream=stream, launched_by=launched_by
        )

    def memory(
        self: Builder,
        at_ns: int,
        change_bytes: int,
        *,
        allocated_bytes: int = -1,
        reserved_bytes: int = -1,
        device: int = 0,
        address: int = -1,
        thread: str = "",
    ) -> Builder:
        """A change of allocated memory, with the totals after it."""
        row = {"at_ns": at_ns, "bytes": change_bytes, "allocated_bytes": allocated_bytes}
        row |= {"reserved_bytes": reserved_bytes, "device": device, "address": address}
        self._memory.append((row, self._thread(thread) if thread else None))
        return self

    def xla_op(
        self: Builder,
        name: str,
        start_ns: int,
        end_ns: int,
        *,
        text: str = "",
        tpu: int = 0,
        kind: EventKind = EventKind.KERNEL,
        family: KernelFamily = KernelFamily.OTHER,
        precision: Precision = Precision.UNKNOWN,
        collective: Mapping[str, Any] | None = None,
        launched_by: str | None = None,
        **columns: Any,
    ) -> Builder:
        """An XLA op on a TPU core; columns are those of `HloTable` (category, module, flop, …)."""
        symbol = symbols.xla_op(
            name, text, kind=kind, family=family, precision=precision, **columns
        )
        if collective is not None:
            symbol = replace(symbol, collective=collective)
        return self.add(symbol, start_ns, end_ns, tpu=tpu, launched_by=launched_by)

    def derived(
        self: Builder,
        line: str,
        name: str,
        start_ns: int,
        end_ns: int,
        *,
        device: int = 0,
        step: int = -1,
        launched_by: str | None = None,
    ) -> Builder:
        """An event of a derived line: `modules`, `steps`, `async` or `scope`."""
        _, symbol = symbols.DERIVED_LINES[line]
        return self.add(
            symbol.named(name),
            start_ns,
            end_ns,
            device=device,
            line=line,
            step=step,
            launched_by=launched_by,
        )

    def add(
        self: Builder,
        symbol: Symbol,
        start_ns: int,
        end_ns: int,
        *,
        thread: str = "",
        device: int = 0,
        stream: int | None = None,
        tpu: int | None = None,
        line: str = "",
        step: int = -1,
        key: str = "",
        launched_by: str | None = None,
        forward: str = "",
    ) -> Builder:
        """Place any symbol: on a `thread`, a `stream` of a device, a `tpu` core or a `line`.

        Args:
            symbol: The event's kind, name and attributes.
            start_ns: Time since the trace's start.
            end_ns: Not before the start.
            thread: A host thread's name.
            device: The device of a stream or line.
            stream: A GPU's stream.
            tpu: A TPU core.
            line: A derived line of the device: `modules`, `steps`, `async`, `scope`.
            step: The number of a step marker.
            key: A name for links to this event.
            launched_by: The key of the launch or operator; "" for none, None for the latest one.
            forward: The key of a backward node's forward operator.
        """
        if thread:
            track = self._thread(thread)
        elif tpu is not None:
            track = Track(TrackKind.DEVICE_STREAM, "XLA Ops", 0, tpu)
        elif line:
            place = list(symbols.DERIVED_LINES).index(line) + 1
            track = Track(TrackKind.DEVICE_LINE, symbols.DERIVED_LINES[line][0], place, device)
        else:
            number = 7 if stream is None else stream
            track = Track(TrackKind.DEVICE_STREAM, f"stream {number}", number, device)
        self._events.append(
            Placed(symbol, start_ns, end_ns, track, step, key, launched_by, forward)
        )
        return self

    def _thread(self, name: str) -> Track:
        number = self._threads.setdefault(name, _FIRST_THREAD + len(self._threads))
        return Track(TrackKind.HOST_THREAD, name, number, process="python")

    def build(self) -> Trace:
        """Build the trace."""
        return assemble(
            self._source,
            self._events,
            self._memory,
            devices=tuple(self._devices),
            notes=tuple(self._notes),
        )


def run_of(*traces: Trace, name: str = "drawn") -> Run:
    """A run of traces, ordered by rank if they have ranks."""
    numbers = count()
    order = {id(trace): next(numbers) for trace in traces}

    def place(trace: Trace) -> tuple[int, int]:
        rank = trace.source.rank
        return (order[id(trace)] if rank is None else rank, order[id(trace)])

    return Run(id=name, name=name, session="", traces=tuple(sorted(traces, key=place)))


def _copy_name(direction: CopyDirection, pageable: int) -> str:
    host = "Pageable" if pageable == 1 else "Pinned"
    return {
        CopyDirection.HOST_TO_DEVICE: f"Memcpy HtoD ({host} -> Device)",
        CopyDirection.DEVICE_TO_HOST: f"Memcpy DtoH (Device -> {host})",
        CopyDirection.DEVICE_TO_DEVICE: "Memcpy DtoD (Device -> Device)",
        CopyDirection.PEER_TO_PEER: "Memcpy PtoP (Device -> Device)",
        CopyDirection.HOST_TO_HOST: f"Memcpy HtoH ({host} -> {host})",
    }.get(direction, "Memcpy")
