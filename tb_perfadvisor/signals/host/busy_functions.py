"""The functions in which `run` saw a program most often, over its whole run."""

from __future__ import annotations

from typing import NamedTuple

from tb_perfadvisor.machine.facts import Line, Lines
from tb_perfadvisor.signals.signals import Signals

_OFTEN = 0.05
_MAKES_SAMPLES = frozenset({"__getitem__", "__getitems__", "__iter__", "__next__", "collate_fn"})
"""What data sets of PyTorch and Keras define, and what loaders call."""
_FRAMEWORKS = frozenset({"torch", "tensorflow", "keras", "jax", "jaxlib", "flax", "optax"})
_CONVERSIONS = frozenset(
    {"array", "as_tensor", "asarray", "constant", "convert_to_tensor", "tensor"}
)
"""Functions of frameworks that make an array of the program's values, before anything runs. NumPy
and the frameworks go through lists of Python numbers one by one."""


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


def _is_outside(line: Line) -> bool:
    is_framework = line.calls.partition(".")[0] in _FRAMEWORKS
    return not is_framework or _converts(line) or line.side_work is not None


def _converts(line: Line) -> bool:
    """Whether the line calls a framework, which converts values before it runs anything."""
    names = line.calls.split(".")
    return names[0] in _FRAMEWORKS and names[-1] in _CONVERSIONS
