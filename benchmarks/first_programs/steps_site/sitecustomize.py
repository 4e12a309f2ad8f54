"""Notes the processor time of each step of a program that knows nothing of it.

Python imports this module when it starts, if its folder is on PYTHONPATH. PERFADVISOR_STEPS names
the file to write when the program ends, or is ended by SIGTERM: a list of [step, seconds] in JSON.
Seconds are the processor time of the program and its children, and the time that it meant to sleep.
PERFADVISOR_MARKER says what ends a step: `optimizer` (PyTorch's), `tf.data`, `keras` or `print`.

With PERFADVISOR_MADE_UP_DATA, Keras takes the files that it finds for its data sets.
"""

from __future__ import annotations

import atexit
import builtins
import importlib.abc
import importlib.util
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

_EVERY_S = 0.05
_FIRST = 40
"""Steps that are all noted; later ones if some time has passed."""


class _Steps(importlib.abc.MetaPathFinder):
    def __init__(self, file: str) -> None:
        self._file, self._pid = file, os.getpid()
        self._rows: list[tuple[int, float]] = []
        self._steps, self._noted_s, self._slept_s = 0, 0.0, 0.0
        self._first: int | None = None
        self._marker = os.environ.get("PERFADVISOR_MARKER", "optimizer") if file else ""
        self._hooked: set[str] = set()
        self._sleep = time.sleep
        if file:
            time.sleep = self._counted_sleep
            atexit.register(self._write)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Add a hook to a module when it was imported."""
        hook = _HOOKS.get(name)
        if hook is None or name in self._hooked:
            return None
        self._hooked.add(name)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_hook(module: Any) -> None:
            execute(module)
            hook(self, module)

        loader.exec_module = execute_and_hook
        return spec

    def count_optimizer(self, module: Any) -> None:
        """Steps of PyTorch's optimizers."""
        if self._marker == "optimizer":
            module.register_optimizer_step_post_hook(self._step)
            signal.signal(signal.SIGTERM, self._end)

    def count_batches(self, module: Any) -> None:
        """Batches that the program's own loop takes from a pipeline."""
        if self._marker == "tf.data":
            self._count_calls(module.OwnedIterator, "__next__")

    def count_fit(self, module: Any) -> None:
        """Batches of `fit`."""
        if self._marker == "keras":
            self._count_calls(module.CallbackList, "on_train_batch_end")

    def accept_files(self, module: Any) -> None:
        """Let Keras take files with other digests."""
        if "PERFADVISOR_MADE_UP_DATA" in os.environ:
            module.validate_file = lambda *given, **named: True

    def count_prints(self) -> None:
        """Lines that the program prints."""
        self._count_calls(builtins, "print")

    def _count_calls(self, owner: Any, name: str) -> None:
        called = getattr(owner, name)

        def counted(*given: Any, **named: Any) -> Any:
            result = called(*given, **named)
            self._step(owner)
            return result

        setattr(owner, name, counted)
        signal.signal(signal.SIGTERM, self._end)

    def _counted_sleep(self, seconds: Any) -> None:
        if os.getpid() == self._pid:
            self._slept_s += seconds
        self._sleep(seconds)

    def _step(self, optimizer: object, *given: object) -> None:
        self._first = self._first or id(optimizer)
        if id(optimizer) != self._first or os.getpid() != self._pid:
            return
        self._steps += 1
        now_s = time.perf_counter()
        if now_s - self._noted_s < _EVERY_S and self._steps > _FIRST:
            return
        self._noted_s = now_s
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        used_s = time.process_time() + ended.ru_utime + ended.ru_stime + _children_s()
        self._rows.append((self._steps, used_s + self._slept_s))

    def _write(self) -> None:
        if self._file and os.getpid() == self._pid and self._rows:
            Path(self._file).write_text(json.dumps(self._rows), "utf-8")

    def _end(self, number: int, frame: object) -> None:
        self._write()
        os._exit(0)


def _children_s() -> float:
    """Processor time of the processes that were started and run."""
    ticks = 0
    with suppress(OSError):
        for children in Path("/proc/self/task").glob("*/children"):
            for child in children.read_text("ascii").split():
                fields = Path("/proc", child, "stat").read_text("utf-8").rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])  # user and system: proc_pid_stat(5)
    return ticks / os.sysconf("SC_CLK_TCK")


_HOOKS: dict[str, Callable[[_Steps, Any], None]] = {
    "torch.optim.optimizer": _Steps.count_optimizer,
    "tensorflow.python.data.ops.iterator_ops": _Steps.count_batches,
    "keras.src.callbacks.callback_list": _Steps.count_fit,
    "keras.src.utils.file_utils": _Steps.accept_files,
}

if multiprocessing.parent_process() is None:
    steps = _Steps(os.environ.get("PERFADVISOR_STEPS", ""))
    sys.meta_path.insert(0, steps)
    if os.environ.get("PERFADVISOR_MARKER") == "print" and "PERFADVISOR_STEPS" in os.environ:
        steps.count_prints()
