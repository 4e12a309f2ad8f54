"""Records a program that knows nothing of it: what `perfadvisor run` puts into its processes.

`sitecustomize` in `instrument/site` calls `install` when Python starts. A finder then waits for a
framework to be imported, and for the calls that end a step: a step of PyTorch's optimizer, or a
batch of Keras's `fit`. JAX has no call that every program makes once per step, so its programs are
recorded by time.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.util
import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

SETTINGS: Final = "PERFADVISOR_RUN"
"""The environment variable with the settings, as JSON."""
_LOOK_EVERY_S: Final = 0.5
_IS_COUNTED: Final = "_perfadvisor_is_counted"
_FIT_CALLBACKS: Final = 6
"""`fit(self, x, y, batch_size, epochs, verbose, callbacks)`: the place of its callbacks."""


def install() -> None:
    """Wait for frameworks in this process. Never raises: the program must run as without it."""
    with suppress(Exception):
        text = os.environ.get(SETTINGS, "")
        # Workers of a loader are not the program.
        if text and multiprocessing.parent_process() is None:
            sys.meta_path.insert(0, _Finder(_Process(json.loads(text))))


class _Finder(importlib.abc.MetaPathFinder):
    """Calls something when one of a few modules was imported; finds no module by itself."""

    def __init__(self, process: _Process) -> None:
        self._waiting: dict[str, Callable[[ModuleType], None]] = {
            "torch.optim.optimizer": process.on_torch,
            "keras.src.models.model": process.on_keras,
            "jax": process.on_jax,
        }
        self._process = process

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


class _Process:
    """What this process records, and what it tells the command, in a file."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._status = Path(settings["status"], f"{self._pid}.json")
        self._said: dict[str, Any] = {"imported": [], "steps": 0, "summary": ""}
        self._profiler: Any = None
        self._counted: Any = None
        self._is_tracing = False
        self._recordings = 0
        self._depths = threading.local()
        """How many steps of optimizers are under way, one inside another, on a thread."""
        self._tell()
        atexit.register(self._at_exit)

    def on_torch(self, module: ModuleType) -> None:
        """Wait for optimizers, whose class gets its profiled `step` when one is made."""
        self._uses("torch")
        optimizer: Any = vars(module)["Optimizer"]
        initialize = optimizer.__init__

        @wraps(initialize)
        def initialize_and_count(made: Any, *arguments: Any, **keywords: Any) -> None:
            initialize(made, *arguments, **keywords)
            with suppress(Exception):
                self._count_steps(type(made))

        optimizer.__init__ = initialize_and_count

    def on_keras(self, module: ModuleType) -> None:
        """Give each `fit` of Keras one more callback."""
        self._uses("keras")
        model: Any = vars(module)["Model"]
        fit = model.fit

        @wraps(fit)
        def counted_fit(*arguments: Any, **keywords: Any) -> Any:
            if len(arguments) <= _FIT_CALLBACKS:
                with suppress(Exception):
                    given = keywords.get("callbacks")
                    listed = list(given) if isinstance(given, list | tuple) else given
                    if listed is None or isinstance(listed, list):
                        keywords["callbacks"] = [*(listed or ()), self._keras_callback()]
            return fit(*arguments, **keywords)

        model.fit = counted_fit

    def on_jax(self, module: ModuleType) -> None:
        """Record by time, unless Keras's steps are counted."""
        threading.Thread(target=self._record_by_time, name="perfadvisor", daemon=True).start()

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
                    self._on_optimizer_step(optimizer)
            return result

        setattr(counted_step, _IS_COUNTED, True)
        optimizers.step = counted_step

    def _on_optimizer_step(self, optimizer: Any) -> None:
        """Count the steps of the first optimizer; others may make more than one per step."""
        if self._counted is None:
            from tb_perfadvisor.instrument.torch import continuous

            self._profiler = continuous(self._settings["logdir"], **self._settings["plan"])
            self._profiler.logs_summary = False  # the command says it
            self._counted = optimizer
        if optimizer is self._counted:
            self._step()

    def _keras_callback(self) -> Any:
        from tb_perfadvisor.instrument.keras import counting_callback, profiler_of_backend

        if self._counted is None:
            self._profiler = profiler_of_backend(self._settings["logdir"], self._settings["plan"])
            self._profiler.logs_summary = False
            self._counted = "fit"
        return counting_callback(self._profiler, self._step)

    def _step(self) -> None:
        self._said["steps"] += 1
        self._profiler.step()
        if len(self._profiler.recordings) != self._recordings:
            self._recordings = len(self._profiler.recordings)
            self._said["summary"] = self._profiler.summary()
            self._tell()

    def _record_by_time(self) -> None:
        import jax

        # Other libraries import JAX, too. Recording would initialize it, which takes GPU memory.
        while not _jax_is_used():
            time.sleep(_LOOK_EVERY_S)
        self._uses("jax")
        time.sleep(self._settings["after_s"])
        number = 0
        while self._counted is None and "keras" not in self._said["imported"]:
            with suppress(Exception):
                jax.profiler.start_trace(self._settings["logdir"])
                self._is_tracing = True
                time.sleep(self._settings["window_s"])
                self._stop_tracing()
                number += 1
                self._said["summary"] = (
                    f"{number} recording{'' if number == 1 else 's'} of "
                    f"{self._settings['window_s']:g} s in {self._settings['logdir']}"
                )
                self._tell()
            time.sleep(self._settings["every_s"])

    def _stop_tracing(self) -> None:
        if self._is_tracing:
            import jax

            self._is_tracing = False
            jax.profiler.stop_trace()

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            return
        with suppress(Exception):
            self._stop_tracing()
        if _jax_is_used():
            self._uses("jax")
        if self._profiler is not None:
            self._profiler.close()
            self._said["summary"] = self._profiler.summary()
        self._tell()

    def _uses(self, framework: str) -> None:
        if framework not in self._said["imported"]:
            self._said["imported"].append(framework)
            self._tell()

    def _tell(self) -> None:
        """Write what is known of this process; a fork of it says nothing."""
        if os.getpid() == self._pid:
            with suppress(OSError):
                self._status.write_text(json.dumps(self._said), encoding="utf-8")


def _jax_is_used() -> bool:
    """Whether the program computed anything with JAX."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    is_initialized = getattr(bridge, "backends_are_initialized", None)
    return is_initialized is not None and bool(is_initialized())
