"""Step numbers, callbacks and validation in profiles of Keras's `fit`.

    from tb_perfadvisor.instrument.keras import marked

    model.fit(data, callbacks=marked([checkpoint, logger]))

Keras calls its callbacks between the steps, where a profile shows nothing but a gap. Here every
call of every callback, and every validation, has a range with its name, and every step its number,
whoever starts the profiler. The ranges cost nothing to speak of while no profiler runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any

from tb_perfadvisor.errors import UsageError

Mark = Callable[..., AbstractContextManager[Any]]

# Of keras.callbacks.Callback: what is called in the middle of fit.
_HOOKS = tuple(
    f"on_{what}_{when}"
    for what in ("train_batch", "test_batch", "epoch", "test")
    for when in ("begin", "end")
)


def marked(callbacks: Iterable[Any] = (), *, name: str = "train") -> list[Any]:
    """The callbacks, to be given to `fit` in place of the ones that are passed.

    Args:
        callbacks: Instances of `keras.callbacks.Callback`; their calls are marked from now on.
        name: What the steps are called.

    Returns:
        The same instances between two of ours: the step's mark begins after the others have been
        told that a batch begins, and ends before they are told that it has ended.

    Raises:
        UsageError: When Keras runs on a backend whose profiler has no such marks.
    """
    import keras

    mark, mark_step = _profiler_of(keras.backend.backend())
    own = list(callbacks)
    for callback in own:
        _mark_hooks(callback, mark)
    range_of_step = _Range()
    number = 0

    class StepEnd(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
        """The first callback: ends the step's mark."""

        def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
            range_of_step.end()

    class StepBegin(keras.callbacks.Callback):  # type: ignore[misc]
        """The last callback: begins the marks of steps and of validations."""

        def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
            nonlocal number
            range_of_step.begin(mark_step(name, step_num=number))
            number += 1

        def on_test_begin(self, logs: dict[str, float] | None = None) -> None:
            range_of_step.begin(mark("Validation"))

        def on_test_end(self, logs: dict[str, float] | None = None) -> None:
            range_of_step.end()

    return [StepEnd(), *own, StepBegin()]


class _Range:
    """A range that one call begins and another one ends."""

    def __init__(self) -> None:
        self._open: AbstractContextManager[Any] | None = None

    def begin(self, mark: AbstractContextManager[Any]) -> None:
        # A step that was interrupted never ended.
        self.end()
        self._open = mark
        mark.__enter__()

    def end(self) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None


def _profiler_of(backend: str) -> tuple[Mark, Mark]:
    """What marks a range, and what marks a step, for the profiler of Keras's backend."""
    if backend == "tensorflow":
        import tensorflow

        trace: Mark = tensorflow.profiler.experimental.Trace

        def tensorflow_step(name: str, *, step_num: int) -> AbstractContextManager[Any]:
            return trace(name, step_num=step_num, _r=1)

        return trace, tensorflow_step
    if backend == "jax":
        import jax

        return jax.profiler.TraceAnnotation, jax.profiler.StepTraceAnnotation
    raise UsageError(
        f"Keras runs on {backend}, whose profiler has no marks of steps for callbacks to set.",
        hint="With PyTorch record with tb_perfadvisor.instrument.torch in a loop of your own.",
    )


def _mark_hooks(callback: Any, mark: Mark) -> None:
    """Put a range around each hook that a callback has of its own."""
    import keras

    kind = type(callback)
    for hook in _HOOKS:
        inherited = getattr(keras.callbacks.Callback, hook, None)
        call = getattr(callback, hook)
        # Marked already, when the same instance is given to fit twice.
        if getattr(kind, hook, None) is inherited or hasattr(call, "__wrapped__"):
            continue
        setattr(callback, hook, _in_range(call, f"Callback: {kind.__name__}.{hook}", mark))


def _in_range(call: Callable[..., Any], name: str, mark: Mark) -> Callable[..., Any]:
    @wraps(call)
    def marked_call(*arguments: Any, **keywords: Any) -> Any:
        with mark(name):
            return call(*arguments, **keywords)

    return marked_call
