"""Changes to traces in JSON that keep them JSON: times, ids, links, phases, order, and all else."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

from tests.fuzz.tree_changes import any_value, change_tree
from tests.fuzz.values import NUMBERS, TEXTS

_TIMES = ("ts", "dur")
_IDS = ("pid", "tid", "id", "correlation", "External id", "device", "stream", "Python id",
        "Python parent id", "Sequence number", "Fwd thread id", "Addr", "Ev Idx")  # fmt: skip
_PHASES = ("X", "B", "E", "i", "I", "M", "s", "t", "f", "C", "N", "D", "P", "", 7, None)
_KEYS = (*_TIMES, *_IDS, "ph", "cat", "name", "args", "traceEvents", "Input Dims", "Input type",
         "Concrete Inputs", "grid", "block", "bytes", "Bytes", "Collective name", "Group size",
         "In msg nelems", "dtype", "Total Allocated", "deviceProperties", "distributedInfo",
         "baseTimeNanoseconds", "schemaVersion", "warpSize", "numSms")  # fmt: skip


def change_json(data: bytes, random: Random) -> bytes:
    """The JSON text with one to four changes."""
    root = json.loads(data)
    if not isinstance(root, dict | list):
        return data
    events = _events(root)
    for _ in range(random.choice((1, 1, 2, 3, 4))):
        if events and random.random() < 0.75:
            random.choice(_EVENT_CHANGES)(events, random)
        else:
            change_tree(root, random, _KEYS)
    # As Python writes them, `NaN` and lone surrogates stay what they are.
    return json.dumps(root).encode("utf-8", "surrogatepass")


def _events(root: Any) -> list[Any]:
    events = root.get("traceEvents") if isinstance(root, dict) else None
    return events if isinstance(events, list) else []


def _objects(events: list[Any]) -> list[dict[str, Any]]:
    return [event for event in events if isinstance(event, dict)] or [{}]


def _times(events: list[Any], random: Random) -> None:
    """One event's time, or the times of all events from one on."""
    chosen = _objects(events)
    if random.random() < 0.3:
        chosen = chosen[random.randrange(len(chosen)) :]
    else:
        chosen = [random.choice(chosen)]
    key, number, how = random.choice(_TIMES), random.choice(NUMBERS), random.randrange(4)
    for event in chosen:
        before = event.get(key)
        if how == 0 or not isinstance(before, int | float) or max(before, number) > 2**1023:
            event[key] = number
        elif how == 1:
            event[key] = before + number
        elif how == 2:
            event[key] = -before
        else:
            event[key] = str(before)


def _ids(events: list[Any], random: Random) -> None:
    """An id or link of an event: another event's, or an extreme one."""
    one, other = random.choice(_objects(events)), random.choice(_objects(events))
    key = random.choice(_IDS)
    for event in (one, one.get("args")):
        if isinstance(event, dict) and (key in event or event is one):
            source = other.get("args") if event is not one else other
            value = source.get(key) if isinstance(source, dict) else None
            event[key] = value if random.random() < 0.5 else random.choice(NUMBERS)


def _same_ids(events: list[Any], random: Random) -> None:
    """All events get the same id."""
    key, number = random.choice(_IDS), random.choice(NUMBERS)
    for event in _objects(events):
        for holder in (event, event.get("args")):
            if isinstance(holder, dict) and key in holder:
                holder[key] = number


def _phase(events: list[Any], random: Random) -> None:
    random.choice(_objects(events))["ph"] = random.choice(_PHASES)


def _name(events: list[Any], random: Random) -> None:
    one, other = random.choice(_objects(events)), random.choice(_objects(events))
    key = random.choice(("name", "cat"))
    one[key] = other.get(key) if random.random() < 0.6 else random.choice(TEXTS)


def _repeat(events: list[Any], random: Random) -> None:
    """An event many times, one after another, inside one another, or at once."""
    event = random.choice(_objects(events))
    start, length = event.get("ts"), event.get("dur")
    if not all(isinstance(time, int | float) and abs(time) < 2**63 for time in (start, length)):
        start, length = 0, 1
    how = random.randrange(3)
    for number in range(random.choice((1, 5, 40, 200))):
        copy = dict(event)
        if how == 0:
            copy["ts"] = start + length * number
        elif how == 1:
            copy["ts"], copy["dur"] = start + number, length - 2 * number
        events.append(copy)


def _remove(events: list[Any], random: Random) -> None:
    first = random.randrange(len(events) + 1)
    del events[first : first + random.choice((1, 1, 10, 10_000))]


def _shuffle(events: list[Any], random: Random) -> None:
    random.shuffle(events)


def _move(events: list[Any], random: Random) -> None:
    """An event to another event's thread and time."""
    one, other = random.choice(_objects(events)), random.choice(_objects(events))
    for key in random.sample(("pid", "tid", "ts", "dur"), 2):
        one[key] = other.get(key)


def _arguments(events: list[Any], random: Random) -> None:
    event = random.choice(_objects(events))
    arguments = event.setdefault("args", {})
    if isinstance(arguments, dict):
        key = random.choice((*arguments, *_KEYS))
        arguments[key] = random.choice(
            (any_value(random), [[2, -3], [0]], [[10**12, 10**12]] * 3, ["float", 7], "[[1,2]]")
        )


_EVENT_CHANGES: tuple[Callable[[list[Any], Random], None], ...] = (
    *(_times, _times, _times, _ids, _ids, _same_ids, _phase, _name, _name, _repeat),
    *(_remove, _shuffle, _move, _move, _arguments, _arguments),
)
