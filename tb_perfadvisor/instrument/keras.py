"""Marks steps, callbacks and validation in profiles of Keras's `fit`.

    from tb_perfadvisor.instrument.keras import marked

    model.fit(data, callbacks=marked([checkpoint, logger]))

Keras calls callbacks between the steps, where a profile otherwise shows only a gap. These marks
give every callback call and every validation a named range, and every step its number, however the
profiler is started. Their cost is negligible while no profiler runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial, wraps
from typing import Any

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.instrument.continuous.profiler import ContinuousProfiler
from tb_perfadvisor.instrument.continuous.recorders import (
    JaxRecorder,
    Recorder,
    TensorFlowRecorder,
    TorchRecorder,
)
from tb_perfadvisor.instrument.continuous.settings import make_profiler
from tb_perfadvisor.instrument.ranks import rank_of_environment

Mark = Callable[..., AbstractContextManager[Any]]

# The hooks of keras.callbacks.Callback that run between the begin and end of fit.
_HOOKS = tuple(
    f"on_{phase}_{when}"
    for phase in ("train_batch", "test_batch", "epoch", "test")
    for when in ("begin", "end")
)


def marked(callbacks: Iterable[Any] = (), *, name: str = "train") -> list[Any]:
    """Mark callbacks and steps; pass the result to `fit` as its callbacks.

    Args:
        callbacks: Instances of `keras.callbacks.Callback`; their calls are marked from now on.
        name: The name of the step markers.

    Returns:
        The same instances between two added callbacks. A step's mark begins after the other
        callbacks' `on_train_batch_begin` and ends before their `on_train_batch_end`.

    Raises:
        UsageError: If the profiler of Keras's backend has no such marks.
    """
    import keras

    mark, mark_step = _profiler_of(keras.backend.backend())
    callbacks = list(callbacks)
    for callback in callbacks:
        _mark_hooks(callback, mark)
    range_of_step = ExitStack()
    number = 0

    class StepEnd(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
        """Runs before the other callbacks: ends the step's mark."""

        def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
            range_of_step.close()

    class StepBegin(keras.callbacks.Callback):  # type: ignore[misc]
        """Runs after the other callbacks: begins the marks of steps and validations."""

        def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
            nonlocal number
            range_of_step.close()  # an interrupted step may not have ended
            range_of_step.enter_context(mark_step(name, step_num=number))
            number += 1

        def on_test_begin(self, logs: dict[str, float] | None = None) -> None:
            range_of_step.close()
            range_of_step.enter_context(mark("Validation"))

        def on_test_end(self, logs: dict[str, float] | None = None) -> None:
            range_of_step.close()

    return [StepEnd(), *callbacks, StepBegin()]


def continuous(logdir: str | os.PathLike[str], **settings: Any) -> Any:
    """A callback that records a few steps now and then.

    Evaluation and the ends of epochs do not count as slow steps.

    Args:
        logdir: A run's directory below TensorBoard's log directory.
        **settings: As for `tb_perfadvisor.instrument.torch.continuous`.

    Raises:
        UsageError: If the settings contradict each other, or the directory is a URL.
    """
    profiler = profiler_of_backend(logdir, settings)
    callback = counting_callback(profiler.step, profiler.skip, profiler.close)
    callback.profiler = profiler
    return callback


def profiler_of_backend(
    logdir: str | os.PathLike[str], settings: Mapping[str, Any]
) -> ContinuousProfiler:
    """A profiler that records with Keras's backend; its arguments are those of `continuous`."""
    import keras

    recorder = _recorder_of(keras.backend.backend())
    return make_profiler(logdir, recorder, rank_of_environment() or 0, **settings)


def counting_callback(
    step: Callable[[], None],
    skip: Callable[[], None],
    end: Callable[[], None] = lambda: None,
) -> Any:
    """A callback that counts the batches of `fit`, or of `evaluate` or `predict` by themselves."""
    import keras

    class Continuous(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
        """Counts batches."""

        def __init__(self) -> None:
            super().__init__()
            self._trains = False

        def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
            self._trains = True

        def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
            step()

        def on_test_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
            if not self._trains:
                step()

        def on_predict_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
            step()

        def on_test_end(self, logs: dict[str, float] | None = None) -> None:
            skip()

        def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            skip()

        def on_train_end(self, logs: dict[str, float] | None = None) -> None:
            skip()
            end()

    return Continuous()


def _recorder_of(backend: str) -> Recorder:
    """The profiler of Keras's backend."""
    recorders: dict[str, Callable[[], Recorder]] = {
        "tensorflow": TensorFlowRecorder,
        "jax": JaxRecorder,
        "torch": TorchRecorder,
    }
    if backend not in recorders:
        raise UsageError(f"Keras uses the {backend} backend, which has no profiler.")
    return recorders[backend]()


def _profiler_of(backend: str) -> tuple[Mark, Mark]:
    """The functions that mark a range and a step in the profiler of Keras's backend."""
    if backend == "tensorflow":
        import tensorflow

        trace: Mark = tensorflow.profiler.experimental.Trace
        return trace, partial(trace, _r=1)
    if backend == "jax":
        import jax

        return jax.profiler.TraceAnnotation, jax.profiler.StepTraceAnnotation
    raise UsageError(
        f"Keras uses the {backend} backend, whose profiler has no step markers.",
        hint="With PyTorch, use tb_perfadvisor.instrument.torch in a custom training loop.",
    )


def _mark_hooks(callback: Any, mark: Mark) -> None:
    """Put a range around each hook that a callback overrides."""
    import keras

    kind = type(callback)
    for hook in _HOOKS:
        inherited = getattr(keras.callbacks.Callback, hook, None)
        call = getattr(callback, hook)
        # An instance that is passed twice is already marked.
        if getattr(kind, hook, None) is inherited or hasattr(call, "__wrapped__"):
            continue
        setattr(callback, hook, _in_range(call, f"Callback: {kind.__name__}.{hook}", mark))


def _in_range(call: Callable[..., Any], name: str, mark: Mark) -> Callable[..., Any]:
    @wraps(call)
    def marked_call(*arguments: Any, **keywords: Any) -> Any:
        with mark(name):
            return call(*arguments, **keywords)

    return marked_call
