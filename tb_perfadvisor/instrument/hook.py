"""Starts in the processes of a program what a command put there: recording, or measuring.

`sitecustomize` in `instrument/site` calls `install` when Python starts. JAX has no call that every
program makes once per step, so its programs are recorded by time.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
import time
from contextlib import suppress
from types import FrameType, ModuleType
from typing import Any, Final

from tb_perfadvisor.instrument.checkout_guard import guard, use_copy
from tb_perfadvisor.instrument.step_hooks import Finder, HookedProcess, OnImport, jax_is_used

SETTINGS: Final = "PERFADVISOR_RUN"
"""The environment variable with the settings, as JSON."""
_LOOK_EVERY_S: Final = 0.5
_SEEN_STEPS: Final = 3
"""The first steps show which loop makes them; looking at the stack takes time."""


def install() -> None:
    """Wait for frameworks in this process. Never raises: the program must run as without it."""
    with suppress(Exception):
        text = os.environ.get(SETTINGS, "")
        if not text:
            return
        settings = json.loads(text)
        if "checkout" in settings:
            guard(settings["checkout"])
            use_copy(settings["checkout"], settings["copy"])
        # Workers of a loader are not the program.
        if multiprocessing.parent_process() is None:
            sys.meta_path.insert(0, Finder(_process(settings).waiting))


def _process(settings: dict[str, Any]) -> HookedProcess:
    if "measure" in settings:
        from tb_perfadvisor.instrument.measure import MeasuredProcess

        return MeasuredProcess(settings)
    return _RecordedProcess(settings)


class _RecordedProcess(HookedProcess):
    """Records some of the steps of this process."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._profiler: Any = None
        self._counted: Any = None
        self._is_tracing = False
        self._recordings = 0
        self._parts: Any = None
        super().__init__(settings)

    @property
    def waiting(self) -> dict[str, OnImport]:
        return {
            **super().waiting,
            "jax": self._on_jax,
            "torch.nn.modules.module": self._on_modules,
            "torch.utils.data.dataloader": self._on_loaders,
        }

    @property
    def parts(self) -> Any:
        """What the program makes; imported when a framework is, not by every process."""
        if self._parts is None:
            from tb_perfadvisor.instrument.parts import Parts

            self._parts = Parts()
        return self._parts

    def on_optimizer(self, optimizer: Any, frame: FrameType) -> None:
        """Remember where it is made."""
        from tb_perfadvisor.instrument.parts import add_optimizer

        add_optimizer(self.parts, optimizer, frame)

    def on_optimizer_step(self, optimizer: Any) -> None:
        """Count the steps of the first optimizer; others may make more than one per step."""
        if self._counted is None:
            from tb_perfadvisor.instrument.torch import continuous

            self._use(continuous(self.settings["logdir"], **self.settings["plan"]))
            self._counted = optimizer
        if optimizer is self._counted:
            if self.said["steps"] < _SEEN_STEPS:
                self.parts.add_step("step", sys._getframe(2))
            self._step()

    def keras_callback(self) -> Any:
        """A callback that counts batches."""
        from tb_perfadvisor.instrument.keras import counting_callback, profiler_of_backend

        if self._counted is None:
            self._use(profiler_of_backend(self.settings["logdir"], self.settings["plan"]))
            self._counted = "fit"
        return counting_callback(self._profiler, self._step)

    def at_exit(self) -> None:
        """End what is being recorded."""
        self._stop_tracing()
        if jax_is_used():
            self.uses("jax")
        if self._profiler is not None:
            self._profiler.close()
            self.said["summary"] = self._profiler.summary()

    def _use(self, profiler: Any) -> None:
        profiler.logs_summary = False  # the command says it
        profiler.recorded_by = "run"
        profiler.parts = self.parts
        self._profiler = profiler

    def _on_modules(self, module: ModuleType) -> None:
        from tb_perfadvisor.instrument.parts import watch_models

        watch_models(self.parts, vars(module)["Module"])

    def _on_loaders(self, module: ModuleType) -> None:
        from tb_perfadvisor.instrument.parts import watch_loaders

        watch_loaders(self.parts, vars(module)["DataLoader"])

    def _on_jax(self, module: ModuleType) -> None:
        """Record by time, unless Keras's steps are counted."""
        threading.Thread(target=self._record_by_time, name="perfadvisor", daemon=True).start()

    def _step(self) -> None:
        self.said["steps"] += 1
        self._profiler.step()
        if len(self._profiler.recordings) != self._recordings:
            self._recordings = len(self._profiler.recordings)
            self.said["summary"] = self._profiler.summary()
            self.tell()

    def _record_by_time(self) -> None:
        import jax

        # Other libraries import JAX, too. Recording would initialize it, which takes GPU memory.
        while not jax_is_used():
            time.sleep(_LOOK_EVERY_S)
        self.uses("jax")
        time.sleep(self.settings["after_s"])
        number = 0
        while self._counted is None and "keras" not in self.said["imported"]:
            with suppress(Exception):
                jax.profiler.start_trace(self.settings["logdir"])
                self._is_tracing = True
                time.sleep(self.settings["window_s"])
                self._stop_tracing()
                number += 1
                self.said["summary"] = (
                    f"{number} recording{'' if number == 1 else 's'} of "
                    f"{self.settings['window_s']:g} s in {self.settings['logdir']}"
                )
                self.tell()
            time.sleep(self.settings["every_s"])

    def _stop_tracing(self) -> None:
        if self._is_tracing:
            import jax

            self._is_tracing = False
            jax.profiler.stop_trace()
