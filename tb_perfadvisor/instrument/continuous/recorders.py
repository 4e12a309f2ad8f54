"""Recorders of each framework, and the recordings that are kept.

The recordings of one process: the last ones and the slowest stay, the others are deleted.

Of the rich ones, which tell names, the last stays. An early one stays until there is another.
"""

from __future__ import annotations

import ctypes
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import Struct

from tb_perfadvisor.instrument.ranks import worker_name_of_torch
from tb_perfadvisor.instrument.trace_files import write_trace

_ERROR: Final = 2
"""Of PyTorch's levels of messages, the one above warnings."""

_SHORT_S: Final = 0.02
"""The first step that is recorded takes up to half a millisecond more than the next ones."""


class Recorder(Protocol):
    """One recording at a time."""

    file_prefix: str
    """How the names of the files that it writes begin; empty if it writes all of a directory."""
    warm_up: int
    """The first steps that are none of the recording's."""

    def start(self, directory: Path, first_step: int, steps: int, *, is_rich: bool) -> None:
        """Begin with the step that comes next."""

    def step(self) -> bool:
        """A step ended; returns whether the recording is complete."""

    def stop(self) -> None:
        """Write the recording."""


class TorchRecorder:
    """torch.profiler. Starting it slows one step, which is not kept.

    Beginning to record slows another one, which is recorded without a mark where steps are short.
    """

    def __init__(self, label: Callable[[], Any] | None = None, *, has_stacks: bool = True) -> None:
        """Prepare. `label` labels a model's modules in rich recordings, which have stacks."""
        self.file_prefix, self.warm_up = "", 1
        self._has_stacks = has_stacks
        self._label = label
        self._profiler: Any = None
        self._meanwhile = ExitStack()
        self._first = self._last = 0
        self._began_s = 0.0
        self._thread: threading.Thread | None = None

    def start(self, directory: Path, first_step: int, steps: int, *, is_rich: bool) -> None:
        """Begin with the step that comes next."""
        import torch.profiler

        self._thread = threading.current_thread()

        self.file_prefix = self.file_prefix or f"{worker_name_of_torch()}."
        self._first, self._last, self.warm_up = first_step, first_step + steps, 1
        action = torch.profiler.ProfilerAction

        def schedule(step: int) -> Any:
            if step == first_step:
                return action.WARMUP
            return action.RECORD_AND_SAVE if step == self._last else action.RECORD

        self._profiler = torch.profiler.profile(
            schedule=schedule,
            on_trace_ready=partial(
                write_trace, directory=directory, worker=self.file_prefix.rstrip(".")
            ),
            record_shapes=is_rich,
            profile_memory=is_rich,
            with_stack=is_rich and self._has_stacks,
        )
        # The markers in the trace carry the numbers of the program's steps.
        self._profiler.step_num = first_step
        self._profiler.current_action = schedule(first_step)
        self._profiler.record_steps = False
        self._profiler.start()
        self._began_s = time.perf_counter()
        if is_rich:
            self._meanwhile.enter_context(without_warnings())
        if is_rich and self._label is not None:
            self._meanwhile.enter_context(self._label())

    def step(self) -> bool:
        """A step ended; returns whether the recording is complete."""
        number: int = self._profiler.step_num
        if number == self._first and time.perf_counter() - self._began_s < _SHORT_S:
            self.warm_up += 1
            self._last += 1
        self._profiler.record_steps = number + 1 >= self._first + self.warm_up
        if number < self._last:
            self._profiler.step()
        return number >= self._last

    def stop(self) -> None:
        """Write the recording."""
        profiler, self._profiler = self._profiler, None
        with self._meanwhile:
            # It is of one thread: ended on another, it ends the program.
            if threading.current_thread() is self._thread:
                profiler.stop()


@contextmanager
def without_warnings() -> Iterator[None]:
    """Keep PyTorch from telling on stderr that memory is freed which is older than a recording."""
    import torch

    library = Path(torch.__file__).with_name("lib") / "libc10.so"
    level = ctypes.c_int(_ERROR)  # where the library has no such variable
    with suppress(OSError, ValueError):
        level = ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "FLAGS_caffe2_log_level")
    before, level.value = level.value, max(level.value, _ERROR)
    try:
        yield
    finally:
        level.value = before


class _MarkedRecorder(ABC):
    """A profiler that starts and stops at once, with a mark around each step."""

    file_prefix, warm_up = "", 0

    def __init__(self) -> None:
        self._mark = ExitStack()
        self._next = self._end = 0

    def start(self, directory: Path, first_step: int, steps: int, *, is_rich: bool) -> None:
        """Begin with the step that comes next."""
        self._next, self._end = first_step, first_step + steps
        self._start_trace(directory, is_rich)
        self._mark.enter_context(self._step_mark(self._next))

    def step(self) -> bool:
        """A step ended; returns whether the recording is complete."""
        self._mark.close()
        self._next += 1
        if self._next >= self._end:
            return True
        self._mark.enter_context(self._step_mark(self._next))
        return False

    def stop(self) -> None:
        """Write the recording."""
        self._mark.close()
        self._stop_trace()

    @abstractmethod
    def _start_trace(self, directory: Path, is_rich: bool) -> None:
        """Start the framework's profiler."""

    @abstractmethod
    def _stop_trace(self) -> None:
        """Stop it, and write what it recorded."""

    @abstractmethod
    def _step_mark(self, number: int) -> Any:
        """A mark around the step with this number."""


class JaxRecorder(_MarkedRecorder):
    """jax.profiler, of steps whose work is in the recording from its beginning to its end.

    The device runs behind the host. So before and after the recording the host waits for it.
    """

    def __init__(self, *, has_stacks: bool = True) -> None:
        """Prepare. Rich recordings may have Python's calls."""
        super().__init__()
        self._has_stacks = has_stacks

    def _start_trace(self, directory: Path, is_rich: bool) -> None:
        from tb_perfadvisor.instrument.jax_session import start_trace

        wait_for_jax()
        start_trace(directory, is_rich=is_rich and self._has_stacks)
        self._directory = directory

    def _stop_trace(self) -> None:
        from tb_perfadvisor.instrument.jax_session import stop_trace

        wait_for_jax()
        stop_trace(self._directory)

    def _step_mark(self, number: int) -> Any:
        import jax

        return jax.profiler.StepTraceAnnotation("train", step_num=number)


def wait_for_jax() -> None:
    """Wait until everything that JAX has dispatched has been computed."""
    import jax

    for array in jax.live_arrays():
        # A step may have donated it meanwhile.
        with suppress(RuntimeError):
            array.block_until_ready()


class TensorFlowRecorder(_MarkedRecorder):
    """tf.profiler.experimental. Its Python tracer adds nothing (2.21), so rich is like light."""

    def _start_trace(self, directory: Path, is_rich: bool) -> None:
        import tensorflow

        tensorflow.profiler.experimental.start(str(directory))

    def _stop_trace(self) -> None:
        import tensorflow

        tensorflow.profiler.experimental.stop()

    def _step_mark(self, number: int) -> Any:
        import tensorflow

        return tensorflow.profiler.experimental.Trace("train", step_num=number, _r=1)


RICH: Final = "_rich"
"""Ends the directories of rich recordings; tb_perfadvisor.ingest.recordings looks for it."""
EARLY: Final = "early"
"""The reason of a recording that is kept only until there is another."""

SLOW: Final = "slow step"
"""The reason of one that began after a slow step."""


class StoredRecording(Struct, frozen=True):
    """A recording that was written."""

    first_step: int
    reason: str
    is_rich: bool
    mean_step_s: float
    files: tuple[Path, ...]
    """What this process wrote, and nothing else."""

    @property
    def size_bytes(self) -> int:
        """What the files take now."""
        size_bytes = 0
        for file in self.files:
            with suppress(OSError):
                size_bytes += file.stat().st_size
        return size_bytes

    @property
    def directory(self) -> Path:
        """Where the files lie."""
        return self.files[0].parent


class Recordings:
    """Keeps some recordings."""

    def __init__(self, keep_last: int, keep_slowest: int, most_bytes: int | None = None) -> None:
        self._keep_last = keep_last
        self._keep_slowest = keep_slowest
        self._most_bytes = most_bytes
        self.kept: list[StoredRecording] = []
        """In the order in which they were recorded."""

    def add(
        self, recording: StoredRecording, in_use: Path | None = None, *, slow_matters: bool = True
    ) -> None:
        """Add one, and delete the files of those that need not stay.

        Unless slow steps matter, what was recorded after one says little about the program.
        """
        self.kept.append(recording)
        settled = [each for each in self.kept if each.reason != EARLY] or self.kept[-1:]
        last = settled[-self._keep_last :] if self._keep_last else []
        telling = [each for each in settled if slow_matters or each.reason != SLOW]
        slowest = sorted(telling, key=lambda each: -each.mean_step_s)[: self._keep_slowest]
        rich = [each for each in settled if each.is_rich][-1:]
        wanted = self._within_limit([*reversed(last), *rich, *slowest])
        self._keep(
            each for each in self.kept if each in wanted or _is_below(each.directory, in_use)
        )

    def keep_pair(self) -> None:
        """Keep a usual light one and a rich one, of a loop that has ended."""
        light = sorted((r for r in self.kept if not r.is_rich), key=lambda r: r.mean_step_s)
        pair = [*light[len(light) // 2 :][:1], *(r for r in self.kept if r.is_rich)]
        self._keep(each for each in self.kept if each in pair)

    def keep_from(self, step: int) -> None:
        """Delete what was recorded before a step, unless nothing was since."""
        if any(each.first_step >= step for each in self.kept):
            self._keep(each for each in self.kept if each.first_step >= step)

    def clear(self) -> None:
        """Delete all: what was recorded was not of steps."""
        self._keep(())

    def _within_limit(self, wanted: list[StoredRecording]) -> list[StoredRecording]:
        """The newest and the rich one whatever they take, and the others while there is room."""
        if self._most_bytes is None:
            return wanted
        first = [*wanted[:1], *[each for each in wanted if each.is_rich][:1]]
        left, kept = self._most_bytes - sum(each.size_bytes for each in first), first
        for each in wanted:
            if each not in kept and each.size_bytes <= left:
                left -= each.size_bytes
                kept.append(each)
        return kept

    def _keep(self, stay: Iterable[StoredRecording]) -> None:
        stay = list(stay)
        for each in self.kept:
            if each not in stay:
                delete(each.files, each.first_step)
        self.kept = stay


def _is_below(directory: Path, other: Path | None) -> bool:
    return other is not None and directory.is_relative_to(other)


def files_below(directory: Path) -> set[Path]:
    """All files in a directory and those inside it; none if it does not exist."""
    return {path for path in directory.rglob("*") if path.is_file()}


def delete(files: Collection[Path], first_step: int) -> None:
    """Delete a recording and the directories that it leaves empty; another rank may use those."""
    for file in files:
        with suppress(OSError):
            file.unlink()
    top = f"step_{first_step:08}"
    for file in files:
        for parent in file.parents:
            with suppress(OSError):
                parent.rmdir()  # fails if it holds anything
            if parent.name in (top, f"{top}{RICH}"):
                break
