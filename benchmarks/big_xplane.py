"""Writes large xplanes for benchmarks.

    python benchmarks/big_xplane.py gpu /tmp/big/gpu.xplane.pb --megabytes 64
    python benchmarks/big_xplane.py RECORDED.xplane.pb /tmp/big/like.xplane.pb --megabytes 64

Repeats a short profile, synthetic or recorded. The copies follow one another in time. Each has its
own numbers for steps, launches and contexts, so that nothing is linked across copies. Names and HLO
texts are stored once.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import xplane_seeds as seeds
from tb_perfadvisor.ingest.xspace.decode.messages import WRITING

# Stats with ids that must differ between copies.
_NUMBERED = frozenset(
    {
        *("correlation_id", "step_num", "group_id", "run_id", "_p", "_c", "id", "parent_id"),
        *("element_id", "device_offset_ps", "flow"),
    }
)
_TIMES = frozenset({"device_offset_ps"})
_EVENTS_FIELD = b"\x22"  # XLine.events
_LINES_FIELD = b"\x1a"  # XPlane.lines
_PLANES_FIELD = b"\x0a"  # XSpace.planes


def write(path: str | Path, size_bytes: int, profile: str | Path = "gpu") -> int:
    """Write an xplane of at least some size.

    Args:
        path: The file to write; its directory is created.
        size_bytes: The minimum size; at least one copy is written.
        profile: What to repeat: "gpu" (TensorFlow on a GPU: threads whose events carry stats,
            streams, derived lines), "tpu" (JAX on four TPU cores: thousands of operations whose
            texts and stats lie on their metadata), or the path of a recorded xplane.

    Returns:
        The number of copies.
    """
    drawn = {"gpu": seeds.tensorflow_on_gpu, "tpu": seeds.jax_on_tpu}.get(str(profile))
    space = drawn() if drawn else WRITING.XSpace.FromString(Path(profile).read_bytes())
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        return _repeat(space, size_bytes, file)


@dataclass(frozen=True, slots=True)
class _Event:
    """An event of the profile: what all copies share, and what each copy shifts."""

    head: bytes
    """The number of its kind."""
    offset_ps: int
    parts: tuple[bytes | tuple[bytes, int, int], ...]
    """Its duration and stats; of those that number something, head, value and shift per copy."""

    def copy(self, number: int, period_ps: int) -> bytes:
        written = [self.head]
        if offset_ps := self.offset_ps + number * period_ps:
            written += [b"\x10", _varint(offset_ps)]
        for part in self.parts:
            if isinstance(part, bytes):
                written.append(part)
            else:
                head, value, shift = part
                stat = head + _varint(value + number * shift)
                written += [b"\x22", _varint(len(stat)), stat]
        return b"".join(written)


def _repeat(space: Any, size_bytes: int, file: BinaryIO) -> int:
    period_ps = _span_ps(space)
    shifts = _shifts(space, period_ps)
    lines = {
        (at, place): [_event(event, shifts[at]) for event in line.events]
        for at, plane in enumerate(space.planes)
        for place, line in enumerate(plane.lines)
    }
    once = space.ByteSize() - sum(
        len(event.copy(0, period_ps)) for events in lines.values() for event in events
    )
    # Numbers in later copies are longer, so measure a copy from the middle.
    copy_bytes = sum(
        len(event.copy(50, period_ps)) + 2 for events in lines.values() for event in events
    )
    copies: int = max(1, -(-(size_bytes - once) // max(copy_bytes, 1)))
    for at, plane in enumerate(space.planes):
        encoded = [
            _line(line, lines[at, place], copies, period_ps)
            for place, line in enumerate(plane.lines)
        ]
        # In order of field numbers, as profilers write them.
        head = WRITING.XPlane(id=plane.id, name=plane.name).SerializeToString()
        plane.id, plane.name = 0, ""
        del plane.lines[:]
        tables = plane.SerializeToString()
        size = len(head) + sum(map(len, encoded)) + len(tables)
        file.writelines([_PLANES_FIELD, _varint(size), head, *encoded, tables])
    del space.planes[:]
    file.write(space.SerializeToString())
    return copies


def _span_ps(space: Any) -> int:
    """From the first start to the last end of all events, in whole nanoseconds."""
    starts, ends = [], []
    for line in (line for plane in space.planes for line in plane.lines):
        at_ps = line.timestamp_ns * 1000
        starts += [at_ps + event.offset_ps for event in line.events]
        ends += [at_ps + event.offset_ps + event.duration_ps for event in line.events]
    return -(-(max(ends, default=0) - min(starts, default=0)) // 1000) * 1000


def _shifts(space: Any, period_ps: int) -> list[dict[int, int]]:
    """For each plane, the shift per copy of each stat with ids, by stat id."""
    largest: dict[str, int] = {}
    named = [{key: item.name for key, item in p.stat_metadata.items()} for p in space.planes]
    for plane, names in zip(space.planes, named, strict=True):
        for stat in (s for line in plane.lines for event in line.events for s in event.stats):
            name = names.get(stat.metadata_id, "")
            if name in _NUMBERED and stat.WhichOneof("value") in ("int64_value", "uint64_value"):
                value = stat.int64_value or stat.uint64_value
                # Hashes use the whole range: any shift keeps them distinct.
                largest[name] = max(largest.get(name, 0), value if value < 2**40 else 1)
    # Producer and consumer of a context must stay equal.
    largest["_p"] = largest["_c"] = max(largest.get("_p", 0), largest.get("_c", 0))
    shift = {name: value + 1 for name, value in largest.items()} | dict.fromkeys(_TIMES, period_ps)
    return [
        {key: shift[name] for key, name in names.items() if name in _NUMBERED & shift.keys()}
        for names in named
    ]


def _event(event: Any, shifts: dict[int, int]) -> _Event:
    parts: list[bytes | tuple[bytes, int, int]] = []
    shared = WRITING.XEvent(duration_ps=event.duration_ps)
    for stat in event.stats:
        kind = stat.WhichOneof("value")
        if stat.metadata_id in shifts and kind in ("int64_value", "uint64_value"):
            parts.append(shared.SerializeToString())
            shared = WRITING.XEvent()
            field = b"\x20" if kind == "int64_value" else b"\x18"
            head = b"\x08" + _varint(stat.metadata_id) + field
            parts.append((head, getattr(stat, kind), shifts[stat.metadata_id]))
        else:
            shared.stats.append(stat)
    parts.append(shared.SerializeToString())
    head = WRITING.XEvent(metadata_id=event.metadata_id).SerializeToString()
    return _Event(head, event.offset_ps, tuple(parts))


def _line(line: Any, events: list[_Event], copies: int, period_ps: int) -> bytes:
    del line.events[:]
    body: bytes = line.SerializeToString() + b"".join(_framed(events, copies, period_ps))
    return _LINES_FIELD + _varint(len(body)) + body


def _framed(events: list[_Event], copies: int, period_ps: int) -> Iterator[bytes]:
    for number in range(copies):
        for event in events:
            encoded = event.copy(number, period_ps)
            yield _EVENTS_FIELD + _varint(len(encoded)) + encoded


def _varint(value: int) -> bytes:
    if 0 <= value < 0x80:
        return bytes((value,))
    value %= 2**64
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def main() -> None:
    """Write what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("profile", help="gpu, tpu, or the path of a recorded xplane")
    parser.add_argument("path", type=Path, help="where to write")
    parser.add_argument("--megabytes", type=float, default=64)
    given = parser.parse_args()
    write(given.path, int(given.megabytes * 1e6), given.profile)
    print(f"{given.path}: {given.path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
