"""What changed in memory, by line of the program, if both runs have a memory snapshot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from tb_perfadvisor.contract import model
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.snapshots.course import memory_course
from tb_perfadvisor.signals.snapshots.sites import LineMemory, by_line
from tb_perfadvisor.units import format_bytes, format_share

MAX_LINES = 500
"""The first line left out holds less than a five hundredth of the peak."""
_MAX_ROWS = 50
_SMALL_SHARE = 0.001
"""Of the base's peak: smaller changes are left out."""
_SAME_SHARE = 0.01
"""Of the base's peak: allocators and data sizes vary that much between two runs."""


_FEWEST_BYTES = 1 << 20
"""Less than a mebibyte may be rounding of block sizes."""


class LineBytes(msgspec.Struct, frozen=True, kw_only=True):
    """What one line of the program holds."""

    line: str | None
    bytes: int


class MemoryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A run's memory snapshot."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    lines: list[LineBytes]
    is_alone: bool
    """Whether there is no profile beside it."""
    taken_ns: int = -1
    """Wall-clock time of the last event of the history; -1 if unknown."""
    kept: list[LineBytes] = []
    """What each line holds when the snapshot is taken."""


def memory_facts(signals: Signals) -> MemoryFacts | None:
    """The facts of a run's memory snapshot; None without one."""
    course = memory_course(signals)
    if course is None:
        return None
    holders = by_line(course.allocations.alive_in(course.peak), course.snapshot.stacks)
    kept = by_line(course.allocations.alive_in(len(course) - 1), course.snapshot.stacks)
    return MemoryFacts(
        peak_allocated_bytes=course.peak_allocated_bytes,
        peak_reserved_bytes=course.peak_reserved_bytes,
        lines=_lines(holders),
        is_alone=signals.trace.is_snapshot_only,
        taken_ns=int(course.snapshot.events.at_ns[course.rows[-1]]) if course.has_times else -1,
        kept=_lines(kept),
    )


def _lines(holders: Sequence[LineMemory]) -> list[LineBytes]:
    return [LineBytes(line=holder.line, bytes=holder.bytes) for holder in holders[:MAX_LINES]]


def memory_changes(
    base: MemoryFacts | None, target: MemoryFacts | None
) -> model.MemoryChanges | None:
    """The change of the peak and of what holds it; None if one run has no snapshot."""
    if base is None or target is None:
        return None
    unknown, before = _by_line(base)
    still_unknown, after = _by_line(target)
    least = _SMALL_SHARE * base.peak_allocated_bytes
    rows = [
        row
        for row in (
            _change(None, unknown, still_unknown),
            *(
                _change(_name(old, new), before.get(old or ""), after.get(new or ""))
                for old, new in match_lines(before, after)
            ),
        )
        if abs(row.change_bytes) > least
    ]
    rows.sort(key=lambda row: (-abs(row.change_bytes), row.line or ""))
    return model.MemoryChanges(
        base_allocated_bytes=base.peak_allocated_bytes,
        target_allocated_bytes=target.peak_allocated_bytes,
        base_reserved_bytes=base.peak_reserved_bytes,
        target_reserved_bytes=target.peak_reserved_bytes,
        rows=rows[:_MAX_ROWS],
        truncated=max(len(rows) - _MAX_ROWS, 0),
    )


def _by_line(facts: MemoryFacts) -> tuple[int | None, dict[str, int]]:
    """The bytes of unknown lines, and those of each line."""
    unknown = next((held.bytes for held in facts.lines if held.line is None), None)
    return unknown, {held.line: held.bytes for held in facts.lines if held.line is not None}


def _name(old: str | None, new: str | None) -> str:
    """The line as the target has it, and its number in the base if it moved."""
    if old is None or new is None or old == new:
        return new or old or ""
    return f"{new} (line {number_of(old)} before)"


def _change(line: str | None, base_bytes: int | None, target_bytes: int | None) -> model.LineChange:
    return model.LineChange(
        line=line,
        base_bytes=base_bytes,
        target_bytes=target_bytes,
        change_bytes=(target_bytes or 0) - (base_bytes or 0),
    )


def memory_headline(changes: model.MemoryChanges) -> str:
    """`Peak memory is 744 MiB instead of 531 MiB (40.0 % more), mostly from model/linear.py:15`."""
    before, after = changes.base_allocated_bytes, changes.target_allocated_bytes
    change = after - before
    sizes = f"{format_bytes(after)} instead of {format_bytes(before)}"
    if before and abs(change) < _SAME_SHARE * before:
        return f"No clear change: peak memory is {sizes}"
    text = f"Peak memory is {sizes}"
    if not before:
        return text
    text += f" ({format_share(abs(change) / before)} {'more' if change > 0 else 'less'})"
    most = next(
        (row for row in changes.rows if row.line is not None and row.change_bytes * change > 0),
        None,
    )
    if most is None:
        return text
    size = format_bytes(abs(most.change_bytes))
    return f"{text}; {most.line} holds {size} {'more' if change > 0 else 'less'}"


def memory_growth(base: MemoryFacts, target: MemoryFacts) -> str | None:
    """What the program keeps from an earlier snapshot to a later one, and what to do about it.

    None if nothing grew, and if the snapshots cannot be of one run: the second one is not the later
    one, or most of what the first one kept is not there any more.
    """
    if not 0 <= base.taken_ns < target.taken_ns:
        return None
    before = {held.line: held.bytes for held in base.kept}
    after = {held.line: held.bytes for held in target.kept}
    kept, later = sum(before.values()), sum(after.values())
    remaining = sum(min(size, after.get(line, 0)) for line, size in before.items())
    grown = later - kept
    if 2 * remaining < kept or grown < max(_SAME_SHARE * base.peak_allocated_bytes, _FEWEST_BYTES):
        return None
    more, line = max((size - before.get(line, 0), line or "") for line, size in after.items())
    mostly = f", mostly from {line} ({format_bytes(more)} more)" if line else ""
    return (
        f"When the second snapshot was taken, {format_bytes(grown)} more was allocated than when"
        f" the first one was{mostly}. If both are of one run, the program keeps it: keep numbers,"
        " or copies on the host, instead of tensors on the device, and limit the size of caches."
    )


# A line is known by its file, its number and its function: `models/net.py:12 forward`. If a
# function has the same lines in both versions, nothing moved. Otherwise its lines are matched in
# their order, which edits seldom change, so that as little memory as possible appears or
# disappears; then so that few lines are new or gone; and then so that lines move as little as
# possible.

_LINE = regex(r"(?P<file>.+):(?P<number>\d+) (?P<function>.+)")
_MOST_PAIRS = 40_000
"""A tenth of a second. Functions have a handful of lines that allocate."""

_Cost = tuple[int, int, int]
"""Bytes that change, lines that are new or gone, and how far the others move."""
_Pairs = tuple[tuple[int, int], "_Pairs"] | None
"""The last pair, and those before it."""


Match = tuple[str | None, str | None]
"""A line in the first version and in the second one; None where it is missing."""


def match_lines(before: Mapping[str, int], after: Mapping[str, int]) -> list[Match]:
    """All lines of both versions, each once.

    Versions have bytes by line.
    """
    pairs: dict[str, str] = {line: line for line in before if line in after}
    old, new = _by_function(before), _by_function(after)
    for function in old.keys() & new.keys():
        first, second = old[function], new[function]
        if first.keys() == second.keys() or len(first) * len(second) > _MOST_PAIRS:
            continue
        for number, line in first.items():
            if number in second:
                del pairs[line.name]
        for was, now in _in_order(
            {number: line.bytes for number, line in first.items()},
            {number: line.bytes for number, line in second.items()},
        ):
            pairs[first[was].name] = second[now].name
    found = set(pairs.values())
    return [
        *((line, pairs.get(line)) for line in before),
        *((None, line) for line in after if line not in found),
    ]


def number_of(line: str) -> str:
    """The number of a line, or nothing if it has none."""
    found = _LINE.fullmatch(line)
    return found["number"] if found else ""


class _Line(Struct, frozen=True):
    name: str
    bytes: int


def _by_function(lines: Mapping[str, int]) -> dict[tuple[str, str], dict[int, _Line]]:
    """Lines by their number, of each function of a file."""
    found: dict[tuple[str, str], dict[int, _Line]] = defaultdict(dict)
    for line, size_bytes in lines.items():
        if parts := _LINE.fullmatch(line):
            function = parts["file"], parts["function"]
            found[function][int(parts["number"])] = _Line(line, size_bytes)
    return found


def _in_order(first: Mapping[int, int], second: Mapping[int, int]) -> list[tuple[int, int]]:
    """Pairs of lines in rising order at the least cost, as in an edit distance."""
    old, new = sorted(first), sorted(second)
    best: dict[tuple[int, int], tuple[_Cost, _Pairs]] = {(0, 0): ((0, 0, 0), None)}
    for row in range(len(old) + 1):
        for column in range(len(new) + 1):
            ways: list[tuple[_Cost, _Pairs]] = []
            if row:
                cost, pairs = best[row - 1, column]
                ways.append((_add(cost, first[old[row - 1]], 1, 0), pairs))
            if column:
                cost, pairs = best[row, column - 1]
                ways.append((_add(cost, second[new[column - 1]], 1, 0), pairs))
            if row and column:
                cost, pairs = best[row - 1, column - 1]
                was, now = old[row - 1], new[column - 1]
                paired = _add(cost, abs(second[now] - first[was]), 0, abs(now - was))
                ways.append((paired, ((was, now), pairs)))
            if ways:
                best[row, column] = min(ways, key=lambda way: way[0])
    pairs = best[len(old), len(new)][1]
    found = []
    while pairs is not None:
        pair, pairs = pairs
        found.append(pair)
    return found[::-1]


def _add(cost: _Cost, size_bytes: int, alone: int, moved: int) -> _Cost:
    return cost[0] + size_bytes, cost[1] + alone, cost[2] + moved
