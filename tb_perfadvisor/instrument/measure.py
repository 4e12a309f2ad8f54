"""Measures the steps of a program that knows nothing of it, without a profiler.

`perfadvisor try` puts it into the processes of both versions of a program. It notes when blocks of
steps end, what work they did, and the first losses, and tells the command, which ends the program.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import wraps
from itertools import pairwise
from math import ceil
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal

from tb_perfadvisor.instrument.checkout_guard import modules_of_checkout
from tb_perfadvisor.instrument.continuous.schedule import LATEST_START, SETTLED, has_settled
from tb_perfadvisor.instrument.ranks import rank_of_environment
from tb_perfadvisor.instrument.step_hooks import HookedProcess, OnImport, jax_is_used

MOST_LOSSES: Final = 50
CHECKED_STEP: Final = 5
"""The step after which named tensors are stored: an early one, because rounding errors grow."""
_SEED: Final = 0
_BACKWARD: Final = "backward()"
_FRAMEWORKS: Final = ("torch", "tensorflow", "jax", "keras")
_LOOK_EVERY_NS: Final = 1_000_000_000
_FEWEST_STEPS: Final = 10
_ENOUGH_NS: Final = 1_000_000_000
"""Warm-up of fewer steps is enough if these took a second: caches and clock rates have settled."""
_FEWEST_IN_BLOCK: Final = 2

Moment = Literal["warming up", "begin", "block", "inside", "end", "after"]


class MeasuredProcess(HookedProcess):
    """Measures the steps of this process."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Prepare; nothing is measured before a framework's steps begin."""
        self._plan = settings["measure"]
        self._window = Window(self._plan)
        self._marker: Any = None
        """The optimizer whose steps are the program's, or what else marks them."""
        self._steps = self._optimizer_steps = self._backward_passes = 0
        self._samples = self._input_elements = 0
        self._losses: list[Any] = []
        self._boundaries: list[list[int]] = []
        self._looked_ns = 0
        self._stopped_ns = 0
        """How long this process was stopped, between its turns."""
        super().__init__(settings)
        self.said["rank"] = rank_of_environment() or 0
        random.seed(_SEED)

    @property
    def waiting(self) -> dict[str, OnImport]:
        """What to call when a module was imported."""
        return {
            **super().waiting,
            "torch": self._on_whole_torch,
            "numpy.random": lambda module: vars(module)["seed"](_SEED),
            "jax": lambda module: self.uses("jax"),
            "tb_perfadvisor.instrument.continuous.profiler": self._on_continuous,
        }

    def on_optimizer_step(self, optimizer: Any) -> None:
        """Count all optimizers; the steps of the first one are those of the program."""
        self._optimizer_steps += 1
        if self._marker is None or self._marker == _BACKWARD:
            self._mark_by(optimizer)
        if optimizer is self._marker:
            self._step()
            if self._steps == 1:
                self._count_inputs()
            if self._steps == CHECKED_STEP and self._plan["checks"]:
                self._store_tensors(self._plan["checks"])

    def keras_callback(self, method: str) -> Any:
        """A callback that counts batches, and reads their loss."""
        if method != "fit":
            return None
        import keras

        measured = self

        class Measured(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
            """Counts the batches of `fit`."""

            def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
                if logs and "loss" in logs and len(measured._losses) < MOST_LOSSES:
                    measured._losses.append(float(logs["loss"]))
                measured._step_of("fit")

        return Measured()

    def at_exit(self) -> None:
        """Tell what was measured of a program that ended by itself."""
        if jax_is_used():
            self.uses("jax")
        self._report(is_complete=self.said.get("is_complete", False))

    def _step_of(self, marker: str) -> None:
        """A step ended by a mark of another kind; an optimizer's steps no longer count."""
        if self._marker != marker:
            self._mark_by(marker)
        self._step()

    def _mark_by(self, marker: Any) -> None:
        """Count steps by something, from now on."""
        self._marker, self._window, self._boundaries = marker, Window(self._plan), []
        self._steps = 0

    def _step(self) -> None:
        self._steps += 1
        self.said["steps"] = self._steps
        now_ns = self._clock_ns()
        if now_ns - self._looked_ns > _LOOK_EVERY_NS:
            self._looked_ns = now_ns
            _end_without(self._plan["parent"])
            self.tell()
        moment = self._window.step_ended(now_ns)
        if moment in ("begin", "block", "end"):
            _wait_for_devices()
            self._boundaries.append(
                [
                    self._clock_ns(),
                    self._optimizer_steps,
                    self._backward_passes,
                    self._samples,
                    self._input_elements,
                ]
            )
        if moment == "begin":
            self.said["is_open"] = True
            self.tell()
        elif moment == "end":
            self._report(is_complete=True)
            self.tell()
        if moment in ("begin", "block", "end") and self._plan["in_turns"] and not self.said["rank"]:
            self._wait_for_turn()

    def _clock_ns(self) -> int:
        """The time that passed while this process was not stopped."""
        return time.perf_counter_ns() - self._stopped_ns

    def _wait_for_turn(self) -> None:
        """Stop, with all processes of this session, until the command lets them go on.

        Cores differ in speed, and a thread mostly stays where it is. So each block begins on the
        next core, the same one in both programs, from which the thread may move.
        """
        stopped_ns = time.perf_counter_ns()
        os.killpg(os.getpgrp(), signal.SIGSTOP)
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {sorted(cores)[len(self._boundaries) % len(cores)]})
        os.sched_setaffinity(0, cores)
        self._stopped_ns += time.perf_counter_ns() - stopped_ns

    def _report(self, *, is_complete: bool) -> None:
        if not self._steps or self.said.get("is_complete"):
            return
        self.said |= {
            "begin": self._window.begin,
            "block_steps": self._window.block_steps,
            "boundaries": self._boundaries,
            "losses": [_number(loss) for loss in self._losses],
            "of_checkout": modules_of_checkout(self.settings["checkout"])[:3],
            "versions": {name: _version(name) for name in _FRAMEWORKS if name in sys.modules},
            "accelerator": _accelerator(),
            "is_complete": is_complete,
        }

    # --- PyTorch ----------------------------------------------------------------------------------

    def _on_whole_torch(self, module: ModuleType) -> None:
        torch: Any = module
        torch.manual_seed(_SEED)  # the program may choose another one
        self._count_backward_passes(torch)
        self._keep_unscaled_losses(torch)
        self._count_samples()

    def _count_backward_passes(self, torch: Any) -> None:
        backward, is_compiling = torch.autograd.backward, torch.compiler.is_compiling

        @wraps(backward)
        def counted_backward(tensors: Any, *arguments: Any, **keywords: Any) -> Any:
            if not is_compiling():
                self._backward_passes += 1
                if len(self._losses) < MOST_LOSSES:
                    with suppress(Exception):
                        self._losses.append(_loss_of(tensors))
            result = backward(tensors, *arguments, **keywords)
            if self._is_step_of_its_own(torch):
                self._step_of(_BACKWARD)
            return result

        torch.autograd.backward = counted_backward

    def _is_step_of_its_own(self, torch: Any) -> bool:
        """Whether a backward pass that ended is a step: of programs that update by hand."""
        if self._marker is None and self._backward_passes == 1:
            import gc

            made = (issubclass(type(each), torch.optim.Optimizer) for each in gc.get_objects())
            return not any(made)
        return self._marker == _BACKWARD and not torch.compiler.is_compiling()

    def _keep_unscaled_losses(self, torch: Any) -> None:
        """Remember the loss that a gradient scaler scales by a factor of its own."""
        scaler = torch.amp.GradScaler
        scale = scaler.scale

        @wraps(scale)
        def remembering_scale(self: Any, outputs: Any) -> Any:
            scaled = scale(self, outputs)
            if isinstance(scaled, torch.Tensor) and isinstance(outputs, torch.Tensor):
                scaled._perfadvisor_unscaled = outputs.detach()
            return scaled

        scaler.scale = remembering_scale

    def _count_samples(self) -> None:
        """Count the rows of the batches that loaders hand to the program."""
        from torch.utils.data import dataloader

        loader: Any = vars(dataloader)["_BaseDataLoaderIter"]
        fetch = loader.__next__

        @wraps(fetch)
        def counted_fetch(loading: Any) -> Any:
            batch = fetch(loading)
            tensor = next(tensors_in(batch), None)
            self._samples += tensor.shape[0] if tensor is not None and tensor.dim() else 1
            return batch

        loader.__next__ = counted_fetch

    def _count_inputs(self) -> None:
        """Count the numbers that the trained modules get, from now on."""
        import torch

        is_compiling, is_training = torch.compiler.is_compiling, torch.is_grad_enabled
        roots = self._trained_modules()
        ids = {id(root) for root in roots}

        def count(kind: Any) -> None:
            call = kind.__call__

            @wraps(call)
            def counted_call(module: Any, *arguments: Any, **keywords: Any) -> Any:
                if not is_compiling() and id(module) in ids and is_training():
                    given = (arguments, keywords)
                    self._input_elements += sum(each.numel() for each in tensors_in(given))
                return call(module, *arguments, **keywords)

            kind.__call__ = counted_call

        for kind in {type(root) for root in roots}:
            count(kind)

    def _trained_modules(self) -> list[Any]:
        """The modules with the optimizer's parameters that are no part of another module."""
        import gc

        import torch

        trained = {
            id(parameter) for group in self._marker.param_groups for parameter in group["params"]
        }
        # Not `isinstance`, which asks proxies of other libraries for their class.
        modules = [each for each in gc.get_objects() if issubclass(type(each), torch.nn.Module)]
        parts = {id(part) for module in modules for part in module.children()}
        return [
            module
            for module in modules
            if id(module) not in parts
            and any(id(parameter) in trained for parameter in module.parameters())
        ]

    def _store_tensors(self, patterns: list[str]) -> None:
        """Store the tensors of the trained modules whose names match."""
        from fnmatch import fnmatchcase

        import numpy as np

        found = {}
        for module in self._trained_modules():
            for name, tensor in module.state_dict().items():
                plain = name.replace("_orig_mod.", "").removeprefix("module.")
                if any(fnmatchcase(plain, pattern) for pattern in patterns):
                    found[plain] = tensor.detach().float().cpu().numpy().ravel()
        path = Path(self.settings["status"], f"{os.getpid()}.npz")
        with path.open("wb") as file:
            np.savez(file, **{str(place): found[name] for place, name in enumerate(found)})
        self.said["tensors"] = [*found]

    # --- other marks ------------------------------------------------------------------------------

    def _on_continuous(self, module: ModuleType) -> None:
        """Take the steps of programs that call the continuous profiler, as those of JAX do."""
        profiler: Any = vars(module)["ContinuousProfiler"]
        step = profiler.step

        @wraps(step)
        def counted_step(recording: Any) -> None:
            step(recording)
            self._step_of("step()")

        profiler.step = counted_step


def _loss_of(tensors: Any) -> Any:
    """A copy of the sum of losses, still on its device: reading it would wait for the device."""
    if not hasattr(tensors, "detach"):
        return sum(_loss_of(tensor) for tensor in tensors)
    unscaled = getattr(tensors, "_perfadvisor_unscaled", tensors)
    return unscaled.detach().sum() if unscaled.numel() > 1 else unscaled.detach().clone()


def tensors_in(value: Any) -> Iterator[Any]:
    """The tensors in arguments, results or a batch."""
    if hasattr(value, "numel") and hasattr(value, "dim"):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)
    elif hasattr(value, "data") and hasattr(value, "keys"):  # batches of transformers
        yield from tensors_in(dict(value))


def _number(value: Any) -> float | None:
    with suppress(Exception):
        number = float(value)
        return number if number - number == 0 else None  # neither infinite nor nan
    return None


def _wait_for_devices() -> None:
    """Wait until the devices have done what the host launched."""
    torch: Any = sys.modules.get("torch")
    with suppress(Exception):
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        if jax_is_used():
            from tb_perfadvisor.instrument.continuous.recorders import wait_for_jax

            wait_for_jax()


def _end_without(parent: int) -> None:
    """End this process if the command that measures it has gone."""
    try:
        os.kill(parent, 0)  # looks, and sends nothing
    except ProcessLookupError:
        os._exit(1)
    except OSError:
        return


def _version(module: str) -> str:
    return str(getattr(sys.modules.get(module), "__version__", ""))


def _accelerator() -> str:
    """The name of the accelerator in use; empty for none."""
    torch: Any = sys.modules.get("torch")
    with suppress(Exception):
        if torch is not None and torch.cuda.is_initialized():
            return str(torch.cuda.get_device_name())
        if jax_is_used():
            import jax

            device = jax.devices()[0]
            return "" if device.platform == "cpu" else str(device.device_kind)
    return ""


class Window:
    """Is told of each step, and answers what its end means.

    The window begins where the command says, so that all runs measure the same steps; later by
    whole blocks if this run is still warming up there. The first run chooses both.
    """

    def __init__(self, plan: Mapping[str, Any]) -> None:
        """Prepare.

        Args:
            plan: `blocks` and `window_s`: how many blocks, and how long they are together, about;
                `begin` and `block_steps`, or None for both to let this run choose.
        """
        self._blocks: int = plan["blocks"]
        self._window_ns = float(plan["window_s"]) * 1e9
        self.begin: int | None = plan["begin"]
        """The number of steps before the window; None until it is known."""
        self.block_steps: int | None = plan["block_steps"]
        self._is_open = self._is_closed = False
        self._steps = 0
        self._ends_ns: list[int] = []
        self._first_end_ns = 0

    def step_ended(self, now_ns: int) -> Moment:
        """A step ended."""
        self._steps += 1
        if self._is_closed:
            return "after"
        if self._is_open:
            assert self.begin is not None
            assert self.block_steps is not None
            blocks, inside = divmod(self._steps - self.begin, self.block_steps)
            if inside:
                return "inside"
            self._is_closed = blocks == self._blocks
            return "end" if self._is_closed else "block"
        self._first_end_ns = self._first_end_ns or now_ns
        self._ends_ns = [*self._ends_ns[-SETTLED:], now_ns]
        self._is_open = self._opens(now_ns)
        return "begin" if self._is_open else "warming up"

    def _opens(self, now_ns: int) -> bool:
        durations = [after - before for before, after in pairwise(self._ends_ns)]
        if len(durations) < SETTLED:
            return False
        usual_ns = statistics.median(durations)
        is_long = self._steps >= _FEWEST_STEPS or now_ns - self._first_end_ns >= _ENOUGH_NS
        if not is_long or not (has_settled(durations) or self._steps >= LATEST_START):
            return False
        if self.begin is None or self.block_steps is None:
            self.begin = self._steps
            steps = ceil(self._window_ns / max(usual_ns, 1) / self._blocks)
            self.block_steps = max(steps, _FEWEST_IN_BLOCK)
            return True
        while self.begin < self._steps:
            self.begin += self.block_steps
        return self.begin == self._steps
