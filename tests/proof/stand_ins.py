"""A machine and a program that the tests control: no process runs, and no time passes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Load
from tb_perfadvisor.proof.runs import BLOCKS, Counters, Plan, Run

BASE, CHANGE = Path("base"), Path("change")
Noise = Callable[[int, int], float]
"""The factor by which a block takes longer, by the numbers of the run and of the block."""


class Program:
    """Measures made-up runs, and advances a clock by what they would have taken."""

    def __init__(
        self,
        step_s: float = 0.010,
        change: float = 1.0,
        *,
        noise: Noise = lambda run, block: 1.0,
        work: Mapping[Path, Counters] | None = None,
        losses: Mapping[Path, Sequence[float | None]] | None = None,
        loads: Sequence[Load | None] = (Load(0.0, 0.5),),
        problems: Sequence[str] = (),
        warm_up: Mapping[Path, int] | None = None,
        start_up_s: float = 3.0,
        in_turns: bool = False,
        block_loads: Sequence[float] = (),
        has_own_noise: bool = False,
    ) -> None:
        """Prepare.

        Args:
            step_s: What a step of the original takes.
            change: By what factor a step of the changed program takes longer.
            noise: Of each block.
            work: What each version does per step; `at_ns` is not used.
            losses: What each version computes.
            loads: By others, run by run; the last one repeats.
            problems: Run by run; further runs have none.
            warm_up: After how many steps each version can be measured.
            start_up_s: From the start of a run to its window.
            in_turns: Whether versions can be measured in turns: blocks of both then have the same
                noise.
            block_loads: The share of the cores that others use in each block of a turn.
            has_own_noise: Whether versions that take turns have noise of their own instead.
        """
        self.now_s = 0.0
        self.ran: list[str] = []
        self._step_s, self._change = step_s, change
        self._noise = cache(noise)
        self._work = work or {}
        self._losses = losses or {}
        self._loads, self._problems = loads, problems
        self._warm_up = warm_up or {}
        self._start_up_s = start_up_s
        self._can_take_turns, self._block_loads = in_turns, tuple(block_loads)
        self._has_own_noise = has_own_noise

    def clock(self) -> float:
        """Seconds of the made-up runs so far."""
        return self.now_s

    def why_not_in_turns(self, *runs: Run) -> str:
        """Whatever the test said."""
        return "" if self._can_take_turns else "the test says so"

    def measure_in_turns(
        self, base: Path, change: Path, name: str, plan: Plan, limit_s: float, *, base_first: bool
    ) -> tuple[Run, Run]:
        """A run of each version, at the same time."""
        number = len(self.ran)
        began_s = self.now_s
        numbers = (number, number + self._has_own_noise)
        runs = [
            replace(self._run(each, plan, of), block_loads=self._block_loads)
            for each, of in zip((base, change), numbers, strict=True)
        ]
        # Both start at the same time, and each waits for the other's turns.
        self.now_s = began_s + sum(run.whole_s for run in runs) - self._start_up_s
        return runs[0], runs[1]

    def measure(self, version: Path, name: str, plan: Plan, limit_s: float) -> Run:
        """A run of a version."""
        return self._run(version, plan, len(self.ran))

    def _run(self, version: Path, plan: Plan, number: int) -> Run:
        self.ran.append(version.name)
        begin = plan.begin or 10
        block_steps = plan.block_steps or max(round(2.5 / BLOCKS / self._step_s), 2)
        while begin < self._warm_up.get(version, 0):
            begin += block_steps
        step_s = self._step_s * (self._change if version == CHANGE else 1.0)
        work = self._work.get(version, Counters(0, 1, 1, 8, 1024))
        counters = [Counters(0, *(begin * each for each in _per_step(work)))]
        for block in range(plan.blocks):
            last = counters[-1]
            took_ns = round(1e9 * step_s * block_steps * self._noise(number, block))
            counters.append(
                Counters(
                    last.at_ns + took_ns,
                    *(
                        before + block_steps * each
                        for before, each in zip(_per_step(last), _per_step(work), strict=True)
                    ),
                )
            )
        whole_s = self._start_up_s + counters[-1].at_ns / 1e9
        self.now_s += whole_s
        problem = self._problems[number] if number < len(self._problems) else ""
        losses = self._losses.get(version, [2.0 - 0.01 * step for step in range(50)])
        run = Run(
            steps=begin + plan.blocks * block_steps,
            begin=begin,
            block_steps=block_steps,
            counters=tuple(counters),
            start_up_s=self._start_up_s,
            whole_s=whole_s,
            load=self._loads[min(number, len(self._loads) - 1)],
            series={"loss": tuple(losses)},
            tensors={},
            is_complete=True,
            problem="",
            versions={"torch": "2.13.0"},
            accelerator="",
            memory_bytes=1 << 30,
        )
        return replace(run, problem=problem, counters=(), begin=None) if problem else run


def _per_step(counters: Counters) -> tuple[int, int, int, int]:
    return (
        counters.optimizer_steps,
        counters.backward_passes,
        counters.samples,
        counters.input_elements,
    )


def wandering(seed: int, per_run: float, per_block: float, keeps: float = 0.9) -> Noise:
    """Noise that is correlated from block to block, with a level of its own in each run.

    Args:
        seed: Of the random numbers.
        per_run: The standard deviation of the logarithm of a run's level.
        per_block: That of a block around it.
        keeps: The share of a block's deviation that the next one keeps (AR(1)).
    """
    generator = random.Random(seed)
    levels: dict[int, float] = {}
    last = [0.0]

    def factor(run: int, block: int) -> float:
        if run not in levels:
            levels[run] = generator.gauss(0.0, per_run)
            last[0] = generator.gauss(0.0, per_block)
        last[0] = keeps * last[0] + (1 - keeps**2) ** 0.5 * generator.gauss(0.0, per_block)
        return float(2.718281828459045 ** (levels[run] + last[0]))

    return factor
