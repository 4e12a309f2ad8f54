"""Sees the steps of PyTorch programs without an optimizer: by gradients, or by calls of models."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from tb_perfadvisor.instrument.step_sources import Rank

Ended = Callable[[Rank, object], object]


def watch_gradients(autograd: Any, ended: Ended) -> None:
    """Tell of each `backward` and each `torch.autograd.grad` that has returned.

    Args:
        autograd: The module `torch.autograd`.
        ended: Is told.
    """
    for name in ("backward", "grad"):
        setattr(autograd, name, _told(getattr(autograd, name), ended))


def _told(call: Callable[..., Any], ended: Ended) -> Callable[..., Any]:
    @wraps(call)
    def told(*arguments: Any, **keywords: Any) -> Any:
        result = call(*arguments, **keywords)
        # A compiler may run this code on tensors without content.
        torch: Any = sys.modules.get("torch")
        with suppress(Exception):
            if not torch.compiler.is_compiling():
                ended(Rank.GRADIENT, "backward")
        return result

    return told


class ModelCalls:
    """Tells of calls of models that no other model makes, until it is told to stop."""

    def __init__(self, ended: Ended) -> None:
        self._ended = ended
        self._kinds: set[Any] = set()
        self._inside = threading.local()
        self._is_on = False

    def watch(self, models: list[Any]) -> None:
        """Watch the classes of these models; each class once."""
        self._is_on = True
        for kind in {type(model) for model in models} - self._kinds:
            with suppress(Exception):
                self._watch_kind(kind)

    def stop(self) -> None:
        """Put the classes back as they were; the program trains."""
        self._is_on = False
        while self._kinds:
            with suppress(Exception):
                del self._kinds.pop().__call__

    def _watch_kind(self, kind: Any) -> None:
        if "__call__" in vars(kind):  # a class of its own ways
            return
        import torch

        is_compiling, call, inside = torch.compiler.is_compiling, kind.__call__, self._inside

        @wraps(call)
        def told(model: Any, *arguments: Any, **keywords: Any) -> Any:
            if is_compiling():
                return call(model, *arguments, **keywords)
            depth = inside.__dict__
            depth["now"] = depth.get("now", 0) + 1
            try:
                result = call(model, *arguments, **keywords)
            finally:
                depth["now"] -= 1
            if self._is_on and not depth["now"]:
                with suppress(Exception):
                    self._ended(Rank.CALL, id(model))
            return result

        kind.__call__ = told
        self._kinds.add(kind)
