"""Finds the steps of a program that knows nothing of it.

`sitecustomize` in `instrument/site` starts one of these when Python starts. A finder then waits for
frameworks to be imported, and for the calls that end a step: a step of PyTorch's optimizer, or a
batch of Keras's `fit`.

The first steps show through which functions, lines and loops of the user's code the program goes to
the end of a step. Later, a stack that leaves that path elsewhere is doing something else: under a
condition with a remainder (`step % 100 == 0`), or behind the loop over the batches of an epoch.

The best that is seen: a batch of `fit`, else a step of an optimizer, else gradients (`backward`,
`GradientTape`), else a training function, else a call of a model or of a compiled function. So the
batches of an evaluation are steps only of programs that do not train.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import json
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import wraps
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, Final, Literal

from tb_perfadvisor.instrument.examination.repeated_calls import RepeatedCalls
from tb_perfadvisor.instrument.threads import at_exit
from tb_perfadvisor.instrument.user_code import (
    conditions_with_remainders,
    loop_around,
    loops_of,
    user_frames,
    yields_in_loop,
)

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


def watch_making(kind: Any, remember: Callable[[Any, FrameType], None]) -> None:
    """Tell of each object of a class that is made from now on, and of the frame that makes it."""
    initialize = kind.__init__

    @wraps(initialize)
    def told(made: Any, *arguments: Any, **keywords: Any) -> None:
        initialize(made, *arguments, **keywords)
        with suppress(Exception):
            remember(made, sys._getframe(1))

    kind.__init__ = told


def outermost(
    call: Callable[..., Any],
    depths: threading.local,
    is_compiling: Callable[[], bool],
    ended: Callable[[Any], object],
) -> Callable[..., Any]:
    """A method that tells when a call of it has returned that is not inside another.

    It has the attributes of the method, by which PyTorch knows a `step` that it profiles.
    """

    @wraps(call)
    def told(owner: Any, *arguments: Any, **keywords: Any) -> Any:
        if is_compiling():
            return call(owner, *arguments, **keywords)
        depth = depths.__dict__
        depth["now"] = depth.get("now", 0) + 1
        try:
            result = call(owner, *arguments, **keywords)
        finally:
            depth["now"] -= 1
        if not depth["now"]:
            with suppress(Exception):
                ended(owner)
        return result

    return told


def when_imported(waiting: dict[str, OnImport]) -> None:
    """Call something with each of some modules, now or when it is imported."""
    for name in [name for name in waiting if name in sys.modules]:
        with suppress(Exception):
            waiting.pop(name)(sys.modules[name])
    if waiting:
        sys.meta_path.insert(0, Finder(waiting))


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
        at_exit(self._at_exit)

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

        def count(made: Any, frame: FrameType) -> None:
            self._count_steps(type(made))
            self.on_optimizer(made, frame)

        watch_making(vars(module)["Optimizer"], count)

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

        # An optimizer may be a container of others.
        counted_step = outermost(
            step, self._depths, torch.compiler.is_compiling, self.on_optimizer_step
        )
        setattr(counted_step, _IS_COUNTED, True)
        optimizers.step = counted_step

    def _at_exit(self) -> None:
        with suppress(Exception):
            self.at_exit()
        self.tell()


def jax_is_used() -> bool:
    """Whether the program computed anything with JAX."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    is_initialized = getattr(bridge, "backends_are_initialized", None)
    return is_initialized is not None and bool(is_initialized())


def is_in_backward() -> bool:
    """Whether PyTorch runs this code to compute gradients.

    Its profiler must not start or stop here: what it keeps for the thread is put back afterwards,
    and the program crashes.
    """
    bindings: Any = sys.modules.get("torch._C")
    graph_task = getattr(bindings, "_current_graph_task_id", None)
    return graph_task is not None and graph_task() != -1


Apart = Literal["every few steps", "between epochs"]
_MOST: Final = 50


class StepPath:
    """The functions and lines from the top of the program to the end of a step."""

    def __init__(self) -> None:
        """No step has ended yet."""
        self._lines: dict[CodeType, set[int]] = {}
        self._own: set[CodeType] = set()
        """The function that has the innermost loop around the end of a step. If that is a generator
        which yields in the loop, the function whose loop asks it, too."""

    def add(self, frame: FrameType | None) -> None:
        """A step ends in a call on this stack."""
        self._own.clear()
        found = loop_around(frame)
        while found is not None:
            own, line = found
            self._own.add(own.f_code)
            found = (
                loop_around(own.f_back) if yields_in_loop(own.f_code.co_filename, line) else None
            )
        for caller in user_frames(frame):
            if len(self._lines) < _MOST:
                self._lines.setdefault(caller.f_code, set()).add(caller.f_lineno)

    def apart(self, frame: FrameType | None) -> tuple[FrameType, Apart] | None:
        """The call that is no part of every step, on a stack; None if there is none."""
        for caller in user_frames(frame):
            steps = self._lines.get(caller.f_code)
            if steps is not None:
                kind = self._kind(caller, steps)
                return (caller, kind) if kind is not None else None
        return None

    def repeats(self, frame: FrameType) -> bool:
        """Whether a loop inside of a step runs this frame's line, or calls its function."""
        for caller in user_frames(frame):
            steps = self._lines.get(caller.f_code)
            if self._is_repeated(caller.f_code.co_filename, caller.f_lineno, steps or set()):
                return True
            if steps is not None:
                return False
        return False

    def _is_repeated(self, name: str, line: int, steps: set[int]) -> bool:
        return any(
            first <= line <= last and not any(first <= each <= last for each in steps)
            for first, last in loops_of(name)
        )

    def _kind(self, caller: FrameType, steps: set[int]) -> Apart | None:
        name, line = caller.f_code.co_filename, caller.f_lineno
        if line in steps:
            return None
        for first, last in conditions_with_remainders(name):
            # Where a loop inside of a step asks, it may count its own rounds.
            if (
                first <= line <= last
                and not any(first <= each <= last for each in steps)
                and not self._is_repeated(name, first, steps)
            ):
                return "every few steps"
        around = [
            (first, last)
            for first, last in loops_of(name)
            if any(first <= each <= last for each in steps)
        ]
        inside = [first for first, last in around if first <= line <= last]
        is_own = caller.f_code in self._own
        # In the loop that ends steps, all else belongs to each of them.
        if not inside or (is_own and max(first for first, _ in around) in inside):
            return None
        return "between epochs"


_SWITCH_AFTER: Final = 10
"""So many ends in a row of another source of the same rank, and the program has moved on to it: to
another optimizer, or from evaluating one model to evaluating another."""
_GONE_AFTER: Final = 20
"""So many ends of several other sources of the same rank without one of the source that counts, and
the program makes new ones all the time, such as a model for each client: all of them count."""
_MOST_KEYS: Final = 1_000
_MOST_SOURCES: Final = 5
"""So many loops of a program are recorded like the first one."""


class Rank(IntEnum):
    """How sure it is that a call ends a step; lower is better."""

    BATCH = 0
    OPTIMIZER = 1
    LOOP = 2
    GRADIENT = 3
    TRAINING_FUNCTION = 4
    CALL = 5


class StepSources:
    """Is told of each such call when it has returned."""

    def __init__(
        self,
        on_step: Callable[[], None],
        on_better: Callable[[Rank], None],
        on_next: Callable[[], None],
    ) -> None:
        """Prepare.

        `on_better` is called when steps are seen for the first time, or by a better rank than so
        far: what was recorded until then was not of steps. `on_next` is called when the program
        has moved on to another source of the same rank, once for each.
        """
        self._on_step = on_step
        self._on_better = on_better
        self._on_next = on_next
        self._known: set[object] = set()
        """The sources that the program has moved on to."""
        self.rank: Rank | None = None
        """The rank of the source whose calls end steps; None before the first."""
        self._key: object = None
        self._called: set[tuple[Rank, object]] = set()
        self._seen: tuple[Rank, object] | None = None
        self._in_a_row = 0
        self._others: list[object] = []
        """Which ended since the source that counts did."""
        self._counts_all = False

    def forget(self) -> None:
        """The calls that ended steps have stopped: the next calls that repeat may end them."""
        self.rank, self._key, self._seen = None, None, None
        self._in_a_row = 0
        self._others.clear()
        self._counts_all = False
        self._called.clear()

    def ended(self, rank: Rank, key: object) -> bool:
        """A call of a rank has returned; returns whether it ended a step."""
        if self.rank is not None and rank > self.rank:
            return False
        if rank != self.rank:
            # One call of a model may be a test of its shapes: its second call starts a loop.
            if rank >= Rank.TRAINING_FUNCTION and (rank, key) not in self._called:
                if len(self._called) < _MOST_KEYS:
                    self._called.add((rank, key))
                return False
            self.rank, self._key = rank, key
            self._counts_all = False
            self._on_better(rank)
        elif key != self._key and not self._counts_all:
            self._others.append(key)
            if len(self._others) >= _GONE_AFTER and len(set(self._others)) > 1:
                self._counts_all = True
                self._on_better(rank)
            self._in_a_row = self._in_a_row + 1 if self._seen == (rank, key) else 1
            self._seen = (rank, key)
            if self._in_a_row < _SWITCH_AFTER:
                return False
            self._known.add(self._key)
            self._key = key
            if key not in self._known and len(self._known) < _MOST_SOURCES:
                self._on_next()
        self._in_a_row = 0
        self._others.clear()
        self._on_step()
        return True


Ended = Callable[[Rank, object], object]


def watch_gradients(autograd: Any, ended: Ended) -> None:
    """Tell of each `backward` and each `torch.autograd.grad` that has returned."""
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

        def ended(model: Any) -> None:
            if self._is_on:
                self._ended(Rank.CALL, id(model))

        is_compiling = torch.compiler.is_compiling
        kind.__call__ = outermost(kind.__call__, self._inside, is_compiling, ended)
        self._kinds.add(kind)


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
    """Whether TensorFlow or JAX executes now, instead of tracing; True without them."""
    tensorflow: Any = sys.modules.get("tensorflow")
    if tensorflow is not None and tensorflow.inside_function():
        return False
    context = getattr(sys.modules.get("jax._src.core"), "trace_ctx", None)
    trace = getattr(context, "trace", None)
    # `jax.grad` outside of jit computes while it traces.
    while trace is not None and type(trace).__name__ != "DynamicJaxprTrace":
        trace = getattr(trace, "parent_trace", None)
    return trace is None
