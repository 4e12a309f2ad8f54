"""Finds the loop whose rounds are the steps of a program, where no call of a framework tells them.

The steps are what the outermost loop that repeats does. A loop over epochs is none of these if an
epoch takes long, or makes several of the steps that are known, or a loop over batches is in it: it
is one over the whole data.
"""

from __future__ import annotations

import linecache
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final, Protocol

from tb_perfadvisor.instrument.program_loops import (
    HAS_MONITORING,
    Loop,
    Rounds,
    look_at_main,
    loops_around,
)
from tb_perfadvisor.instrument.stack_samples import is_recording, outermost_compiling
from tb_perfadvisor.instrument.threads import SideThread

_LOOK_EVERY_S: Final = 0.05
_FEWEST_ROUNDS: Final = 3
_FEWEST_STEPS: Final = 1.5
_OUTER_S: Final = 2.0
_MANY: Final = 50
"""An outer loop that has not come around three times in this time, and in this many rounds of the
loops inside it, is no step. It may be one over epochs."""
_EPOCH_S: Final = 0.1
"""What says epoch and is shorter can be recorded whole."""
_MOST_S: Final = 6.0
MOST_PER_S: Final = 5_000
"""What comes around more often, while it has a processor, is a part of a step."""
_MORE_IF_CHEAP: Final = 4
"""So much more often, where only one call in each round is told."""
_GONE_AFTER: Final = 5
"""So many looks in a row outside of all loops that are watched, and these have ended: they were of
an import, or prepared something."""
_LOOKS: Final = 5
_REST: Final = 2
_LEAST_REST_S: Final = 2.0


class Steps(Protocol):
    """Whose steps are looked for."""

    def needs_loop(self) -> bool:
        """Whether a loop would tell more about the steps than what is known of them."""

    def known_steps(self) -> int:
        """How many steps were seen so far."""

    def has_loop(self, loop: Loop, steps: float, seconds: float) -> bool:
        """A loop was found. Each round makes `steps` of the steps that are known so far.

        Its rounds have been watched for `seconds`. Returns whether those steps are good enough.
        """

    def round_ended(self, frame: FrameType) -> None:
        """A round of that loop ended."""

    def goes_on(self, seconds: float) -> None:
        """That loop still runs, whose rounds nobody counted for some time."""

    def may_forget_loop(self) -> None:
        """The loop has ended; another one runs for longer."""

    def has_enough(self) -> bool:
        """Whether more rounds would not be recorded."""


class LoopFinder:
    """Looks at the main thread now and then, in a thread of its own, until a loop is found."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.rounds = Rounds()
        self._ended_s: float | None = None
        self._spent_s = 0.0
        """On searches that found nothing since the last loop."""
        self._thread = SideThread(self._run)
        self._ends = self._thread.ends

    def start(self) -> None:
        """Begin to look, once."""
        self._thread.start()

    def _run(self) -> None:
        # Looking costs time, and what is not found soon may not be there.
        while not self._ends.wait(2 * _LOOK_EVERY_S + _REST * self._spent_s):
            if not self._steps.needs_loop():
                continue
            began_s = time.monotonic()
            with suppress(Exception):
                loop = self._search()
                if loop is not None:
                    self._follow(loop)
                    began_s, self._spent_s = time.monotonic(), 0.0
            self.rounds.stop()
            self._spent_s += time.monotonic() - began_s

    def _search(self) -> Loop | None:
        """The outermost loop that comes around; None if none does, or none tells more."""
        loops = _deepest_look()
        if not loops:
            return None
        self.rounds.watch(loops)
        before, looked_s = self._steps.known_steps(), time.monotonic()
        passed_s, began_s, waited_s = 0.0, looked_s, waited_for_processor_s()
        looks_elsewhere = 0
        # A loop with long rounds gets more time in the next search.
        while self._steps.needs_loop() and passed_s <= _MOST_S + self._spent_s:
            if self._ends.wait(_LOOK_EVERY_S):
                return None
            now_s = time.monotonic()
            # While a recording is written, or something is compiled, no loop comes around.
            if not look_at_main(_is_busy):
                passed_s += now_s - looked_s
                self.rounds.check()
            if self.rounds.is_lost:
                return self._search()
            looks_elsewhere = 0 if look_at_main(loops[0].is_around) else looks_elsewhere + 1
            if looks_elsewhere >= _GONE_AFTER:
                return None
            looked_s = now_s
            known = self._steps.known_steps() - before
            loop = loop_of_steps(loops, passed_s, known)
            if loop is not None:
                steps = known / loop.rounds
                worked_s = looked_s - began_s - (waited_for_processor_s() - waited_s)
                if (
                    is_part_of_step(loop, worked_s)
                    or not look_at_main(loop.is_around)
                    or self._steps.has_loop(loop, steps, now_s - began_s)
                ):
                    return None
                return loop
        return None

    def _follow(self, loop: Loop) -> None:
        """Tell of its rounds until another loop runs for longer."""

        def ended(frame: FrameType) -> None:
            self._ended_s = time.monotonic()
            self._steps.round_ended(frame)

        first_s, self._ended_s = time.monotonic(), None
        self.rounds.follow(loop, ended)
        rest_s = last_s = 0.0
        runs, is_paused = True, False
        while rest_s <= max(_LEAST_REST_S, last_s - first_s) or runs:
            if self._ends.wait(2 * _LOOK_EVERY_S):
                return
            runs, has_enough = look_at_main(loop.is_around), self._steps.has_enough()
            if is_paused and runs:
                now_s = time.monotonic()
                self._steps.goes_on(now_s - (self._ended_s or now_s))
                self._ended_s = now_s
            if is_paused and not has_enough:
                self.rounds.watch([loop])
                self.rounds.follow(loop, ended)
                is_paused = False
            elif self.rounds.is_costly and has_enough:
                # Cost nothing until more rounds are to be recorded.
                self.rounds.stop()
                is_paused = True
            last_s = self._ended_s or first_s
            rest_s = time.monotonic() - last_s
        self._steps.may_forget_loop()


def loop_of_steps(loops: Sequence[Loop], passed_s: float, known: int = 0) -> Loop | None:
    """The loop whose rounds are steps, of some that were watched for a time, outer ones first.

    So many steps were known by other signs in this time.
    """
    repeated = [loop for loop in loops if loop.rounds >= _FEWEST_ROUNDS]
    if len(repeated) > 1 and _is_over(repeated[0], "epoch"):
        rounds = repeated[0].rounds
        batches = repeated[1].rounds if _is_over(repeated[1], "batch") else 0
        if passed_s > _EPOCH_S * rounds or max(known, batches) > _FEWEST_STEPS * rounds:
            return repeated[1]
    is_late = passed_s > _MOST_S or (
        passed_s >= _OUTER_S and any(loop.rounds >= _MANY for loop in repeated)
    )
    return repeated[0] if repeated and (repeated[0] is loops[0] or is_late) else None


def is_part_of_step(loop: Loop, worked_s: float) -> bool:
    """Whether a loop came around too often to be told of, in the time that it had a processor."""
    is_cheap = HAS_MONITORING or loop.usual_call() is not None
    return loop.rounds > MOST_PER_S * (_MORE_IF_CHEAP if is_cheap else 1) * worked_s


def _is_busy(frame: FrameType | None) -> bool:
    """Whether a recording is written, or something is compiled."""
    return is_recording(frame) or outermost_compiling(frame) is not None


def _deepest_look() -> list[Loop]:
    """The loops around what the main thread does, outer ones first.

    In an epoch it may do what it does once, such as to shuffle; so it is looked at a few times.
    """
    looks = [look_at_main(loops_around)]
    while looks[0] and _is_over(looks[0][0], "epoch") and len(looks) < _LOOKS:
        time.sleep(_LOOK_EVERY_S / _LOOKS)
        looks.append(look_at_main(loops_around))
    return max(looks, key=len)


def waited_for_processor_s() -> float:
    """How long the main thread was ready without a processor, in all; 0 where nobody tells."""
    thread = threading.main_thread().native_id
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_bytes().split()[1]) / 1e9
    return 0.0


def _is_over(loop: Loop, what: str) -> bool:
    return what in linecache.getline(loop.code.co_filename, loop.line).lower()
