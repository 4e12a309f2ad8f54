"""Where the program makes its loaders, models, optimizers and step loops, and with what."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, Final

from msgspec import structs

from tb_perfadvisor.instrument.step_hooks import StepPath, watch_making, when_imported
from tb_perfadvisor.instrument.user_code import loop_around, place_of, user_frames
from tb_perfadvisor.machine.facts import Made, Value, What

_MOST: Final = 64
"""Programs that make more parts of one kind make them in a loop."""
_TEXT: Final = 200

Describe = Callable[[Any], Mapping[str, Any]]


class _Part:
    """A part, described when a capture is written: its facts may change until then."""

    def __init__(self, made: Made, part: Any, describe: Describe) -> None:
        self._made = made
        self._part = weakref.ref(part) if part is not None else None
        self._describe = describe
        self._facts: Mapping[str, Value] = {}

    @property
    def living(self) -> Any:
        return self._part() if self._part is not None else None

    def describe(self) -> None:
        """Note the facts, if the part still exists."""
        part = self.living
        if part is not None:
            with suppress(Exception):
                self._facts = _plain(self._describe(part))

    def made(self) -> Made:
        self.describe()
        made = self._made
        return structs.replace(made, facts=self._facts) if self._facts else made


class Parts:
    """The parts that the program has made so far."""

    def __init__(self) -> None:
        self._parts: dict[What, list[_Part]] = {}
        self._loops: dict[tuple[str, int], _Part] = {}
        self.step_path = StepPath()

    def all(self) -> tuple[Made, ...]:
        """Every part, with what is known of it now."""
        return tuple(part.made() for parts in self._parts.values() for part in parts)

    def living(self, what: What) -> list[Any]:
        """The objects of one kind that exist."""
        found = (part.living for part in self._parts.get(what, ()))
        return [part for part in found if part is not None]

    def add(
        self, what: What, part: Any, frame: FrameType | None, describe: Describe = lambda part: {}
    ) -> _Part | None:
        """The program makes a part; `describe` is called when a capture is written."""
        known = self._parts.setdefault(what, [])
        caller = next(user_frames(frame), None)
        if caller is None or len(known) >= _MOST:
            return None
        added = _Part(_made(what, type(part).__name__, caller), part, describe)
        known.append(added)
        return added

    def add_step(self, name: str, frame: FrameType | None) -> None:
        """A step ends in a call on this stack: its loop is the first of those that are known.

        Where no loop is around it, the line is remembered, and is not called a loop.
        """
        self.step_path.add(frame)
        found = loop_around(frame)
        caller, line = found if found is not None else (next(user_frames(frame), None), 0)
        if caller is None:
            return
        place = (caller.f_code.co_filename, line or caller.f_lineno)
        part = self._loops.pop(place, None)
        if part is None and len(self._loops) < _MOST:
            facts = {} if found is not None else {"is_loop": False}
            made = structs.replace(_made("step loop", name, caller, line), facts=facts)
            part = _Part(made, None, lambda part: {})
        if part is not None:
            self._loops[place] = part
            self._parts["step loop"] = [*reversed(self._loops.values())]


def _made(what: What, name: str, frame: FrameType, line: int = 0) -> Made:
    path, at, function = place_of(frame)
    return Made(what, name, path, line or at, function)


def _plain(facts: Mapping[str, Any]) -> dict[str, Value]:
    """The facts that can be stored."""
    plain: dict[str, Value] = {}
    for key, value in facts.items():
        if isinstance(value, float) and value - value != 0:  # infinite or nan
            continue
        if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 1 << 53):
            plain[key] = value
        elif isinstance(value, str) and value:
            plain[key] = value[:_TEXT]
    return plain


# --- PyTorch --------------------------------------------------------------------------------------


def watch_loaders(parts: Parts, loaders: Any) -> None:
    """Remember each DataLoader that is made from now on."""

    def remember(loader: Any, frame: FrameType) -> None:
        part = parts.add("loader", loader, frame, _of_loader)
        if part is not None:
            # Iterators don't keep their loader, which may be gone when a capture is written.
            part.describe()

    watch_making(loaders, remember)


def watch_models(parts: Parts, modules: Any) -> None:
    """Remember each module that is made from now on and is no part of another."""

    def remember(module: Any, frame: FrameType) -> None:
        outside = _outside(module, frame, modules)
        if outside is not None:
            parts.add("model", module, outside, _of_model)

    watch_making(modules, remember)


def _outside(module: Any, frame: FrameType | None, modules: Any) -> FrameType | None:
    """The frame that makes a module; None if another module makes it as a part of itself."""
    outside = frame
    while frame is not None:
        if frame.f_code.co_name == "__init__" and frame.f_code.co_argcount:
            maker = frame.f_locals.get(frame.f_code.co_varnames[0])
            if maker is module:
                outside = frame.f_back
            elif issubclass(type(maker), modules):
                return None
        frame = frame.f_back
    return outside


def watch_optimizers(parts: Parts, optimizers: Any) -> None:
    """Remember each optimizer that is made from now on."""
    watch_making(optimizers, lambda optimizer, frame: add_optimizer(parts, optimizer, frame))


def watch_makers(parts: Parts) -> None:
    """Remember all that PyTorch makes, once it is imported; `perfadvisor run` does so itself."""
    if os.environ.get("PERFADVISOR_RUN"):
        return
    when_imported(
        {
            "torch.nn.modules.module": lambda module: watch_models(parts, module.Module),
            "torch.utils.data.dataloader": lambda module: watch_loaders(parts, module.DataLoader),
            "torch.optim.optimizer": lambda module: watch_optimizers(parts, module.Optimizer),
        }
    )


def add_optimizer(parts: Parts, optimizer: Any, frame: FrameType | None) -> None:
    """Remember an optimizer of PyTorch."""
    parts.add("optimizer", optimizer, frame, _of_optimizer)


def _of_loader(loader: Any) -> dict[str, Any]:
    context = loader.multiprocessing_context
    facts = {
        name: getattr(loader, name, None)
        for name in ("num_workers", "batch_size", "pin_memory", "drop_last", "prefetch_factor")
    }
    facts["persistent_workers"] = loader.persistent_workers
    facts["start_method"] = context.get_start_method() if context is not None else None
    facts["dataset"] = type(loader.dataset).__name__
    with suppress(Exception):
        facts["samples"] = len(loader.dataset)
    facts["dataset_bytes"] = _bytes_in_memory(loader.dataset)
    return facts


def _bytes_in_memory(dataset: Any) -> int | None:
    """The size of the arrays that a dataset holds itself; None if it holds none."""
    held = [*getattr(dataset, "__dict__", {}).values()]
    held += [each for value in held if isinstance(value, list | tuple) for each in value[:_MOST]]
    sizes = [getattr(each, "nbytes", None) for each in held]
    return sum(size for size in sizes if isinstance(size, int)) or None


def _of_model(model: Any) -> dict[str, Any]:
    modules = [*model.modules()]
    parameters = [*model.parameters()]
    kinds = [type(module).__name__ for module in modules]
    return {
        "modules": len(modules),
        "parameters": sum(each.numel() for each in parameters),
        "parameter_bytes": sum(each.numel() * each.element_size() for each in parameters),
        "convolutions": sum(kind.startswith("Conv") for kind in kinds),
        "embeddings": sum(kind.startswith("Embedding") for kind in kinds),
        "dtype": str(parameters[0].dtype).removeprefix("torch.") if parameters else None,
        "channels_last": _is_channels_last(parameters),
        "is_training": model.training,
    }


def _is_channels_last(parameters: list[Any]) -> bool | None:
    """Whether filters are stored with channels last; None without filters of which that is seen."""
    last = sys.modules["torch"].channels_last
    filters = [each for each in parameters if each.dim() == 4 and min(each.shape[1:]) > 1]
    return all(each.is_contiguous(memory_format=last) for each in filters) if filters else None


def _of_optimizer(optimizer: Any) -> dict[str, Any]:
    group = optimizer.param_groups[0]
    facts = {key: value for key, value in group.items() if key != "params"}
    return {
        **facts,
        "groups": len(optimizer.param_groups),
        "tensors": sum(len(each["params"]) for each in optimizer.param_groups),
    }
