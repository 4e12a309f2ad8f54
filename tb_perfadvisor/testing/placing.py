"""Turn the events that a builder has placed into a trace: launches, links and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from tb_perfadvisor.note import Note
from tb_perfadvisor.testing import symbols
from tb_perfadvisor.testing.symbols import Symbol
from tb_perfadvisor.trace import Assembler, Device, EventKind, Source, Trace, TrackKind
from tb_perfadvisor.trace.kinds import FIRST_DEVICE_KIND

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
