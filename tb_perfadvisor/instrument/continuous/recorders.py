"""Records with the profiler of a framework. Each is imported when the first recording begins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tb_perfadvisor.instrument.ranks import worker_name_of_torch
from tb_perfadvisor.instrument.trace_files import write_trace


class Recorder(Protocol):
    """One recording at a time."""

    file_prefix: str
    """How the names of the files that it writes begin; empty if it writes all of a directory."""

    def start(self, directory: Path, first_step: int, steps: int, *, is_rich: bool) -> None:
        """Begin with the step that comes next.

        Args:
            directory: Where to write.
            first_step: The number of that step.
            steps: How many steps to keep.
            is_rich: Whether to record what costs more: shapes, memory, stacks.
        """

    def step(self) -> bool:
        """A step ended; returns whether the recording is complete."""

    def stop(self) -> None:
        """Write the recording."""


class TorchRecorder:
    """torch.profiler. One step of warm-up is not kept: starting the profiler slows it."""

    def __init__(self, label: Callable[[], Any] | None = None) -> None:
        """Prepare.

        Args:
            label: Labels a model's modules, in rich recordings; its result has `remove()`.
        """
        self.file_prefix = ""
        self._label = label
        self._profiler: Any = None
        self._labels: Any = None
        self._last = 0

    def start(self, directory: Path, first_step: int, steps: int, *, is_rich: bool) -> None:
        """Begin with the step that comes next."""
        import torch.profiler

        self.file_prefix = self.file_prefix or f"{worker_name_of_torch()}."
        kept_from, self._last = first_step + 1, first_step + steps
        action = torch.profiler.ProfilerAction

        def schedule(step: int) -> Any:
            if step < kept_from:
                return action.WARMUP
            return action.RECORD_AND_SAVE if step == self._last else action.RECORD

        if is_rich and self._label is not None:
            self._labels = self._label()
        self._profiler = torch.profiler.profile(
            schedule=schedule,
            on_trace_ready=partial(
                write_trace, directory=directory, worker=self.file_prefix.rstrip(".")
            ),
            record_shapes=is_rich,
            profile_memory=is_rich,
            with_stack=is_rich,
        )
        # The markers in the trace carry the numbers of the program's steps.
        self._profiler.step_num = first_step
        self._profiler.current_action = schedule(first_step)
        self._profiler.start()

    def step(self) -> bool:
        """A step ended; returns whether the recording is complete."""
        is_complete: bool = self._profiler.step_num >= self._last
        if not is_complete:
            self._profiler.step()
        return is_complete

    def stop(self) -> None:
        """Write the recording."""
        profiler, self._profiler = self._profiler, None
        labels, self._labels = self._labels, None
        if labels is not None:
            labels.remove()
        profiler.stop()


class _MarkedRecorder(ABC):
    """A profiler that starts and stops at once, with a mark around each step."""

    file_prefix = ""

    def __init__(self) -> None:
        self._mark: AbstractContextManager[Any] | None = None
        self._next = self._end = 0

    def start(self, directory: Path, first_step: int, steps: int, *, is_rich: bool) -> None:
        """Begin with the step that comes next."""
        self._next, self._end = first_step, first_step + steps
        self._start_trace(directory, is_rich)
        self._begin()

    def step(self) -> bool:
        """A step ended; returns whether the recording is complete."""
        self._finish()
        self._next += 1
        if self._next >= self._end:
            return True
        self._begin()
        return False

    def stop(self) -> None:
        """Write the recording."""
        self._finish()
        self._stop_trace()

    def _begin(self) -> None:
        self._mark = self._step_mark(self._next)
        self._mark.__enter__()

    def _finish(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.__exit__(None, None, None)

    @abstractmethod
    def _start_trace(self, directory: Path, is_rich: bool) -> None:
        """Start the framework's profiler."""

    @abstractmethod
    def _stop_trace(self) -> None:
        """Stop it, and write what it recorded."""

    @abstractmethod
    def _step_mark(self, number: int) -> AbstractContextManager[Any]:
        """A mark around the step with this number."""


class JaxRecorder(_MarkedRecorder):
    """jax.profiler, of steps whose work is in the recording from its beginning to its end.

    The device runs behind the host. So before and after the recording the host waits for it.
    """

    def _start_trace(self, directory: Path, is_rich: bool) -> None:
        from tb_perfadvisor.instrument.jax_session import start_trace

        _wait_for_devices()
        start_trace(directory, is_rich=is_rich)
        self._directory = directory

    def _stop_trace(self) -> None:
        from tb_perfadvisor.instrument.jax_session import stop_trace

        _wait_for_devices()
        stop_trace(self._directory)

    def _step_mark(self, number: int) -> AbstractContextManager[Any]:
        import jax

        mark: AbstractContextManager[Any] = jax.profiler.StepTraceAnnotation(
            "train", step_num=number
        )
        return mark


def _wait_for_devices() -> None:
    """Wait until everything that was dispatched has been computed."""
    import jax

    for array in jax.live_arrays():
        # A step may have donated it meanwhile.
        with suppress(RuntimeError):
            array.block_until_ready()


class TensorFlowRecorder(_MarkedRecorder):
    """tf.profiler.experimental."""

    def _start_trace(self, directory: Path, is_rich: bool) -> None:
        import tensorflow

        options = tensorflow.profiler.experimental.ProfilerOptions(python_tracer_level=int(is_rich))
        tensorflow.profiler.experimental.start(str(directory), options=options)

    def _stop_trace(self) -> None:
        import tensorflow

        tensorflow.profiler.experimental.stop()

    def _step_mark(self, number: int) -> AbstractContextManager[Any]:
        import tensorflow

        mark: AbstractContextManager[Any] = tensorflow.profiler.experimental.Trace(
            "train", step_num=number, _r=1
        )
        return mark
