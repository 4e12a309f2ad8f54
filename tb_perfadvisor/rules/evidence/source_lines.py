"""The lines of the program that the main thread was seen in."""

from __future__ import annotations

from typing import NamedTuple

from tb_perfadvisor.machine.facts import Line, Lines
from tb_perfadvisor.rules.finding import Column, Table
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.units import format_share

_MOST = 12
_OFTEN = 0.05
_MAKES_SAMPLES = frozenset({"__getitem__", "__getitems__", "__iter__", "__next__", "collate_fn"})
"""What data sets of PyTorch and Keras define, and what loaders call."""
_FRAMEWORKS = frozenset({"torch", "tensorflow", "keras", "jax", "jaxlib", "flax", "optax"})
_CONVERSIONS = frozenset(
    {"array", "as_tensor", "asarray", "constant", "convert_to_tensor", "tensor"}
)
"""Functions of frameworks that make an array of the program's values, before anything runs. NumPy
and the frameworks go through lists of Python numbers one by one."""


def lines_tables(lines: Lines | None) -> tuple[Table, ...]:
    """A table of lines with their share of the run, and what they call; none if none were seen."""
    if lines is None:
        return ()
    rows = tuple((_place(line), line.calls or None, line.share) for line in lines.lines[:_MOST])
    columns = (
        Column("line", "Source line"),
        Column("calls", "Calls"),
        Column("share", "Of the time", "share"),
    )
    return (Table("Where the program was, over its whole run", columns, rows),)


def described(line: Line) -> str:
    """`70 % of the time in train.py:52 train, which calls matplotlib.pyplot.pause`."""
    calls = f", which calls {line.calls}" if line.calls else ""
    return f"{format_share(line.share)} of the time in {_place(line)}{calls}"


class BusyFunction(NamedTuple):
    """A function of the program, and the lines in which it was seen."""

    lines: tuple[Line, ...]
    """The one with most time first."""

    @property
    def share(self) -> float:
        """Of the time."""
        return sum(line.share for line in self.lines)

    @property
    def makes_samples(self) -> bool:
        """Whether a data set is asked for a sample or a batch by this function."""
        return self.lines[0].function in _MAKES_SAMPLES

    @property
    def converts(self) -> bool:
        """Whether it is mostly in functions that make an array of Python values."""
        converting = sum(line.share for line in self.lines if _converts(line))
        return 2 * converting > self.share

    def __str__(self) -> str:
        first = self.lines[0]
        return f"{first.function or 'module'} ({first.path}:{first.line})"


def busiest_function(lines: Lines | None) -> BusyFunction | None:
    """The function in which the program was most often outside of frameworks; None if seldom.

    What frameworks do is in profiles, but for what they make of Python values. Each line of a
    script's top level counts by itself: together they may be the whole program.
    """
    found: dict[tuple[str, str, int], list[Line]] = {}
    for line in () if lines is None else lines.lines:
        if _is_outside(line):
            place = line.path, line.function, 0 if line.function else line.line
            found.setdefault(place, []).append(line)
    functions = (BusyFunction(tuple(sorted(of, key=lambda o: -o.share))) for of in found.values())
    busiest = max(functions, key=lambda function: function.share, default=None)
    return busiest if busiest is not None and busiest.share >= _OFTEN else None


def busiest_for(signals: Signals, total_ns: int) -> BusyFunction | None:
    """The function that looks over the whole run found for at least half of some time."""
    found = busiest_function(signals.trace.facts.lines)
    window_ns = signals.attribution.window_ns
    return found if found is not None and 2 * found.share * window_ns >= total_ns else None


def likely_ns(
    signals: Signals, function: BusyFunction | None, total_ns: int, others_ns: int
) -> int:
    """What to expect of gaps that no event explains, and in which a function was seen.

    Args:
        signals: Of the profile.
        function: None if none was.
        total_ns: All of the gaps.
        others_ns: What other programs took of the cores meanwhile.
    """
    half_ns = (total_ns - others_ns) // 2
    if function is None or not function.converts:
        return half_ns
    # With NumPy on one core, batches of rows of an array were copied 14 to 40 times faster than
    # lists of Python numbers were converted.
    spent_ns = int(function.share * signals.attribution.window_ns)
    return max(half_ns, min(spent_ns, total_ns) * 9 // 10)


def seen_most(lines: Lines | None) -> str:
    """Where the program was most often outside of frameworks; empty if that was not often."""
    found = busiest_function(lines)
    if found is None:
        return ""
    if len(found.lines) == 1:
        return f". Over its whole run, the program was {described(found.lines[0])}"
    share = format_share(found.share)
    return f". Over its whole run, the program was {share} of the time in {found}"


def _is_outside(line: Line) -> bool:
    is_framework = line.calls.partition(".")[0] in _FRAMEWORKS
    return not is_framework or _converts(line) or line.side_work is not None


def _converts(line: Line) -> bool:
    """Whether the line calls a framework, which converts values before it runs anything."""
    names = line.calls.split(".")
    return names[0] in _FRAMEWORKS and names[-1] in _CONVERSIONS


def _place(line: Line) -> str:
    return f"{line.path}:{line.line} {line.function}".strip()
