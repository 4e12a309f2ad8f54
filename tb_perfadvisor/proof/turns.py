"""Runs two versions of a program in turns: a block of steps of one, then the same of the other.

Cores change their speed, and other programs come and go, in seconds. Two runs one after the other
differ by that; two blocks that follow each other within a fraction of a second hardly do. Both
programs are started, and of each all processes are stopped while the other one has its turn: its
loader workers and background threads do nothing ahead of time.

A program stops itself at the end of a block (see `instrument.measure`), by a clock that stands
still meanwhile.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tb_perfadvisor.machine.facts import Machine
from tb_perfadvisor.machine.load import load_between, moment
from tb_perfadvisor.proof.runs import Run
from tb_perfadvisor.proof.started import Started

_POLL_S: Final = 0.002
_NOT_EARLIER: Final = 0.7
"""No look before this part of the last block's time, which a change may have shortened."""
_MOST_MEMORY: Final = 0.7
"""Of what is available, which both programs may need together."""


def why_not_in_turns(runs: Sequence[Run], machine: Machine) -> str:
    """Why versions cannot take turns; empty if they can.

    Args:
        runs: A run of each version.
        machine: Where they run.
    """
    if not machine.system.startswith("Linux"):
        return "the system does not say whether a process has stopped"
    if any(run.accelerator for run in runs):
        return "an accelerator goes on with what it was given"
    needed = [run.memory_bytes for run in runs]
    limits = [each for each in (machine.available_bytes, machine.memory_limit_bytes) if each]
    if None in needed or not limits:
        return "it is unknown whether both fit into memory"
    if sum(each or 0 for each in needed) > _MOST_MEMORY * min(limits):
        return "both together do not fit into memory"
    return ""


def warm_up(program: Started, limit_s: float) -> None:
    """Let a program, which has just been started, run until its window begins, and stop it there.

    Programs warm up one after the other: threads of two that wait actively for each other take the
    cores from those that they wait for, and slow a start-up down tenfold.

    Args:
        program: It may also end or be late; then it does not wait for its turn.
        limit_s: What it may take.
    """
    _stop_at_the_end_of_its_block(program, limit_s)


def take_turns(
    first: Started, second: Started, blocks: int, limit_s: float, cores: Sequence[int]
) -> None:
    """Let two programs, which have warmed up, measure their blocks in turns.

    Returns when both windows are complete, or one of the programs has ended or is late.

    Args:
        first: It begins the first turn; turns are in opposite orders, so that a drift cancels.
        second: The other one.
        blocks: How many each of them measures.
        limit_s: What each of them may take.
        cores: Those that they may run on.
    """
    both = [first, second]
    if not all(program.waits() for program in both):
        return  # one of them ended while it warmed up
    block_s = 0.0
    for turn in range(blocks):
        for program in both if turn % 2 == 0 else both[::-1]:
            before = moment(program.processes(), cores)
            program.go_on()
            began_s = time.monotonic()
            time.sleep(_NOT_EARLIER * block_s)  # looking disturbs programs that use all cores
            if not _stop_at_the_end_of_its_block(program, limit_s):
                return
            block_s = time.monotonic() - began_s
            program.add_block_load(load_between(before, moment(program.processes(), cores)))


def _stop_at_the_end_of_its_block(program: Started, limit_s: float) -> bool:
    """Stop all processes of a program when it waits for its next turn; False if it never does."""
    while not program.waits():
        if program.has_ended() or program.is_late(limit_s):
            return False
        time.sleep(_POLL_S)
    program.stop()
    return True


@contextmanager
def ended_with_this_process(mark: bytes) -> Iterator[None]:
    """Let nothing outlive this process, should it be killed: who is stopped cannot notice that.

    Args:
        mark: What the environment of all processes to end contains.
    """
    watcher = subprocess.Popen(
        [sys.executable, "-m", "tb_perfadvisor.proof.watcher", mark.decode()],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        watcher.communicate()
