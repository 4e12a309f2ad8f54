"""Matches the lines of two versions of a program, in which edits moved some of them.

A line is known by its file, its number and its function: `models/net.py:12 forward`. If a function
has the same lines in both versions, nothing moved. Otherwise its lines are matched in their order,
which edits seldom change, so that as little memory as possible appears or disappears; then so that
few lines are new or gone; and then so that lines move as little as possible.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from msgspec import Struct

_LINE = re.compile(r"(?P<file>.+):(?P<number>\d+) (?P<function>.+)")
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
