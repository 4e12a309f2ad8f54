"""Finds the steps of a program that knows nothing of it.

`sitecustomize` in `instrument/site` starts one of these when Python starts. A finder then waits for
frameworks to be imported, and for the calls that end a step: a step of PyTorch's optimizer, or a
batch of Keras's `fit`.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.util
import json
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Final

OnImport = Callable[[ModuleType], None]

_IS_COUNTED: Final = "_perfadvisor_is_counted"
_CALLBACKS: Final = {"fit": 6, "evaluate": 7, "predict": 5}
"""The place of `callbacks` among the arguments of Keras's loops, the model included."""


class Finder(importlib.abc.MetaPathFinder):
    """Calls something when one of a few modules was imported; finds no module by itself."""

    def __init__(self, waiting: dict[str, OnImport]) -> None:
        """Wait for modules, by name."""
        self._waiting = waiting

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The usual spec of a module that is waited for, once; None for all others."""
        call = self._waiting.pop(fullname, None)
        spec = importlib.util.find_spec(fullname) if call is not None else None
        if call is None or spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            with suppress(Exception):
                call(module)

        loader.exec_module = exec_module
        return spec


class HookedProcess(ABC):
    """The steps of this process, and what it tells the command, in a file."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Tell the command that this process has begun."""
        self.settings = settings
        self.said: dict[str, Any] = {"imported": [], "steps": 0}
        self.pid = os.getpid()
        self._status = Path(settings["status"], f"{self.pid}.json")
        self._depths = threading.local()
        """How many steps of optimizers are under way, one inside another, on a thread."""
        self.tell()
        atexit.register(self._at_exit)

    @property
    def waiting(self) -> dict[str, OnImport]:
        """What to call when a module was imported."""
        return {"torch.optim.optimizer": self._on_torch, "keras.src.models.model": self._on_keras}

    @abstractmethod
    def on_optimizer_step(self, optimizer: Any) -> None:
        """A step of an optimizer of PyTorch has returned; not one inside another's."""

    def on_optimizer(self, optimizer: Any, frame: FrameType) -> None:  # noqa: B027 - may be ignored
        """The program made an optimizer of PyTorch, in a call on this stack."""

    @abstractmethod
    def keras_callback(self, method: str) -> Any:
        """One more callback for a `fit`, `evaluate` or `predict` of Keras; None for none."""

    @abstractmethod
    def at_exit(self) -> None:
        """The program ends."""

    def uses(self, framework: str) -> None:
        """The program imported a framework."""
        if framework not in self.said["imported"]:
            self.said["imported"].append(framework)
            self.tell()

    def tell(self) -> None:
        """Write what is known of this process; a fork of it says nothing."""
        if os.getpid() == self.pid:
            with suppress(OSError):
                # The command may read it at any time.
                partial = self._status.with_suffix(".partial")
                partial.write_text(json.dumps(self.said), encoding="utf-8")
                partial.replace(self._status)

    def _on_torch(self, module: ModuleType) -> None:
        """Wait for optimizers, whose class gets its profiled `step` when one is made."""
        self.uses("torch")
        optimizer: Any = vars(module)["Optimizer"]
        initialize = optimizer.__init__

        @wraps(initialize)
        def initialize_and_count(made: Any, *arguments: Any, **keywords: Any) -> None:
            initialize(made, *arguments, **keywords)
            with suppress(Exception):
                self._count_steps(type(made))
                self.on_optimizer(made, sys._getframe(1))

        optimizer.__init__ = initialize_and_count

    def _on_keras(self, module: ModuleType) -> None:
        """Give each loop of Keras over batches one more callback."""
        self.uses("keras")
        for name, place in _CALLBACKS.items():
            self._add_callback(vars(module)["Model"], name, place)

    def _add_callback(self, model: Any, name: str, place: int) -> None:
        loop = getattr(model, name)

        @wraps(loop)
        def counted(*arguments: Any, **keywords: Any) -> Any:
            if len(arguments) <= place:
                with suppress(Exception):
                    given = keywords.get("callbacks")
                    listed = list(given) if isinstance(given, list | tuple) else given
                    added = self.keras_callback(name)
                    if added is not None and (listed is None or isinstance(listed, list)):
                        keywords["callbacks"] = [*(listed or ()), added]
            return loop(*arguments, **keywords)

        setattr(model, name, counted)

    def _count_steps(self, optimizers: Any) -> None:
        """Count a class's steps when they have returned.

        PyTorch's own hooks run inside the range that the profiler records for a step: a mark set
        there would divide that range between two steps.
        """
        step = optimizers.step
        if hasattr(step, _IS_COUNTED):
            return
        import torch

        is_compiling = torch.compiler.is_compiling

        # This copies the attributes of the function, by which PyTorch knows that it is profiled.
        @wraps(step)
        def counted_step(optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            if is_compiling():
                return step(optimizer, *arguments, **keywords)
            depth = self._depths.__dict__
            depth["now"] = depth.get("now", 0) + 1
            try:
                result = step(optimizer, *arguments, **keywords)
            finally:
                depth["now"] -= 1
            # An optimizer may be a container of others.
            if not depth["now"]:
                with suppress(Exception):
                    self.on_optimizer_step(optimizer)
            return result

        setattr(counted_step, _IS_COUNTED, True)
        optimizers.step = counted_step

    def _at_exit(self) -> None:
        if os.getpid() == self.pid:
            with suppress(Exception):
                self.at_exit()
            self.tell()


def jax_is_used() -> bool:
    """Whether the program computed anything with JAX."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    is_initialized = getattr(bridge, "backends_are_initialized", None)
    return is_initialized is not None and bool(is_initialized())
