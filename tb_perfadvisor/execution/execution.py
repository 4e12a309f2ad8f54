"""Child processes, in which TensorBoard and the server for agents run their jobs.

The parent starts `command_of(module)` with a pipe as stdin, and reads progress, errors and results
from stderr, one JSON object per line. The child ends when its stdin closes, and so with its parent.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from tb_perfadvisor.execution.limits import NO_LIMITS, Limits
from tb_perfadvisor.ingest.format import Slicing

# A cluster returns only summaries of ranks, so it may read many files at the same time.
_MAX_PENDING_IN_CLUSTER = 256
_MAX_PENDING_PER_PROCESS = 2
# Starting a process takes as long as reading a file of this size, so each gets two at least.
_LARGE_BYTES = 1_000_000
# What a file takes beside its size: thousands of ranks may have recorded a few kB each.
_BYTES_PER_FILE = 20_000
# A file that is compressed ten times to this size is worth several processes.
_SHARED_BYTES = 3_000_000
# Each process holds one trace; users who have the memory can ask for more processes.
_MAX_WORKERS = 8
# Each thread takes memory for what it computes, and more than a few wait for one another.
_MAX_THREADS = 4


class Execution(Struct, frozen=True):
    """Where files are read."""

    executor: Executor | None = None
    """None reads each file in this process when its capture's turn comes."""
    max_pending_files: int = 0
    """Files of later captures that may be read while one capture is analyzed."""
    slicing: Slicing | None = None
    """Which processes decode a large file that is read in this process."""
    threads: int = 1
    """How many run the rules on a large capture in this process."""


IN_PROCESS = Execution()


@contextmanager
def open_execution(
    sizes_bytes: Iterable[int] = (),
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    limits: Limits = NO_LIMITS,
) -> Iterator[Execution]:
    """Start what reads files, and stop it at the end of the context.

    `sizes_bytes` of the files decide how many processes are worth their start if `workers` is not
    given. With 1, or on a system without semaphores or file descriptors for more, this process
    reads. Processes read a file each; if there are only a few large ones, they share each file. The
    limits are those of each process. If the address of a Dask scheduler is given
    (`tcp://host:8786`), its workers read.
    """
    if scheduler is not None:
        from tb_perfadvisor.execution.dask_cluster import open_cluster

        with open_cluster(scheduler) as executor:
            yield Execution(executor, _MAX_PENDING_IN_CLUSTER)
        return
    sizes_bytes, is_given = list(sizes_bytes), workers is not None
    if workers is None:
        workers = worthwhile_workers(sizes_bytes)
    if workers <= 1:
        yield IN_PROCESS
        return
    from tb_perfadvisor.execution.process_pool import open_pool

    is_shared = _are_shared(sizes_bytes) and (not is_given or _large(sizes_bytes) == 1)
    others = workers - is_shared  # this process decodes, too
    with ExitStack() as stack:
        try:
            executor = stack.enter_context(open_pool(others, limits, starts=not is_shared))
        except (ImportError, OSError):  # the system allows no pool
            execution = IN_PROCESS
        else:
            if is_shared:
                execution = Execution(
                    slicing=Slicing(executor, others), threads=min(workers, _MAX_THREADS)
                )
            else:
                execution = Execution(executor, _MAX_PENDING_PER_PROCESS * workers)
        yield execution


def worthwhile_workers(sizes_bytes: Iterable[int]) -> int:
    """How many processes are worth their start for files of these sizes; 1 for none."""
    sizes_bytes = list(sizes_bytes)
    most = min(available_processors(), _MAX_WORKERS)
    return most if _are_shared(sizes_bytes) else max(1, min(_large(sizes_bytes) // 2, most))


def _large(sizes_bytes: Sequence[int]) -> int:
    """How many files are large; several small ones count as one."""
    work = sum(min(size + _BYTES_PER_FILE, _LARGE_BYTES) for size in sizes_bytes)
    return work // _LARGE_BYTES


def _are_shared(sizes_bytes: Sequence[int]) -> bool:
    """Whether several processes decode each file, as there are few and one is very large."""
    is_worth_it = any(size >= _SHARED_BYTES for size in sizes_bytes)
    return is_worth_it and _large(sizes_bytes) // 2 < 2


def available_processors() -> int:
    """Processors that this process may use: a container may have fewer than the machine."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


# Remove the working directory from the path, so that a `json.py` in the logdir does not run.
_BOOT = (
    "import importlib, sys; sys.path[:] = [p for p in sys.path if p] + [sys.argv.pop(1)]; "
    "sys.exit(importlib.import_module(sys.argv.pop(1)).main())"
)
_PACKAGE_PARENT = str(Path(__file__).resolve().parent.parent.parent)
_PROGRESS_INTERVAL_S = 0.1
_OBJECTS_BETWEEN_COLLECTIONS = 300_000
# Reading takes most of the time of an analysis.
_READING_SHARE = 0.7


def command_of(module: str) -> tuple[str, ...]:
    """The command that runs a module's `main`; its arguments may follow."""
    return (sys.executable or "python3", "-c", _BOOT, _PACKAGE_PARENT, module)


def environment_of_child() -> dict[str, str]:
    """The environment of this process, with one thread for linear algebra.

    The analysis does not use BLAS, whose threads would reserve gigabytes of address space, and so
    of the memory limit, on machines with many cores.
    """
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, "PYTHONUNBUFFERED": "1", **threads}


def collect_rarely() -> None:
    """Look for garbage rarely, and never among what has been imported.

    Modules and tables live as long as the process. Collecting garbage every few hundred objects
    takes a quarter of the time of a small profile, and finds none.
    """
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)


def say(line: dict[str, Any]) -> None:
    """Send the parent a line of JSON."""
    print(json.dumps(line), file=sys.stderr, flush=True)


def throttled(say: Callable[[dict[str, Any]], None]) -> Callable[[str, float], None]:
    """A progress callback that reports each new stage, and progress a few times per second.

    The engine counts reading and analyzing from 0 to 1 each; the two are combined here.
    """
    last = ("", 0.0)

    def tell(stage: str, share: float) -> None:
        nonlocal last
        now = time.monotonic()
        if stage != last[0] or now - last[1] > _PROGRESS_INTERVAL_S:
            last = (stage, now)
            if stage.startswith("read"):
                whole = _READING_SHARE * share
            else:
                whole = _READING_SHARE + (1 - _READING_SHARE) * share
            say({"stage": stage, "progress": round(whole, 3)})

    return tell


def end_with_parent() -> None:
    """End this process as soon as its stdin closes, as it does when the parent ends."""
    threading.Thread(target=_wait_for_end, daemon=True).start()


def _wait_for_end() -> None:
    # Use os.read: the lock of a buffered reader would block a normal exit.
    while True:
        try:
            if not os.read(0, 1):
                break
        except OSError:
            break
    signal.raise_signal(signal.SIGTERM)
