"""XSpaces that are large in one dimension."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from scaled_inputs.dimension import KERNEL, SESSION, STEPS, Write
from tb_perfadvisor.ingest.xspace.decode.messages import WRITING

_MOST_PLANES = 4_000
"""More are refused."""


def _varint(value: int) -> bytes:
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _xspace(planes: Iterable[Any], folder: Path) -> None:
    """Write planes one by one, so that the whole space is never in memory."""
    session = folder / SESSION
    session.mkdir(parents=True)
    with (session / "host.xplane.pb").open("wb") as file:
        for plane in planes:
            data = plane.SerializeToString()
            file.write(b"\x0a" + _varint(len(data)) + data)


_PS = 1_000_000  # per microsecond


def _name(plane: Any, key: int, name: str, display: str = "") -> None:
    kind = plane.event_metadata[key]
    kind.id, kind.name, kind.display_name = key, name, display


def _stat(plane: Any, key: int, name: str) -> None:
    plane.stat_metadata[key].id, plane.stat_metadata[key].name = key, name


def _tpu_plane(count: int, names: int = 1, *, number: int = 0) -> Any:
    """A core with steps, modules and operations of 10 us."""
    plane = WRITING.XPlane(id=number + 2, name=f"/device:TPU:{number}")
    _stat(plane, 1, "step_num")
    _stat(plane, 2, "run_id")
    for key in range(1, names + 1):
        text = f"%fusion.{key} = f32[{key},128]{{1,0}} fusion(f32[{key},128] %p.{key}), kind=kLoop"
        _name(plane, key, text, f"fusion.{key}")
    _name(plane, names + 1, "jit_step(7)")
    _name(plane, names + 2, "1")
    for place, title in enumerate(("Steps", "XLA Modules", "XLA Ops")):
        line = plane.lines.add(id=place + 1, name=title)
        whole = 10 * count * _PS
        if title == "XLA Ops":
            for at in range(count):
                line.events.add(
                    metadata_id=at % names + 1, offset_ps=10 * at * _PS, duration_ps=9 * _PS
                )
            continue
        for step in range(STEPS):
            event = line.events.add(
                metadata_id=names + (1 if title == "XLA Modules" else 2),
                offset_ps=step * whole // STEPS,
                duration_ps=whole // STEPS - _PS,
            )
            event.stats.add(metadata_id=1 if title == "Steps" else 2, int64_value=step)
    return plane


def _host_plane(lines: int, events: int, *, nested: bool = False, names: int = 1) -> Any:
    plane = WRITING.XPlane(id=1, name="/host:CPU")
    for key in range(1, names + 1):
        _name(plane, key, f"op_{key}")
    for number in range(lines):
        line = plane.lines.add(id=number + 1, name=f"thread {number}")
        for at in range(events):
            length = 10 * events - 2 * at if nested else 9
            line.events.add(
                metadata_id=at % names + 1,
                offset_ps=(at if nested else 10 * at) * _PS,
                duration_ps=length * _PS,
            )
    return plane


def xplane_events(count: int, folder: Path) -> None:
    """Operations of a TPU core."""
    _xspace([_tpu_plane(count, 100), _host_plane(1, 100)], folder)


def xplane_names(count: int, folder: Path) -> None:
    """Operations with names and texts of their own."""
    _xspace([_tpu_plane(count, count), _host_plane(1, 100)], folder)


def xplane_host_events(count: int, folder: Path) -> None:
    """Events of a host thread."""
    _xspace([_host_plane(1, count, names=100)], folder)


def xplane_host_names(count: int, folder: Path) -> None:
    """Events of a host thread, with names of their own."""
    _xspace([_host_plane(1, count, names=count)], folder)


def xplane_nested(count: int, folder: Path) -> None:
    """Events of a host thread, each inside the one before it."""
    _xspace([_host_plane(1, count, nested=True), _tpu_plane(1000, 10)], folder)


def xplane_lines(count: int, folder: Path) -> None:
    """Threads with one event each."""
    _xspace([_host_plane(count, 1), _tpu_plane(1000, 10)], folder)


def xplane_planes(count: int, folder: Path) -> None:
    """Cores with a few operations each."""
    _xspace((_tpu_plane(5, 1, number=number) for number in range(count)), folder)


def xplane_host_planes(count: int, folder: Path) -> None:
    """Planes with one event each."""

    def planes() -> Iterator[Any]:
        yield _tpu_plane(1000, 10)
        for number in range(count):
            plane = _host_plane(1, 1)
            plane.id, plane.name = number + 2, f"/host:plane {number}"
            yield plane

    _xspace(planes(), folder)


def xplane_streams(count: int, folder: Path) -> None:
    """Streams of a GPU with one kernel each."""
    plane = WRITING.XPlane(id=2, name="/device:GPU:0")
    _name(plane, 1, KERNEL)
    _stat(plane, 1, "correlation_id")
    for number in range(count):
        line = plane.lines.add(id=number + 1, name=f"Stream #{number}(Compute)")
        event = line.events.add(metadata_id=1, offset_ps=10 * number * _PS, duration_ps=9 * _PS)
        event.stats.add(metadata_id=1, int64_value=number + 1)
    _xspace([_host_plane(1, 100), plane], folder)


def xplane_gpus(count: int, folder: Path) -> None:
    """GPUs with one kernel each."""

    def planes() -> Iterator[Any]:
        yield _host_plane(1, 100)
        for number in range(count):
            plane = WRITING.XPlane(id=number + 2, name=f"/device:GPU:{number}")
            _name(plane, 1, KERNEL)
            line = plane.lines.add(id=1, name="Stream #1(Compute)")
            line.events.add(metadata_id=1, offset_ps=number * _PS, duration_ps=9 * _PS)
            yield plane

    _xspace(planes(), folder)


def xplane_stats(count: int, folder: Path) -> None:
    """Stats of one event, with names of their own."""
    plane = _host_plane(1, 100)
    event = plane.lines[0].events[0]
    for key in range(1, count + 1):
        _stat(plane, key, f"stat_{key}")
        event.stats.add(metadata_id=key, str_value=f"value {key}")
    _xspace([plane], folder)


def xplane_iterators(count: int, folder: Path) -> None:
    """Iterators of tf.data, each inside the one before it."""
    plane = WRITING.XPlane(id=1, name="/host:CPU")
    for key, stat in enumerate(("id", "parent_id", "long_name", "step_num"), start=1):
        _stat(plane, key, stat)
    line = plane.lines.add(id=1, name="python")
    _name(plane, 1, "IteratorGetNextOp::DoCompute")
    for at in range(count):
        _name(plane, at + 2, f"Iterator::Map{at}::Batch")
        event = line.events.add(
            metadata_id=at + 2, offset_ps=at * _PS, duration_ps=(10 * count - 2 * at) * _PS
        )
        event.stats.add(metadata_id=1, int64_value=at + 1)
        event.stats.add(metadata_id=2, int64_value=at)
        event.stats.add(metadata_id=3, str_value=f"Iterator::Map{at}::Batch[{at}]::Batch")
    _xspace([plane], folder)


def xplane_links(count: int, folder: Path) -> None:
    """Links from launches to kernels."""
    host = _host_plane(1, 0)
    _name(host, 1, "cuLaunchKernel")
    _stat(host, 1, "correlation_id")
    device = WRITING.XPlane(id=2, name="/device:GPU:0")
    _name(device, 1, KERNEL)
    _stat(device, 1, "correlation_id")
    stream = device.lines.add(id=1, name="Stream #1(Compute)")
    for plane, line in ((host, host.lines[0]), (device, stream)):
        for at in range(count):
            event = line.events.add(
                metadata_id=1, offset_ps=(10 * at + 5 * (line is stream)) * _PS, duration_ps=4 * _PS
            )
            event.stats.add(metadata_id=1, int64_value=at + 1)
        del plane
    _xspace([host, device], folder)


LARGEST: dict[Write, int] = {
    xplane_events: 10**6,
    xplane_names: 10**6,
    xplane_host_events: 10**6,
    xplane_host_names: 10**6,
    xplane_nested: 10**6,
    xplane_lines: 10**5,
    xplane_planes: _MOST_PLANES,
    xplane_host_planes: _MOST_PLANES,
    xplane_streams: 10**5,
    xplane_gpus: _MOST_PLANES,
    xplane_stats: 10**5,
    xplane_iterators: 10**5,
    xplane_links: 10**6,
}
