"""Tries a change: runs pairs of versions until a verdict is proved, refused, or out of reach."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from math import ceil, exp, floor, log, sqrt
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Final, Literal, Protocol

import msgspec
import numpy as np
from msgspec import Struct

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.proof.results import (
    MARGIN,
    Effect,
    Results,
    Verdict,
    common_block_loads,
    common_blocks_ns,
    compare_results,
    counted,
    skipped_work,
)
from tb_perfadvisor.proof.runs import BLOCKS_IN_TURNS, WINDOW_S, Plan, Run

# The unit of evidence is a pair of runs, one of each version. Steps of one run are correlated, and
# share what is peculiar to their process, so they count as one reading. A pair's reading is the
# logarithm of the ratio of its step times.
#
# After 3, 4, 6, 8, 12, 16, 24, 32 and 48 pairs, the test looks at Student's interval of the mean
# reading. The looks share the allowed error (Bonferroni), so that the interval at which the test
# ends holds with the stated confidence, however often it looked. A look's share is inverse to its
# pairs: with few of them Student's interval is wide, a larger share narrows it most, and a trial
# that ends early saves its user the most time. The test ends as soon as the interval lies
#
# - beyond the margin: `faster` or `slower`, - within the margin on both sides: `no difference`.
#
# A change whose true effect is within the margin is so called faster or slower in less than 1 % of
# the trials, and one whose effect is beyond the margin is called without effect in less than 1 %.
# An effect near the margin may stay `undecided`.

ALPHA: Final = 0.01
LOOKS: Final = (3, 4, 6, 8, 12, 16, 24, 32, 48)
QUANTILES: Final = MappingProxyType(
    {
        3: (18.2449, 8.0857),
        4: (9.8225, 5.6063),
        6: (6.2879, 4.3332),
        8: (5.3015, 3.9394),
        12: (4.6140, 3.6625),
        16: (4.3594, 3.5680),
        24: (4.1643, 3.5127),
        32: (4.0949, 3.5082),
        48: (4.0557, 3.5326),
    }
)
"""By number of pairs, Student's t with one degree of freedom less: the quantiles that the look's
shares of ALPHA and of 1 - CONFIDENCE leave out on both sides together."""

Decision = Literal["faster", "slower", "no difference", "undecided"]


class Look(Struct, frozen=True):
    """What the pairs so far say."""

    decision: Decision
    effect: Effect | None
    """At 95 % confidence; None before the first look."""


def look(readings: Sequence[float]) -> Look:
    """Look at the pairs so far.

    A reading is the logarithm of new ÷ old step time of a pair.
    """
    pairs = max((count for count in LOOKS if count <= len(readings)), default=0)
    if not pairs:
        return Look("undecided", None)
    counted = readings[:pairs]
    mean, error = float(np.mean(counted)), float(np.std(counted, ddof=1)) / sqrt(pairs)
    strict, shown = (quantile * error for quantile in QUANTILES[pairs])
    effect = Effect(1 - exp(mean + shown), 1 - exp(mean), 1 - exp(mean - shown))
    low, high = mean - strict, mean + strict
    if high < log(1 - MARGIN):
        return Look("faster", effect)
    if low > log(1 + MARGIN):
        return Look("slower", effect)
    if low > log(1 - MARGIN) and high < log(1 + MARGIN):
        return Look("no difference", effect)
    return Look("undecided", effect)


def is_look(pairs: int) -> bool:
    """Whether the test looks after this many pairs."""
    return pairs in LOOKS


MOST_LOAD_CHANGE: Final = 0.10
"""If others used a share of the cores in one run of a pair that differs by more, it is repeated."""
_FREE_SHARE: Final = 0.05
_MOST_REPEATS: Final = 2
"""In a row; then the pair counts. The machine is not going to be quieter, and the spread of the
pairs says what that costs."""
_FEWEST_BLOCKS: Final = 6
_TRIMMED: Final = 6
"""A sixth of a pair's blocks are left out at each end: pauses of the machine hit a block or two."""
_LEAST_LIMIT_S: Final = 120.0
_TIMES_AS_LONG: Final = 5.0
_RATHER_SHORT: Final = 30
_SHORTER: Final = 0.8
_MOST_WINDOWS: Final = 4
"""As many windows one after the other, at most: longer ones tell little more than the next pair."""
_PAIRS_THAT_FIT: Final = 8
"""So many pairs fit into the budget, if they do with the shortest window."""
_SEED: Final = 0

Progress = Callable[[str], None]


class Measures(Protocol):
    """What runs versions of a program: `Runner`, or a stand-in with a clock of its own."""

    def measure(self, version: Path, name: str, plan: Plan, limit_s: float) -> Run:
        """Run a version until its steps are measured."""

    def why_not_in_turns(self, *runs: Run) -> str:
        """Why versions cannot be measured in turns, by a run of each; empty if they can."""

    def measure_in_turns(
        self, base: Path, change: Path, name: str, plan: Plan, limit_s: float, *, base_first: bool
    ) -> tuple[Run, Run]:
        """Run both versions until their steps are measured, a block of each in turns."""


class Trial(Struct, frozen=True):
    """What a trial of a change showed."""

    verdict: Verdict
    reason: str
    """Why it is refused, failed or undecided; otherwise empty."""
    effect: Effect | None
    """None before the first look."""
    pairs: int
    in_turns: bool
    """Whether the versions ran in turns, a block each; else one after the other."""
    repeated: int
    """Pairs that were repeated because the load by others differed between their runs."""
    load: float | None
    """The mean share of the cores that others used; None if it is unknown."""
    base_step_ns: float | None
    step_ns: float | None
    base_start_up_s: float | None
    """From the start of the original to its first measured step, in its first run."""
    start_up_s: float | None
    steps_per_run: int
    results: Results
    counted: tuple[str, ...]
    """The counters that were compared."""
    versions: Mapping[str, str]
    accelerator: str


def try_change(
    runner: Measures,
    base: Path,
    change: Path,
    name: str,
    *,
    budget_s: float,
    checks: Sequence[str] = (),
    may_differ: str = "",
    progress: Progress = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
) -> Trial:
    """Run pairs of the original and the changed program until there is a verdict.

    After `budget_s`, no further pair begins. `checks` are patterns of the names of tensors to
    compare. `may_differ` says why small differences of results are expected; empty if they are not.
    The clock is in seconds.
    """
    return _Trial(runner, base, change, name, budget_s, checks, may_differ, progress, clock).run()


class _Trial:
    def __init__(
        self,
        runner: Measures,
        base: Path,
        change: Path,
        name: str,
        budget_s: float,
        checks: Sequence[str],
        may_differ: str,
        progress: Progress,
        clock: Callable[[], float],
    ) -> None:
        self._runner, self._base, self._change, self._name = runner, base, change, name
        self._plan = Plan(checks=tuple(checks))
        self._may_differ, self._progress, self._clock = may_differ, progress, clock
        self._ends_s = clock() + budget_s
        self._bases: list[Run] = []
        self._changed: list[Run] = []
        self._readings: list[float] = []
        self._repeated = 0
        self._in_turns = False
        self._is_short = False
        """Whether the program ends by itself before the window would."""
        self._longest_pair_s = 0.0
        self._order = random.Random(_SEED)

    def run(self) -> Trial:
        refused = self._first_pair()
        if refused is not None:
            return refused
        alone = self._plan
        self._in_turns = not self._runner.why_not_in_turns(self._bases[0], self._changed[0])
        if self._in_turns:
            self._readings.clear()  # readings of one kind only
            self._plan = self._plan_of_turns()
        base_first, repeats = True, 0
        while len(self._readings) < LOOKS[-1]:
            if self._clock() + self._longest_pair_s > self._ends_s:
                return self._trial("undecided", "the budget was spent")
            # Pairs of pairs in opposite orders cancel a drift; the random first order cancels what
            # comes and goes with a period.
            if not repeats:
                is_second = len(self._readings) % 2
                base_first = not base_first if is_second else self._order.random() < 0.5
            old, new, problem = self._pair(base_first)
            if problem and self._in_turns:
                shorter = self._shorter_plan(old, new)
                if shorter is None:
                    # It works alone: two of it may want the same port.
                    self._in_turns, shorter = False, alone
                self._plan = shorter
                self._readings.clear()
                continue
            if problem:
                return self._trial("failed", problem)
            refused = self._refusal(old, new)
            if refused is not None:
                return refused
            if _is_disturbed(old, new) and repeats < _MOST_REPEATS:
                repeats += 1
                self._repeated += 1
                continue
            repeats = 0
            self._read(old, new)
            if is_look(len(self._readings)):
                seen = look(self._readings)
                if seen.decision != "undecided":
                    return self._trial(seen.decision, "")
        return self._trial("undecided", f"{LOOKS[-1]} pairs do not tell")

    def _first_pair(self) -> Trial | None:
        """Choose the steps to measure, and look for a reason not to go on."""
        began_s = self._clock()
        old = self._measure_first_base()
        new = self._runner.measure(self._change, self._name, self._plan, self._limit_s(old))
        self._longest_pair_s = self._clock() - began_s
        if new.problem or not new.counters:
            self._bases, self._changed = [old], [new]
            return self._trial("failed", new.problem or f"it ended after {new.steps} steps")
        self._follow(new)
        refused = self._refusal(old, new)
        if refused is None:
            self._read(old, new)
        return refused

    def _measure_first_base(self) -> Run:
        limit_s = max(self._ends_s - self._clock(), 1.0)
        run = self._runner.measure(self._base, "base", self._plan, limit_s)
        if not run.problem and not run.is_complete and run.begin is not None:
            # The program ends by itself before the window does: measure fewer steps.
            blocks = 2 * _FEWEST_BLOCKS
            block_steps = (run.steps - run.begin - 1) // blocks
            if block_steps:
                self._is_short = True
                self._plan = msgspec.structs.replace(
                    self._plan, begin=run.begin, block_steps=block_steps
                )
                run = self._runner.measure(self._base, "base", self._plan, limit_s)
        if run.problem or not run.is_complete:
            raise PerfAdvisorError(
                "the program cannot be measured as it is: "
                + (run.problem or f"it ended after {run.steps} steps")
                + ".",
                hint=f"A trial needs about {_RATHER_SHORT} steps of an optimizer, of Keras's fit, "
                "or marked with `step()` of tb_perfadvisor.instrument's `continuous`.",
            )
        self._follow(run)
        return run

    def _pair(self, base_first: bool) -> tuple[Run, Run, str]:
        began_s = self._clock()
        limit_s = self._limit_s(*self._bases)
        number = len(self._readings) + 1
        if self._in_turns:
            self._progress(f"pair {number}, in turns")
            old, new = self._runner.measure_in_turns(
                self._base, self._change, self._name, self._plan, 2 * limit_s, base_first=base_first
            )
        else:
            runs = {}
            for is_base in (base_first, not base_first):
                self._progress(f"pair {number}: {'original' if is_base else 'with the change'}")
                version, name = (self._base, "base") if is_base else (self._change, self._name)
                runs[is_base] = self._runner.measure(version, name, self._plan, limit_s)
            old, new = runs[True], runs[False]
        self._longest_pair_s = max(self._longest_pair_s, self._clock() - began_s)
        if self._in_turns and not (old.is_complete and new.is_complete):
            return old, new, "a program ended in its turn"
        if old.problem:
            return old, new, f"the original could not be repeated: {old.problem}"
        return old, new, new.problem

    def _refusal(self, old: Run, new: Run) -> Trial | None:
        """The reason not to go on, if these runs show one."""
        self._bases.append(old)
        self._changed.append(new)
        skipped = skipped_work(old, new)
        if skipped is not None:
            return self._trial("refused", skipped)
        if len(self._bases) > 1:
            results = self._results()
            if results.agreement == "different":
                return self._trial("refused", results.text)
        return None

    def _read(self, old: Run, new: Run) -> None:
        reading = _reading(old, new)
        if reading is not None:
            self._readings.append(reading)
        else:
            # One of the versions was warming up for longer. From now on both are measured later.
            latest = max(run.begin for run in (old, new) if run.begin is not None)
            self._plan = msgspec.structs.replace(self._plan, begin=latest)
            self._repeated += 1

    def _plan_of_turns(self) -> Plan:
        """More and shorter blocks, if the program makes enough steps; of both versions together.

        A run that took long to start is measured for about as long: if the noise is that of
        blocks, it needs the least time so; if it is that of runs, it needs less than twice that.
        """
        both = (self._bases[0], self._changed[0])
        steps_ns = [run.step_ns for run in both if run.step_ns]
        if self._is_short or not steps_ns:
            return self._plan
        steps = ceil(WINDOW_S * 1e9 / BLOCKS_IN_TURNS / fmean(steps_ns))
        start_up_s = fmean(run.start_up_s or 0.0 for run in both)
        pair_s = (self._ends_s - self._clock()) / _PAIRS_THAT_FIT
        fitting = floor((pair_s / 2 - start_up_s) / WINDOW_S)
        windows = max(min(round(start_up_s / WINDOW_S), fitting, _MOST_WINDOWS), 1)
        return msgspec.structs.replace(
            self._plan, blocks=windows * BLOCKS_IN_TURNS, block_steps=steps
        )

    def _shorter_plan(self, old: Run, new: Run) -> Plan | None:
        """Fewer or shorter blocks, if a program ended by itself in its turn; None otherwise."""
        is_end = any(not run.problem and not run.is_complete for run in (old, new))
        begin, steps = self._plan.begin or 0, max(old.steps, new.steps)
        # Where both warm up at once, the window may begin later, so that the rest is too short.
        blocks, longest = self._plan.blocks, self._plan.block_steps or 0
        if blocks > BLOCKS_IN_TURNS:
            blocks = BLOCKS_IN_TURNS
        else:
            longest = int(_SHORTER * longest)
        block_steps = min((steps - begin - 1) // blocks, longest)
        if not is_end or block_steps < 1:
            return None
        return msgspec.structs.replace(self._plan, blocks=blocks, block_steps=block_steps)

    def _follow(self, run: Run) -> None:
        if self._plan.begin is None:
            self._plan = msgspec.structs.replace(
                self._plan, begin=run.begin, block_steps=run.block_steps
            )

    def _limit_s(self, *runs: Run) -> float:
        """What a run may take: several times as long as the original."""
        return max(_LEAST_LIMIT_S, _TIMES_AS_LONG * max(run.whole_s for run in runs))

    def _results(self) -> Results:
        return compare_results(self._bases, self._changed, self._may_differ)

    def _trial(self, verdict: Verdict, reason: str) -> Trial:
        seen = look(self._readings) if verdict != "refused" else Look("undecided", None)
        loads = [run.load.others for run in (*self._bases, *self._changed) if run.load is not None]
        first, last = self._bases[0], self._bases[-1]
        return Trial(
            verdict=verdict,
            reason=reason,
            effect=seen.effect,
            pairs=len(self._readings),
            in_turns=self._in_turns,
            repeated=self._repeated,
            load=fmean(loads) if loads else None,
            base_step_ns=_usual(self._bases),
            step_ns=_usual(self._changed),
            base_start_up_s=first.start_up_s,
            start_up_s=self._changed[0].start_up_s if self._changed else None,
            steps_per_run=(len(last.counters) - 1) * (last.block_steps or 0),
            results=self._results()
            if self._changed and self._changed[-1].counters
            else Results("not checked", "no results to compare"),
            counted=tuple(counted(first)),
            versions=first.versions,
            accelerator=first.accelerator,
        )


def _reading(old: Run, new: Run) -> float | None:
    """The logarithm of the ratio of step times; None if too few blocks are common.

    Blocks in turns are left out where others used the cores, so that the rest tells all that steps
    do, also what they do seldom. Where that is not known block by block, the extreme ones are.
    """
    before, after = common_blocks_ns(old, new)
    if len(before) < _FEWEST_BLOCKS:
        return None
    loads = common_block_loads(old, new)
    if loads is not None:
        is_quiet = loads <= MOST_LOAD_CHANGE
        if is_quiet.sum() >= _FEWEST_BLOCKS:
            return log(float(after[is_quiet].sum() / before[is_quiet].sum()))
    ratios = np.sort(np.log(after / before))
    out = len(ratios) // _TRIMMED
    return float(ratios[out : len(ratios) - out].mean())


def _is_disturbed(old: Run, new: Run) -> bool:
    """Whether others used much more of the cores in one run than in the other.

    If no core was idle in the run in which they used less, that says nothing: a change that uses
    more cores leaves less to others.
    """
    if old.load is None or new.load is None:
        return False
    less, more = sorted((old.load, new.load), key=lambda load: load.others)
    return more.others - less.others > MOST_LOAD_CHANGE and less.idle >= _FREE_SHARE


def _usual(runs: Sequence[Run]) -> float | None:
    known = sorted(run.step_ns for run in runs if run.step_ns is not None)
    return known[len(known) // 2] if known else None
