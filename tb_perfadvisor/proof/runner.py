"""Runs two versions of a program in turns: a block of steps of one, then the same of the other.

Cores change their speed, and other programs come and go, in seconds. Two runs one after the other
differ by that; two blocks that follow each other within a fraction of a second hardly do. Both
programs are started, and of each all processes are stopped while the other one has its turn: its
loader workers and background threads do nothing ahead of time.

A program stops itself at the end of a block (see `instrument.measure`), by a clock that stands
still meanwhile.

Waits until its standard input ends, and then ends all processes with a mark.

`perfadvisor try` starts it: when that process ends, however it does, so does the input.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from tb_perfadvisor.errors import PerfAdvisorError, UsageError
from tb_perfadvisor.instrument import hook, site
from tb_perfadvisor.instrument.continuous.profiler import SWITCH
from tb_perfadvisor.machine.facts import Machine
from tb_perfadvisor.machine.this_machine import (
    Moment,
    load_between,
    moment,
    open_cores,
    processes_of,
    this_machine,
)
from tb_perfadvisor.proof.runs import WINDOW_S, Plan, Run
from tb_perfadvisor.proof.snapshot import Snapshot, delete, path_in_copy, safe_environment
from tb_perfadvisor.proof.started import Started

_POLL_S: Final = 0.002
_NOT_EARLIER: Final = 0.7
"""No look before this part of the last block's time, which a change may have shortened."""
_MOST_MEMORY: Final = 0.7
"""Of what is available, which both programs may need together."""


def why_not_in_turns(runs: Sequence[Run], machine: Machine) -> str:
    """Why versions cannot take turns; empty if they can."""
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

    The program may also end or be late; then it does not wait for its turn.
    """
    _stop_at_the_end_of_its_block(program, limit_s)


def take_turns(
    first: Started, second: Started, blocks: int, limit_s: float, cores: Sequence[int]
) -> None:
    """Let two programs, which have warmed up, measure their blocks in turns.

    Returns when both windows are complete, or one of the programs has ended or is late.

    The first one begins the first turn; turns are in opposite orders, so that a drift cancels. Each
    of them measures as many `blocks` and may take `limit_s`.
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

    The environment of all processes to end contains `mark`.
    """
    watcher = subprocess.Popen(
        [sys.executable, "-m", "tb_perfadvisor.proof.runner", mark.decode()],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        watcher.communicate()


_RUNNER_POLL_S: Final = 0.02
_LONGEST_TEMP: Final = 60
"""Sockets in the directory for temporary files have names of at most 108 bytes."""
_BASE: Final = "base"
_PLACES: Final = ("run-a", "run-b")
"""Directories of the same length: the length of a path alone can change how fast a program is."""
_KEEP_MEMORY: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
}
"""Lets glibc's allocator keep what is freed, and use it again.

Whether it gives memory back in each step otherwise depends on the layout of the heap, which chance
decides: then steps take up to a third longer, in one run of a program and not in the next."""


class Runner:
    """Runs a command in copies of its program.

    One version always runs in the same directory, because the caches of compilers contain paths.
    """

    def __init__(
        self, snapshot: Snapshot, space: Path, command: Sequence[str], started_in: Path
    ) -> None:
        """Prepare to run a program in a `space` that `working_space` made."""
        self.snapshot = snapshot
        self._space = space
        self._command = _absolute(command, started_in)
        self._cores = open_cores()

    def measure(self, version: Path, name: str, plan: Plan, limit_s: float) -> Run:
        """Run a version until its steps are measured.

        `version` is a copy of the program, which stays as it is. Each version has compiler caches
        of its own, by its name; that of the original is `base`. After `limit_s`, the run is ended
        and says nothing.
        """
        with self._started(version, name, self._measuring(plan), {SWITCH: "off"}) as program:
            before = after = None
            while not program.has_ended():
                if before is None and program.is_open():
                    before = self._moment(program)
                if program.is_complete():
                    after = self._moment(program)
                    program.measure_memory()
                    break
                if program.is_late(limit_s):
                    break
                time.sleep(_RUNNER_POLL_S)
            program.end()
            return program.result(load_between(before, after))

    def why_not_in_turns(self, *runs: Run) -> str:
        """Why versions cannot be measured in turns; empty if they can."""
        return why_not_in_turns(runs, this_machine())

    def measure_in_turns(
        self, base: Path, change: Path, name: str, plan: Plan, limit_s: float, *, base_first: bool
    ) -> tuple[Run, Run]:
        """Run both versions until their steps are measured, a block of one and then of the other.

        The runs of the original and of the changed program are returned; after `limit_s`, both are
        ended. If `base_first`, the original starts first and has the first turn. The name is that
        of the change.
        """
        settings = self._measuring(msgspec.structs.replace(plan, in_turns=True))
        versions = [(base, _BASE), (change, name)]
        with ExitStack() as stack:
            stack.enter_context(ended_with_this_process(str(self._space).encode()))
            programs = {}
            for version, named in versions if base_first else versions[::-1]:
                started = self._started(version, named, settings, {SWITCH: "off"})
                programs[named] = stack.enter_context(started)
                warm_up(programs[named], limit_s)
            before = self._moment(*programs.values())
            first, second = programs.values()
            take_turns(first, second, plan.blocks, limit_s, self._cores)
            load = load_between(before, self._moment(*programs.values()))
            for program in programs.values():
                program.end()
            return programs[_BASE].result(load), programs[name].result(load)

    def record(self, version: Path, logdir: Path, limit_s: float) -> None:
        """Run a version until a few of its steps are recorded.

        After `limit_s`, nothing more is waited for.
        """
        recording = {
            "logdir": str(logdir),
            "plan": {"every": 100_000, "first": 20, "advise": False, "keep_slowest": 0},
            "after_s": 20.0,
            "every_s": 1e6,
            "window_s": 2.0,
        }
        with self._started(version, _BASE, recording, {}) as program:
            while not (program.has_ended() or program.is_late(limit_s)):
                if any(each.get("summary") for each in program.said()):
                    return
                time.sleep(_RUNNER_POLL_S)
            program.end()
            if not any(each.get("summary") for each in program.said()):
                raise PerfAdvisorError(
                    "no step was recorded: "
                    f"{program.why_nothing() or 'the program ended too early'}.",
                    hint="Record with `perfadvisor run`, and name the recording.",
                )

    def _moment(self, *programs: Started) -> Moment | None:
        return moment([each for program in programs for each in program.processes()], self._cores)

    @staticmethod
    def _measuring(plan: Plan) -> dict[str, Any]:
        return {
            "measure": {
                **msgspec.to_builtins(plan),
                "window_s": WINDOW_S,
                "parent": os.getpid(),
            }
        }

    @contextmanager
    def _started(
        self, version: Path, name: str, settings: Mapping[str, Any], more: Mapping[str, str]
    ) -> Iterator[Started]:
        """The running program; at the end of the context, nothing of it runs any more."""
        run = self._space / _PLACES[name != _BASE]
        delete(run)
        for directory in (run, run / "status", run / "tmp"):
            directory.mkdir()
        copy = run / "program"
        msgspec.structs.replace(self.snapshot, directory=version).copy(copy)
        command = [path_in_copy(self.snapshot, copy, word) for word in self._command[1:]]
        with (run / "stdout").open("wb") as stdout, (run / "stderr").open("wb") as stderr:
            try:
                process = subprocess.Popen(
                    [self._command[0], *command],
                    cwd=copy / self.snapshot.inside,
                    env=self._environment(name, run, settings, more),
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                )
            except OSError as error:
                raise UsageError(
                    f"{self._command[0]} cannot be started: {error.strerror}.",
                    hint="Write the program after two dashes: perfadvisor try -- python train.py",
                ) from error
            program = Started(process, run)
            try:
                yield program
            finally:
                program.end()

    def _environment(
        self, name: str, run: Path, settings: Mapping[str, Any], more: Mapping[str, str]
    ) -> dict[str, str]:
        copy = run / "program"
        given = safe_environment(self.snapshot, copy, os.environ)
        path = [str(Path(site.__file__).parent), given.get("PYTHONPATH", "")]
        temporary = str(run / "tmp")
        caches = self._space / "caches" / name
        return {
            "PYTHONHASHSEED": "0",  # sets of strings have the same order in all runs
            **_KEEP_MEMORY,
            **given,
            "PYTHONPATH": os.pathsep.join(part for part in path if part),
            "PYTHONUNBUFFERED": "1",  # what was printed is there when the program is ended
            "GIT_CEILING_DIRECTORIES": str(run),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
            **({"TMPDIR": temporary} if len(temporary) <= _LONGEST_TEMP else {}),
            **more,
            hook.SETTINGS: json.dumps(
                {
                    "status": str(run / "status"),
                    "checkout": str(self.snapshot.checkout),
                    "copy": str(copy),
                    **settings,
                }
            ),
        }


def _absolute(command: Sequence[str], started_in: Path) -> list[str]:
    """The command with its program as a path that also holds elsewhere."""
    first = command[0]
    if os.sep in first and not Path(first).is_absolute():
        # Not resolved: the interpreter of a virtual environment is a link.
        first = os.path.normpath(started_in / first)
    return [first, *command[1:]]


def main() -> None:
    """Wait and end."""
    mark = sys.argv[1].encode()
    sys.stdin.buffer.read()
    for process in processes_of(mark):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    main()
