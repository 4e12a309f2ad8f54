"""The functions in which `run` saw a program most often, over its whole run."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from tb_perfadvisor.machine.facts import OF_TRAINING, Activity, Line, Lines
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.signals.signals import Signals

_OFTEN = 0.05
_FEWEST_LOOKS = 20
"""With fewer, a line in several of them may be chance."""
_FEWEST_OF_PLACE = 5
"""Looks that find a function. Fewer say little of what it takes."""
_RARELY_AGAIN = 0.25
"""Of the times that a program comes to its lines if looks find these by chance. It comes to a line
less often if that grows, but no less than half as often."""
_MAKES_SAMPLES = frozenset({"__getitem__", "__getitems__", "__iter__", "__next__", "collate_fn"})
"""What data sets of PyTorch and Keras define, and what loaders call."""
_PASSING: tuple[Activity, ...] = ("operators", "parts")
_FRAMEWORKS = frozenset({"torch", "tensorflow", "keras", "jax", "jaxlib", "flax", "optax"})
_CONVERSIONS = frozenset(
    {"array", "as_tensor", "asarray", "constant", "convert_to_tensor", "tensor"}
)
"""Functions of frameworks that make an array of the program's values, before anything runs. NumPy
and the frameworks go through lists of Python numbers one by one."""
_EVALUATES = regex(
    r"(?i)(?:.*[._])?(?:eval|valid|val_|test|predict|infer|accura|scor|metric|recall|precision)\w{0,60}"
    r"|torch\.(?:nn|utils\._contextlib)\..*|(?:keras|tensorflow\.python\.eager\.polymorphic)(?:[._].*)"
)
"""Functions that say so, calls of models, and what PyTorch runs without gradients."""


class BusyFunction(NamedTuple):
    """A function of the program, and the lines in which it was seen."""

    lines: tuple[Line, ...]
    """The one with most time first."""

    @property
    def share(self) -> float:
        """Of the time."""
        return sum(line.share for line in self.lines)

    @property
    def activity(self) -> Activity | None:
        """What is done there for more than half of its time; None if nothing is.

        Making arrays and copying their parts go together: both pass over memory.
        """
        shares: dict[Activity | None, float] = defaultdict(float)
        for line in self.lines:
            shares[line.activity] += line.share
        passing = max(_PASSING, key=shares.__getitem__)
        shares[passing] = sum([shares.pop(each) for each in _PASSING])
        activity = max(shares, key=shares.__getitem__)
        return activity if 2 * shares[activity] > self.share else None

    @property
    def loops(self) -> bool:
        """Whether most of the time is in a loop inside of the step, over calls or instructions."""
        looping = sum(line.share for line in self.lines if line.is_in_loop)
        return self.activity in ("calls", "Python") and 2 * looping > self.share

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


def busiest_function(lines: Lines | None, *, of_steps: bool = False) -> BusyFunction | None:
    """The function in which the program was most often outside of frameworks; None if seldom.

    What frameworks do is in profiles, but for what they make of Python values. Each line of a
    script's top level counts by itself: together they may be the whole program. So does side work
    of a function, which is left out if the function is to be one of the steps.
    """
    if lines is None or lines.looks < _FEWEST_LOOKS:
        return None
    found: dict[tuple[object, ...], list[Line]] = {}
    for line in lines.lines:
        is_beside = is_beside_steps(line)
        if _is_outside(line) and not (of_steps and is_beside):
            place = line.path, line.function, 0 if line.function else line.line, is_beside
            found.setdefault(place, []).append(line)
    functions = (BusyFunction(tuple(sorted(of, key=lambda o: -o.share))) for of in found.values())
    busiest = max(functions, key=lambda function: function.share, default=None)
    least = max(_OFTEN, _FEWEST_OF_PLACE / lines.looks)
    return busiest if busiest is not None and busiest.share >= least else None


def runs_in_phases(lines: Lines | None, steps: int) -> bool:
    """Whether the program did one thing after the other, and not the same in each of its steps.

    What is the same in each step comes again and again, so that looks at random find it in turns
    with all else of the step.
    """
    if lines is None or lines.looks < _FEWEST_LOOKS:
        return False
    spells = [line.spells for line in lines.lines if line.spells is not None]
    in_turns = sum(line.share * (1 - line.share) for line in lines.lines) * lines.looks
    return bool(spells) and sum(spells) < _RARELY_AGAIN * min(in_turns, steps)


def side_work_share(lines: Lines | None) -> float:
    """The share of the time that goes into what not every step does; 0 if seldom."""
    if lines is None or lines.looks < _FEWEST_LOOKS:
        return 0.0
    share = sum(line.share for line in lines.lines if line.side_work is not None)
    return share if share >= _OFTEN else 0.0


def share_with_loops(lines: Lines, function: BusyFunction) -> float:
    """The share of a function, and if it is in loops, of what else Python does in such loops.

    All of it goes when one call does what a loop does.
    """
    if not function.loops:
        return function.share
    shares = (
        line.share
        for line in lines.lines
        if line.is_in_loop and line.activity == "Python" and _is_outside(line)
        if line not in function.lines and not is_beside_steps(line)
    )
    return min(function.share + sum(shares), 1.0)


def is_beside_steps(line: Line) -> bool:
    """Whether a line draws, saves, logs or evaluates.

    What runs every few steps, or between epochs, counts only if it evaluates. It may be a part of
    the work, such as a branch of a formula, or fetching what the steps need.
    """
    if line.side_work in OF_TRAINING:
        return _EVALUATES.fullmatch(line.calls) is not None
    return line.side_work is not None


def feeds_steps(line: Line) -> bool:
    """Whether a line makes samples or batches, or asks for them."""
    return not _MAKES_SAMPLES.isdisjoint((line.function, line.calls.rpartition(".")[2]))


def busiest_for(signals: Signals, total_ns: int) -> BusyFunction | None:
    """The function that looks over the whole run found for at least half of some time."""
    found = busiest_function(signals.trace.facts.lines)
    window_ns = signals.attribution.window_ns
    return found if found is not None and 2 * found.share * window_ns >= total_ns else None


def _is_outside(line: Line) -> bool:
    is_framework = line.calls.partition(".")[0] in _FRAMEWORKS or line.activity == "compiling"
    return not is_framework or _converts(line) or is_beside_steps(line)


def _converts(line: Line) -> bool:
    """Whether the line calls a framework, which converts values before it runs anything."""
    names = line.calls.split(".")
    return names[0] in _FRAMEWORKS and names[-1] in _CONVERSIONS
