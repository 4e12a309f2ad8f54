"""Sees the steps of TensorFlow and Keras programs that do not call `fit`."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from tb_perfadvisor.instrument.examination.repeated_calls import RepeatedCalls
from tb_perfadvisor.instrument.step_sources import Rank

Ended = Callable[[Rank, object], object]


class TensorFlowCalls:
    """Tells of outermost calls: of compiled functions, models, optimizers and gradient tapes."""

    def __init__(self, ended: Ended) -> None:
        self._ended = ended
        self._inside = threading.local()
        self._training: set[int] = set()
        """The compiled functions that compute gradients, by their ids."""
        self.repeated = RepeatedCalls()

    def watch_functions(self, functions: Any) -> None:
        """Watch calls of `tf.function`s. One that computes gradients is a training step."""

        def rank(function: Any) -> Rank:
            return Rank.TRAINING_FUNCTION if id(function) in self._training else Rank.CALL

        self._watch(functions, "__call__", rank)

    def watch_models(self, models: Any) -> None:
        """Watch calls of Keras's models, and training on single batches."""
        self._watch(models, "__call__", lambda model: Rank.CALL)
        self._watch(models, "train_on_batch", lambda model: Rank.BATCH)
        for name in ("test_on_batch", "predict_on_batch"):
            self._watch(models, name, lambda model: Rank.CALL)

    def watch_optimizers(self, optimizers: Any) -> None:
        """Watch updates by Keras's optimizers outside of compiled functions."""
        self._watch(optimizers, "apply", lambda optimizer: Rank.OPTIMIZER)

    def watch_tapes(self, tapes: Any) -> None:
        """Watch gradients that are computed outside of compiled functions, or are part of one."""
        gradient = tapes.gradient

        @wraps(gradient)
        def told(tape: Any, *arguments: Any, **keywords: Any) -> Any:
            result = gradient(tape, *arguments, **keywords)
            with suppress(Exception):
                outermost = self._inside.__dict__.get("stack")
                if outermost:
                    self._training.add(id(outermost[0]))
                elif _runs_eagerly():
                    self._ended(Rank.GRADIENT, "tape")
            return result

        tapes.gradient = told

    def _watch(self, kind: Any, name: str, rank_of: Callable[[Any], Rank]) -> None:
        call = getattr(kind, name)

        @wraps(call)
        def told(owner: Any, *arguments: Any, **keywords: Any) -> Any:
            stack = self._inside.__dict__.setdefault("stack", [])
            stack.append(owner)
            began_s = time.perf_counter()
            try:
                result = call(owner, *arguments, **keywords)
            finally:
                stack.pop()
            # Inside a function that is being traced, nothing runs.
            if not stack:
                with suppress(Exception):
                    if _runs_eagerly():
                        passed_s = time.perf_counter() - began_s
                        given = (arguments, keywords)
                        self.repeated.called(owner, given, result, passed_s, sys._getframe(1))
                        self._ended(rank_of(owner), (name, id(owner)))
            return result

        setattr(kind, name, told)


def _runs_eagerly() -> bool:
    """Whether TensorFlow executes now, instead of tracing; True without it."""
    tensorflow: Any = sys.modules.get("tensorflow")
    return tensorflow is None or not tensorflow.inside_function()
