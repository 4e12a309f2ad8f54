"""What a trial found, in numbers and words."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, sqrt
from typing import Final, Literal

import numpy as np
from msgspec import Struct

from tb_perfadvisor.proof.runs import Counters, Run
from tb_perfadvisor.trace.tables import Float64

MARGIN: Final = 0.03
"""A smaller change of the step is no difference."""
CONFIDENCE: Final = 0.95
"""Of the interval that is shown."""

Verdict = Literal["faster", "slower", "no difference", "undecided", "refused", "failed"]


class Effect(Struct, frozen=True):
    """By what share the step became shorter (positive) or longer (negative)."""

    low: float
    estimate: float
    high: float


class Prediction(Struct, frozen=True):
    """The share of the step that a finding says a change saves."""

    low: float
    expected: float
    high: float


def percent(share: float) -> str:
    """A share in percent, in whole ones from two on."""
    return f"{100 * share:.0f} %" if abs(share) >= 0.02 else f"{100 * share:.1f} %"


def span(low: float, high: float) -> str:
    """A range of shares in percent: `16–20 %`, `-0.4 to 0.8 %`."""

    def number(share: float) -> str:
        return f"{100 * share:.0f}" if max(abs(low), abs(high)) >= 0.1 else f"{100 * share:.1f}"

    first, last = number(low), number(high)
    joint = "–" if low >= 0 else " to "
    return f"{first} %" if first == last else f"{first}{joint}{last} %"


def effect_text(effect: Effect) -> str:
    """`18 % faster (16–20 %, 95 %)`, or slower."""
    is_slower = effect.estimate < 0
    word = "slower" if is_slower else "faster"
    low, high = (-effect.high, -effect.low) if is_slower else (effect.low, effect.high)
    return f"{percent(abs(effect.estimate))} {word} ({span(low, high)}, {percent(CONFIDENCE)})"


_FIRST: Final = 5
_EQUAL_WITHIN: Final = 1e-3
"""Of the first values: other orders of summation change float32 losses by 1e-5 or less, and what
follows may amplify that. TF32 and bfloat16 change them by more, and count as a change."""
_MEAN_WITHIN: Final = 0.01
"""Of the mean of the first fifty: rounding errors grow from step to step."""
_CLOSE_WITHIN: Final = 0.05
"""Within which a change that may cost accuracy, or draws other random numbers, is close."""
_TIMES_NOISE: Final = 3.0
_FEWEST_NOISY: Final = 3
"""Runs of an original without seeds that tell how much it differs by chance."""
_SEED_IT: Final = (
    "give each random generator of the program a seed, such as numpy.random.default_rng(0), "
    "and try again"
)
_COUNTER_NAMES: Final = {
    "optimizer_steps": "optimizer steps",
    "backward_passes": "backward passes",
    "samples": "samples",
    "input_elements": "input elements",
}
_ROWS: Final = ("samples", "input_elements", "backward_passes")

Agreement = Literal["equal", "close", "different", "not checked"]


class Results(Struct, frozen=True):
    """How the results of a change compare with those of the original."""

    agreement: Agreement
    text: str
    """In words: `losses equal`."""
    advice: str = ""
    """What to do so that they can be compared; empty for nothing."""


def skipped_work(base: Run, target: Run) -> str | None:
    """The counter by which a version does other work per step, in words; None if none does.

    Work is counted over the same steps of both runs. Loaders fetch ahead, so that samples may
    differ by those of a step. If everything but the optimizer's steps changed by the same factor,
    it is those that were skipped.
    """
    old, new = _common(base, target)
    if old is None or new is None:
        return None
    steps = _steps(old)
    ratios = {}
    for name in ("optimizer_steps", *_ROWS):
        before, after = (_done(each, name) for each in (old, new))
        if before:
            allowed = 0.0 if name in ("optimizer_steps", "backward_passes") else _slack(old, name)
            ratios[name] = 1.0 if abs(after - before) <= allowed else after / before
    unequal = {name: ratio for name, ratio in ratios.items() if ratio != 1.0}
    if not unequal:
        return None
    rows = [ratios[name] for name in _ROWS if name in ratios]
    same_factor = max(rows, default=1.0) - min(rows, default=1.0) <= 0.05 * max(rows, default=1.0)
    # A step of the program is one of its optimizer, so the others grow if it skips some.
    if len(rows) > 1 and same_factor and min(rows) > 1 and ratios["optimizer_steps"] == 1.0:
        return f"optimizer steps: {1 / min(rows):.3g} times as many for the same samples"
    name = min(unequal, key=lambda each: (unequal[each], each))
    before, after = _done(old, name) / steps, _done(new, name) / steps
    return f"{_COUNTER_NAMES[name]}: {after:,.6g} per step instead of {before:,.6g}"


def counted(run: Run) -> list[str]:
    """The names of what could be counted in a run."""
    return [
        text
        for name, text in _COUNTER_NAMES.items()
        if len(run.counters) > 1 and _done(run.counters, name)
    ]


def _common(base: Run, target: Run) -> tuple[Sequence[Counters] | None, Sequence[Counters] | None]:
    """The boundaries of the blocks that both runs measured."""
    if base.begin is None or target.begin is None or base.block_steps != target.block_steps:
        return None, None
    ahead = (target.begin - base.begin) // (base.block_steps or 1)
    old = base.counters[max(ahead, 0) :]
    new = target.counters[max(-ahead, 0) :]
    count = min(len(old), len(new))
    return (old[:count], new[:count]) if count > 1 else (None, None)


def common_blocks_ns(base: Run, target: Run) -> tuple[Float64, Float64]:
    """The times of the blocks of steps that both runs measured."""
    old, new = _common(base, target)
    if old is None or new is None:
        return np.empty(0), np.empty(0)
    first, second = (np.diff([float(row.at_ns) for row in rows]) for rows in (old, new))
    return first, second


def common_block_loads(base: Run, target: Run) -> Float64 | None:
    """The share of the cores that others used in these blocks, at most; None if it is unknown."""
    blocks, _ = common_blocks_ns(base, target)
    if base.begin is None or target.begin is None or not len(blocks):
        return None
    latest = max(base.begin, target.begin)
    loads = [
        run.block_loads[(latest - (run.begin or 0)) // (run.block_steps or 1) :][: len(blocks)]
        for run in (base, target)
    ]
    return None if min(map(len, loads)) < len(blocks) else np.max(loads, axis=0)


def _done(rows: Sequence[Counters], name: str) -> float:
    return float(getattr(rows[-1], name) - getattr(rows[0], name))


def _steps(rows: Sequence[Counters]) -> float:
    return max(_done(rows, "optimizer_steps"), 1.0)


def _slack(rows: Sequence[Counters], name: str) -> float:
    """What may differ by chance: a step's worth, and more where steps differ in size."""
    values = np.diff([float(getattr(row, name)) for row in rows])
    spread = float(values.std()) * sqrt(len(values))
    return _done(rows, name) / _steps(rows) + _TIMES_NOISE * spread


def compare_results(bases: Sequence[Run], targets: Sequence[Run], may_differ: str) -> Results:
    """Compare what versions computed, unless two runs of the original already differ.

    There are at least two runs of the original. `may_differ` says why small differences are
    expected of this change; empty if they are not.
    """
    compared = [
        *(
            _compare_series(name, _series(bases, name), _series(targets, name))
            for name in bases[0].series
        ),
        *(
            _compare_tensors(name, [run.tensors.get(name) for run in bases], targets)
            for name in bases[0].tensors
        ),
    ]
    known = [each for each in compared if each is not None]
    what = "tensors" if bases[0].tensors else "losses"
    if not known:
        return Results("not checked", "no results to compare")
    worst = max(known, key=lambda each: each.excess)
    if worst.excess:
        is_close = may_differ and worst.excess <= 1
        noise = "" if worst.noise is None else f"; with the change, {_unseeded(what, worst.noise)}"
        if is_close:
            return Results("close", f"{worst.text}{noise} ({may_differ})")
        return Results("different", f"{worst.text}{noise}")
    noises = [each.noise for each in known if each.noise is not None]
    if noises:
        return Results("not checked", _unseeded(what, max(noises)), _SEED_IT)
    return Results("equal", f"{what} equal")


class _Compared(Struct, frozen=True):
    """How one series or tensor of the versions compares."""

    excess: float = 0.0
    """How far it lies outside of what is equal, as a multiple of what is close; 0 inside."""
    text: str = ""
    noise: float | None = None
    """How far runs of one version differ, if by more than what is equal."""


def _unseeded(what: str, noise: float) -> str:
    by = f"by {percent(noise)}" if isfinite(noise) else "by a value that is no number"
    return f"{what} differ {by} between two runs of the same version: unseeded noise"


def _series(runs: Sequence[Run], name: str) -> list[Sequence[float | None]]:
    return [values for run in runs if (values := run.series.get(name, ()))]


def _compare_series(
    name: str, bases: Sequence[Sequence[float | None]], targets: Sequence[Sequence[float | None]]
) -> _Compared | None:
    """Compare a series; None if one of the versions has none."""
    if not bases or not targets:
        return None
    noise = _noise_of_series(bases)
    if noise is not None:
        # Chance may bring two runs close together, but seldom three.
        nearest = min(max(_difference(base, target)) for base in bases for target in targets)
        is_beyond = len(bases) >= _FEWEST_NOISY and nearest > _TIMES_NOISE * noise
        if not isfinite(nearest) and isfinite(noise):
            return _Compared(float("inf"), f"{name}: no number")
        if is_beyond:
            return _Compared(float("inf"), f"{name}: differs by {percent(nearest)}", noise)
        return _Compared(noise=noise)
    allowed = _TIMES_NOISE * max((max(_difference(bases[0], run)) for run in bases[1:]), default=0)
    excess, text = max(_excess(name, bases[0], target, allowed) for target in targets)
    return _Compared(excess, text, _noise_of_series(targets) if excess else None)


def _noise_of_series(runs: Sequence[Sequence[float | None]]) -> float | None:
    """By how much runs of one version differ, if by more than what is equal."""
    differences = [_difference(runs[0], run) for run in runs[1:]]
    if all(first <= _EQUAL_WITHIN and mean <= _MEAN_WITHIN for first, mean in differences):
        return None
    return max(max(each) for each in differences)


def _compare_tensors(
    name: str, bases: Sequence[Float64 | None], targets: Sequence[Run]
) -> _Compared:
    first = bases[0]
    assert first is not None
    noise = max((_distance(first, other) for other in bases[1:]), default=0.0)
    distances = [_distance(first, run.tensors.get(name)) for run in targets]
    if noise > _EQUAL_WITHIN:
        is_beyond = len(bases) >= _FEWEST_NOISY and min(distances) > _TIMES_NOISE * noise
        if not is_beyond and isfinite(max(distances)):
            return _Compared(noise=noise)
    worst = max(distances)
    if worst <= max(_EQUAL_WITHIN, _TIMES_NOISE * noise):
        return _Compared()
    return _Compared(worst / _CLOSE_WITHIN, f"tensor {name}: differs by {percent(worst)}")


def _difference(
    first: Sequence[float | None], second: Sequence[float | None]
) -> tuple[float, float]:
    """How far the first values differ at most, and how far their means do, relatively."""
    both = [
        (before, after)
        for before, after in zip(first, second, strict=False)
        if before is not None and after is not None
    ]
    count = min(len(first), len(second))
    if len(both) < sum(value is not None for value in first[:count]):
        return float("inf"), float("inf")  # it has become infinite or no number
    if not both:
        return 0.0, 0.0
    old, new = np.array(both, np.float64).T
    size = float(np.abs(old).mean())
    if size == 0 or not isfinite(size):
        return (0.0, 0.0) if np.array_equal(old, new) else (float("inf"), float("inf"))
    return (
        float(np.abs(new - old)[:_FIRST].max()) / size,
        abs(float(new.mean() - old.mean())) / size,
    )


def _excess(
    name: str, base: Sequence[float | None], target: Sequence[float | None], allowed: float
) -> tuple[float, str]:
    """How far a series lies outside of what is equal, as a multiple of what is close; 0 inside."""
    first, mean = _difference(base, target)
    if first <= max(_EQUAL_WITHIN, allowed) and mean <= max(_MEAN_WITHIN, allowed):
        return 0.0, ""
    largest = max(first, mean)
    said = f"{name}: differs by {percent(largest)}" if isfinite(largest) else f"{name}: no number"
    return largest / max(_CLOSE_WITHIN, allowed), said


def _distance(first: Float64, second: Float64 | None) -> float:
    if second is None or first.shape != second.shape:
        return float("inf")
    size = float(np.linalg.norm(first))
    distance = float(np.linalg.norm(first - second))
    return distance / size if size else (0.0 if distance == 0 else float("inf"))
