"""Suggests which captures to compare with each other, by their names and times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import pairwise, permutations

from msgspec import Struct

from tb_perfadvisor.ingest.captures import Capture
from tb_perfadvisor.patterns import regex

_BEFORE = frozenset({"slow", "before", "base", "baseline", "old", "orig", "original"})
_AFTER = frozenset({"fixed", "fast", "faster", "after", "new", "opt", "optimized", "tuned"})
_WORDS = regex(r"[^\W_]+")
_DEVICES = r"(?:ranks?|gpus?|tpus?|chips?|devices?|nodes?|hosts?)"
# `8rank`, `gpus4`.
_COUNT = regex(rf"(?:(\d{{1,9}})x?{_DEVICES}|{_DEVICES}(\d{{1,9}}))")
_MAX_PARTNERS = 4
"""More are a list to read, and the page of comparisons has it."""

_NEAR = 20
"""Runs that are further apart have more of a history between them than one change."""


class Partner(Struct, frozen=True):
    """A comparison worth looking at, from the view of one of its captures."""

    id: str
    """The other capture's."""
    base: str
    target: str
    reason: str


class Recorded(Struct, frozen=True):
    """A capture among those that it may be compared with."""

    id: str
    folder: str
    """The directory of its run, with what else must be equal at once: its format and ranks."""
    recorded: str
    """When, in a form that sorts by time."""


class Nearby(Struct, frozen=True):
    """The captures of a folder around one of them, the nearest in time first."""

    before: tuple[str, ...]
    after: tuple[str, ...]


def nearby_captures(captures: Iterable[Recorded]) -> dict[str, Nearby]:
    """What was recorded shortly before and after each capture in its folder, by its id."""
    folders: dict[str, list[str]] = defaultdict(list)
    for capture in sorted(captures, key=lambda each: (each.recorded, each.id)):
        folders[capture.folder].append(capture.id)
    return {
        id: Nearby(tuple(ids[max(at - _NEAR, 0) : at][::-1]), tuple(ids[at + 1 : at + 1 + _NEAR]))
        for ids in folders.values()
        for at, id in enumerate(ids)
    }


def nearest_partner(
    id: str, nearby: Nearby, program_of: Callable[[str], Hashable | None]
) -> Partner | None:
    """The capture before one, or else after it, of the same program.

    A capture whose program is unknown, because it is not analyzed yet, may be of any.
    """
    program = program_of(id)

    def may_be_same(other: str) -> bool:
        found = program if program is None else program_of(other)
        return found is None or found == program

    before = next(filter(may_be_same, nearby.before), None)
    if before is not None:
        return Partner(before, before, id, "recorded before")
    after = next(filter(may_be_same, nearby.after), None)
    return None if after is None else Partner(after, id, after, "recorded after")


class _Name(Struct, frozen=True):
    """What a run's name says: the words that it shares with its partners, and its part."""

    stem: tuple[str, ...]
    is_after: bool | None
    """None if no word says so."""
    devices: int | None


def suggest_partners(captures: Sequence[Capture]) -> dict[str, tuple[Partner, ...]]:
    """The partners of each capture that has any, by its id; the best ones first.

    These are the previous recording of the same run, runs whose names differ only in words such as
    `slow` and `fixed`, and runs whose names differ only in a number of devices. The latest
    recording stands for another run.

    `captures` are all of a log directory, with distinct ids.
    """
    runs: dict[tuple[str, str], list[Capture]] = defaultdict(list)
    for capture in captures:
        runs[capture.run, capture.format].append(capture)
    for recordings in runs.values():
        recordings.sort(key=lambda capture: (capture.session, capture.id))
    partners: dict[str, list[Partner]] = defaultdict(list)
    for recordings in runs.values():
        for earlier, later in pairwise(recordings):
            _join(partners, [earlier], [later], "recorded before", "recorded after")
    for before, after in _before_and_after(runs):
        _join(partners, runs[before], runs[after], "the run before", "the run after")
    for fewer, more in _other_counts(runs):
        _join(partners, runs[fewer], runs[more], "on fewer devices", "on more devices")
    return {name: tuple(found[:_MAX_PARTNERS]) for name, found in partners.items()}


def _join(
    partners: dict[str, list[Partner]],
    bases: Sequence[Capture],
    targets: Sequence[Capture],
    of_base: str,
    of_target: str,
) -> None:
    """Make the latest recording of each of two runs a partner of all recordings of the other."""
    base, target = bases[-1].id, targets[-1].id
    for capture in targets:
        partners[capture.id].append(Partner(base, base, capture.id, of_base))
    for capture in bases:
        partners[capture.id].append(Partner(target, capture.id, target, of_target))


_Run = tuple[str, str]
"""Name and format."""


def _before_and_after(runs: Iterable[_Run]) -> Iterator[tuple[_Run, _Run]]:
    """Pairs of which one is after a change, or one is before it and the other says nothing."""
    groups: dict[Hashable, list[tuple[bool | None, _Run]]] = defaultdict(list)
    for run in runs:
        name = _read(run[0])
        groups[run[1], name.stem, name.devices].append((name.is_after, run))
    for group in groups.values():
        for (is_first_after, first), (is_second_after, second) in permutations(group, 2):
            is_change = is_second_after is True and is_first_after is not True
            if is_change or (is_first_after is False and is_second_after is None):
                yield first, second


def _other_counts(runs: Iterable[_Run]) -> Iterator[tuple[_Run, _Run]]:
    """Each run with a number of devices in its name, and the same run with the next larger one."""
    groups: dict[Hashable, list[tuple[int, _Run]]] = defaultdict(list)
    for run in runs:
        name = _read(run[0])
        if name.devices is not None:
            groups[run[1], name.stem, name.is_after].append((name.devices, run))
    for group in groups.values():
        for (_, fewer), (_, more) in pairwise(sorted(group)):
            yield fewer, more


def _read(run: str) -> _Name:
    stem: list[str] = []
    is_after: bool | None = None
    devices: int | None = None
    for word in _WORDS.findall(run.lower()):
        count = _COUNT.fullmatch(word)
        if word in _BEFORE or word in _AFTER:
            is_after = word in _AFTER
        elif count is not None and devices is None:
            devices = int(count[1] or count[2])
        else:
            stem.append(word)
    return _Name(tuple(stem), is_after, devices)
