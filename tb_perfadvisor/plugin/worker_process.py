"""A process that runs one job after another: `python -m tb_perfadvisor.plugin.worker_process`.

Starting Python and importing the engine takes longer than analyzing a small profile. So a worker
imports both before the first job comes, and stays for the next. It is replaced after a job that
failed, and after one that left it large: nothing of a bad file reaches the next job.

The parent writes jobs to its stdin, each as a line of JSON: a module, whose `main` runs, and its
arguments. The worker writes progress and errors to stderr, and `{"ended": status}` after each job.
It does not import TensorBoard.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from queue import SimpleQueue

from tb_perfadvisor.execution.execution import (
    collect_rarely,
    command_of,
    environment_of_child,
    say,
)
from tb_perfadvisor.execution.limits import limit_memory

# TensorBoard answers first, and so does what else the user does.
_NICENESS = 10
_MOST_KEPT_BYTES = 1 << 30
"""A worker that has needed more than this ends, and gives the memory back."""
_END_WAIT_S = 10.0


class WorkerProcess:
    """The parent's side of a worker. One job runs at a time."""

    def __init__(self, memory_limit_bytes: int, command: Sequence[str] | None = None) -> None:
        """Start the process.

        Args:
            memory_limit_bytes: Of its address space; 0 for no limit.
            command: Runs instead of the worker, in tests.

        Raises:
            OSError: If it cannot be started.
        """
        self._process = subprocess.Popen(
            (*(command or command_of(__name__)), str(memory_limit_bytes)),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment_of_child(),
        )

    def run(self, module: str, arguments: Sequence[str], tell: Callable[[bytes], None]) -> int:
        """Run a job to its end.

        Args:
            module: Its `main` takes the arguments and returns the status.
            arguments: Of the job.
            tell: Gets each line that the job writes to stderr.

        Returns:
            The job's status, or the one that the process ended with. After any but 0 the process
            has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        with suppress(OSError):  # it has ended, and its status tells why
            self._process.stdin.write(json.dumps([module, *arguments]).encode() + b"\n")
            self._process.stdin.flush()
        for line in self._process.stderr:
            ended = _ending(line)
            if ended is None:
                tell(line)
                continue
            if not ended["stays"]:
                self.close()
            return ended["ended"]
        self.close()
        return self._process.returncode

    @property
    def is_alive(self) -> bool:
        """Whether it can run another job."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it at once, also in the middle of a job. Any thread may call this."""
        # The handle is used, as the process id may belong to another process by now.
        if self._process.poll() is None:
            self._process.kill()

    def close(self) -> None:
        """End it after its job."""
        for pipe in (self._process.stdin, self._process.stderr):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()
        try:
            self._process.wait(_END_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _ending(line: bytes) -> dict[str, int] | None:
    """What a line says of the end of a job; None for any other line."""
    if not line.startswith(b'{"ended":'):
        return None
    ended: dict[str, int] = json.loads(line)
    return ended


def main() -> int:
    """Run the jobs that come, and return the status of the last one."""

    def run(module: str, arguments: Sequence[str]) -> int:
        status: int = import_module(module).main(arguments)
        return status

    return serve(run, _import_engine)


def serve(run: Callable[[str, Sequence[str]], int], prepare: Callable[[], None]) -> int:
    """Run jobs until one fails or leaves the process large, or until stdin closes.

    Args:
        run: Runs the `main` of a module.
        prepare: Called once, before the first job comes.

    Returns:
        The status of the last job.
    """
    jobs = _jobs_of_parent()
    limit_memory(int(sys.argv[1]))
    with suppress(AttributeError, OSError):  # not on Windows
        os.nice(_NICENESS)
    prepare()
    collect_rarely()
    for module, *arguments in jobs:
        status = run(module, arguments)
        stays = status == 0 and _most_bytes() < _MOST_KEPT_BYTES
        say({"ended": status, "stays": stays})
        if not stays:
            return status
    return 0


def _jobs_of_parent() -> Iterator[list[str]]:
    """The jobs that stdin brings. The process ends as soon as stdin closes, also within a job."""
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read_lines, args=[lines], daemon=True).start()
    return (json.loads(line) for line in iter(lines.get, b""))


def _read_lines(lines: SimpleQueue[bytes]) -> None:
    # Use os.read: the lock of a buffered reader would block a normal exit.
    rest = b""
    while True:
        try:
            read = os.read(0, 1 << 16)
        except OSError:
            read = b""
        if not read:
            signal.raise_signal(signal.SIGTERM)
        *complete, rest = (rest + read).split(b"\n")
        for line in complete:
            lines.put(line)


def _import_engine() -> None:
    """Import what most jobs need. What fails here fails again, and is reported, in a job."""
    with suppress(Exception):
        import_module("tb_perfadvisor.plugin.worker").warm_up()


def _most_bytes() -> int:
    """The largest memory of this process so far; 0 where the system does not tell."""
    if sys.platform == "linux":  # whose `ru_maxrss` begins with what the parent used
        from tb_perfadvisor.machine.this_machine import memory_of

        return memory_of([os.getpid()]) or 0
    try:
        import resource
    except ImportError:  # Windows
        return 0
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


if __name__ == "__main__":
    sys.exit(main())
