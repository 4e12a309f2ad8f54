"""Traces drawn as text: one lane per line, one character per cell.

    cell 1ms
    step   |..........|..........|
    main   |DDDDoo....|DDDDoo....|
    gpu 7  |.....KKKKK|.....KKKKK|

*Cells.* A run of the same letter is one event, and `.` is nothing. `'` starts another event of
the letter to its left: `KK'K` is two kernels of two cells each. `|` takes no time: it separates
steps, ends the events before it, and is in the same columns of every lane. `-` continues the
event to its left, even across a `|`: `KK|--..` is one kernel of four cells.

*Lanes.* `step` holds the step markers, one for each section between `|`. They count from 0, or
from a number at the start of a section (`|7.....|`). `gpu 7` is stream 7 of device 0, `gpu1 7` is
stream 7 of device 1, and `tpu 0` is the XLA ops of core 0. `gpu 0 modules`, `tpu 0 modules`,
`steps`, `async` and `scope` are derived lines of a device, and `sync` is the device's own row of
waits. Any other name is a host thread. A repeated lane nests: events of the second line lie inside
those of the first.

*Launches.* A device event is launched by the latest launch at or before its start on any host
thread: an `L`, or an operator (`o`, `B`), which then gets a launch call inside. `links` overrides
this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.testing.builder import TraceBuilder
from tb_perfadvisor.testing.symbols import (
    DERIVED_LINES,
    Symbol,
    device_alphabet,
    host_alphabet,
)
from tb_perfadvisor.trace import Device, Framework, Trace
from tb_perfadvisor.units import NS_PER_MS, NS_PER_S, NS_PER_US

_CELL = regex(r"cell\s+(\d+)\s*(ns|us|µs|ms|s)$")
_LANE = regex(r"(?P<name>[^|]*?)\s*\|(?P<cells>.*)\|$")
_DEVICE = regex(r"(?P<kind>gpu|tpu)(?P<device>\d*)\s+(?P<number>\d+)(?:\s+(?P<line>[a-z]+))?$")
_UNIT_NS = {"ns": 1, "us": NS_PER_US, "µs": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S}
_NOTHING, _AGAIN, _CONTINUES, _BOUNDARY = ".", "'", "-", "|"

Links = Mapping[tuple[str, int], tuple[str, int]]


class DrawingError(ValueError):
    """An invalid drawing; the message names the lane and the column."""


class _Place(Struct, frozen=True):
    """Arguments of `TraceBuilder.add` that place a lane's events."""

    arguments: dict[str, Any]
    alphabet: Mapping[str, Symbol]


class _Drawn(Struct, frozen=True):
    """One event as drawn, in cells."""

    letter: str
    start: int
    end: int


def draw(
    text: str,
    *,
    legend: Mapping[str, Symbol] | None = None,
    links: Links | None = None,
    device: str | Device | None = None,
    framework: Framework | None = None,
    scale: int = 1,
    step_line: bool = True,
    **source: Any,
) -> Trace:
    """Turn a drawing into a trace.

    Args:
        text: The drawing.
        legend: Meanings of letters; they take precedence over the alphabet.
        links: Overrides of launches: `{("gpu 7", 2): ("main", 0)}` says that the third event
            drawn on gpu 7 was launched by the first one drawn on main that can launch.
        device: The name of the accelerators, or a description of one.
        framework: By default `jax` if the drawing has a TPU, else `pytorch`.
        scale: Multiplies the cell.
        step_line: Whether the lane `step` becomes markers. If not, `|` only guides the eye.
        **source: Fields of `Source`: rank, world_size, backend, …

    Raises:
        DrawingError: If the drawing is invalid; the message names lane and column.
    """
    cell_ns, lanes = _parse(text)
    has_tpu = any(name.startswith("tpu") for name, _ in lanes)
    framework = framework or ("jax" if has_tpu else "pytorch")
    builder = TraceBuilder(framework, **source)
    places = {name: _place(name, framework, legend or {}) for name, _ in lanes if name != "step"}
    _describe_devices(builder, places, device)
    drawn: dict[str, int] = {}
    overrides = {device_key: _key(*by) for device_key, by in (links or {}).items()}
    for name, cells in lanes:
        if name == "step":
            if step_line:
                _add_steps(builder, cells, cell_ns * scale, framework)
            continue
        place = places[name]
        for event in _events(name, cells):
            symbol = place.alphabet.get(event.letter)
            if symbol is None:
                raise DrawingError(
                    f"lane {name!r}: no letter {event.letter!r} (cell {event.start + 1}); "
                    f"it knows {' '.join(sorted(place.alphabet))}"
                )
            ordinal = drawn.get(name, 0)
            drawn[name] = ordinal + 1
            builder.add(
                symbol,
                event.start * cell_ns * scale,
                event.end * cell_ns * scale,
                key=_key(name, ordinal),
                launched_by=overrides.get((name, ordinal)),
                **place.arguments,
            )
    try:
        return builder.build()
    except KeyError as missing:
        raise DrawingError(f"links name an event that is not drawn: {missing}") from None


def _key(lane: str, ordinal: int) -> str:
    return f"{lane}:{ordinal}"


def _parse(text: str) -> tuple[int, list[tuple[str, str]]]:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    match = _CELL.match(lines[0]) if lines else None
    if match is None:
        raise DrawingError("a drawing begins with the length of a cell: cell 1ms")
    lanes = []
    for line in lines[1:]:
        lane = _LANE.match(line)
        if lane is None:
            raise DrawingError(f"not a lane (name |cells|): {line!r}")
        lanes.append((" ".join(lane["name"].split()), lane["cells"]))
    if not lanes:
        raise DrawingError("a drawing has at least one lane")
    first, model = lanes[0]
    for name, cells in lanes[1:]:
        if len(cells) != len(model):
            raise DrawingError(
                f"lane {name!r} has {len(cells)} characters, lane {first!r} has {len(model)}"
            )
        for column, (character, expected) in enumerate(zip(cells, model, strict=True), start=1):
            if (character == _BOUNDARY) != (expected == _BOUNDARY):
                raise DrawingError(
                    f"lane {name!r}, column {column}: {character!r} where lane {first!r} has "
                    f"{expected!r}"
                )
    return int(match[1]) * _UNIT_NS[match[2]], lanes


def _place(name: str, framework: Framework, legend: Mapping[str, Symbol]) -> _Place:
    match = _DEVICE.match(name)
    if name == "sync":
        # Kineto puts waits for the whole context on a row of its own: stream -1.
        return _Place({"device": 0, "stream": -1}, {**device_alphabet("gpu"), **legend})
    if match is None:
        return _Place({"thread": name}, {**host_alphabet(framework), **legend})
    kind, line = match["kind"], match["line"]
    if line:
        if line not in DERIVED_LINES:
            raise DrawingError(f"lane {name!r}: lines are {', '.join(DERIVED_LINES)}")
        symbol = DERIVED_LINES[line][1]
        letters = {line[0].upper(): symbol, line[0]: symbol}
        return _Place({"device": int(match["number"]), "line": line}, {**letters, **legend})
    alphabet = {**device_alphabet(kind), **legend}
    if kind == "tpu":
        return _Place({"tpu": int(match["number"])}, alphabet)
    device = int(match["device"] or 0)
    return _Place({"device": device, "stream": int(match["number"])}, alphabet)


def _describe_devices(
    builder: TraceBuilder, places: Mapping[str, _Place], device: str | Device | None
) -> None:
    if device is None:
        return
    used = {
        place.arguments.get("tpu", place.arguments.get("device", -1)) for place in places.values()
    }
    is_tpu = any("tpu" in place.arguments for place in places.values())
    kind: Literal["gpu", "tpu"] = "tpu" if is_tpu else "gpu"
    for index in sorted(used - {-1}):
        if isinstance(device, str):
            builder.device(device, kind=kind, index=index)
        else:
            builder.add_device(replace(device, index=index))


def _add_steps(builder: TraceBuilder, cells: str, cell_ns: int, framework: Framework) -> None:
    start, number = 0, 0
    for stretch in cells.split(_BOUNDARY):
        digits = stretch.rstrip(_NOTHING)
        if digits and not digits.isdigit():
            raise DrawingError(f"lane 'step': {stretch!r} is neither a number nor dots")
        number = int(digits) if digits else number
        end = start + len(stretch)
        builder.step(number, start * cell_ns, end * cell_ns)
        start, number = end, number + 1


def _events(lane: str, cells: str) -> list[_Drawn]:
    """The events of a lane; columns of `|` take no time."""
    events: list[_Drawn] = []
    at = 0
    previous = _NOTHING
    for column, character in enumerate(cells, start=1):
        if character == _BOUNDARY:
            previous = character
            continue
        touching = events[-1] if events and events[-1].end == at else None
        if character in (_AGAIN, _CONTINUES) and (
            touching is None or (character == _AGAIN and previous == _BOUNDARY)
        ):
            raise DrawingError(f"lane {lane!r}, column {column}: {character!r} follows no event")
        if touching is not None and (
            character == _CONTINUES or (character == touching.letter and previous != _BOUNDARY)
        ):
            events[-1] = _Drawn(touching.letter, touching.start, at + 1)
        elif character == _AGAIN and touching is not None:
            events.append(_Drawn(touching.letter, at, at + 1))
        elif character != _NOTHING:
            events.append(_Drawn(character, at, at + 1))
        previous = character
        at += 1
    return events
