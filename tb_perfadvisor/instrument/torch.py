"""Labels the modules of a PyTorch model, and records a profile with recommended options.

    from tb_perfadvisor.instrument.torch import profile

    with profile("runs/baseline", model=model) as profiler:
        for batch in loader:
            train_step(batch)
            profiler.step()

Recorded stacks also tell which module an operator belongs to, but slow the host by up to half. A
label costs one range per call of a module while a profiler runs, and almost nothing otherwise. In
the forward pass a label is a range around the module's operators. Autograd's sequence number links
each backward operator to its forward operator, and so to the label. In the backward pass, marks
show where each module begins and ends.

The marks are hooks of autograd nodes. `register_full_backward_hook` would add nodes around every
module, which takes time in every step and forbids in-place operators on the module's outputs.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.instrument.capture_facts import ProfileFacts
from tb_perfadvisor.instrument.continuous.profiler import ContinuousProfiler, is_switched_off
from tb_perfadvisor.instrument.continuous.recorders import TorchRecorder
from tb_perfadvisor.instrument.continuous.settings import make_profiler
from tb_perfadvisor.instrument.examination.examiner import Examiner
from tb_perfadvisor.instrument.loader_workers import time_workers as time_workers
from tb_perfadvisor.instrument.measure import tensors_in
from tb_perfadvisor.instrument.parts import Parts, watch_makers
from tb_perfadvisor.instrument.ranks import rank_of_torch, worker_name_of_torch
from tb_perfadvisor.instrument.trace_files import write_trace

if TYPE_CHECKING:
    import torch.profiler
    from torch import Tensor, nn

# tb_perfadvisor.signals.core.origins looks for these prefixes.
_FORWARD = "nn.Module: "
_BACKWARD_BEGINS = "nn.Module backward: "
_BACKWARD_ENDS = "nn.Module backward done: "

# The attribute in which each wrapper keeps the wrapped module. Labels leave it out of the names.
_WRAPPED_AS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}

_PARTS = Parts()
"""Where the program makes its parts: known of those that it makes after this was imported."""
watch_makers(_PARTS)


class Annotation:
    """The labels on a model's modules; as a context manager, removes them at the end."""

    def __init__(self, models: Iterable[_LabeledModel]) -> None:
        self._models = list(models)

    def remove(self) -> None:
        """Remove all labels. Calling it again has no effect."""
        while self._models:
            self._models.pop().remove()

    def __enter__(self) -> Annotation:
        """The annotation itself; its labels are already active."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the labels."""
        self.remove()


def annotate(model: nn.Module) -> Annotation:
    """Label every named module of a model in all profiles recorded from now on.

    A label is a module's full name and class, such as `blocks.3.attn (Attention)`, which tells
    instances of a class apart. The model may already be wrapped for data parallelism, sharding,
    checkpointing or compilation; the labels leave the wrappers' attribute names out.

    Code compiled by `torch.compile` or TorchScript runs as one unit, so it gets a single label and
    a warning. If a model is compiled after `annotate`, its modules have no labels.

    While no profiler runs, only the model itself has a hook. When the model is called under a
    profiler, the hook labels the modules, and removes the labels later. Modules that the program
    calls directly instead of through the model need an `annotate` call of their own.

    Args:
        model: The model. Only its hooks change.

    Returns:
        The annotation, which can remove the labels.
    """
    compiled: list[str] = []
    models = [
        _LabeledModel(labels) for labels in _model_labels(model, "", set(), compiled) if labels
    ]
    if compiled:
        warnings.warn(
            f"{', '.join(compiled)}: compiled code runs as one unit, so the modules inside have no"
            " labels. To see them, profile the model before compiling it.",
            stacklevel=2,
        )
    return Annotation(models)


@contextmanager
def profile(
    logdir: str | os.PathLike[str],
    *,
    model: nn.Module | None = None,
    wait: int = 2,
    warmup: int = 3,
    active: int = 6,
    repeat: int = 1,
    record_shapes: bool = True,
    profile_memory: bool = True,
    with_stack: bool = False,
    worker_name: str | None = None,
    **options: Any,
) -> Iterator[torch.profiler.profile]:
    """Record some steps after warm-up, and write the profile where TensorBoard finds it.

    Call `step()` on the yielded profiler at the end of each training step. All ranks of a
    distributed program may write to the same directory; the file names contain the rank.

    Args:
        logdir: TensorBoard's log directory, or the directory of a run in it.
        model: A model whose modules to label meanwhile; see `annotate`.
        wait: Steps to skip first: compilation, autotuning, growing memory pools.
        warmup: Steps in which the profiler runs but keeps nothing.
        active: Steps to record.
        repeat: How many times to repeat this cycle; 0 repeats it until the program ends.
        record_shapes: Record shapes and types of operator inputs, which advice on precision,
            shapes and kernel efficiency needs.
        profile_memory: Record allocations, which advice on memory needs.
        with_stack: Record Python frames: gives source lines for operators, but slows the host.
        worker_name: Name of the file; by default the rank, or host and process.
        **options: Other options of `torch.profiler.profile`.

    Raises:
        UsageError: If the log directory is a URL, which PyTorch cannot write to.
    """
    import torch.profiler

    directory = os.fspath(logdir)
    if "://" in directory:
        raise UsageError(
            "PyTorch can only write profiles to local directories.",
            where=directory,
            hint="Record to a local directory and copy the profile afterwards.",
        )
    written: list[str] = []
    worker = worker_name or worker_name_of_torch()

    facts = None if is_switched_off() else ProfileFacts(_PARTS, is_rich=record_shapes, steps=active)

    def write(recorder: torch.profiler.profile) -> None:
        path = write_trace(recorder, Path(directory).expanduser(), worker)
        written.append(directory)
        if facts is not None:
            facts.written(path)

    with ExitStack() as stack:
        if facts is not None:
            stack.callback(facts.close)
        if model is not None:
            stack.enter_context(annotate(model))
        profiler = stack.enter_context(
            torch.profiler.profile(
                schedule=torch.profiler.schedule(
                    wait=wait, warmup=warmup, active=active, repeat=repeat
                ),
                on_trace_ready=write,
                record_shapes=record_shapes,
                profile_memory=profile_memory,
                with_stack=with_stack,
                **options,
            )
        )
        if facts is not None:
            _tell_steps(profiler, facts, period=wait + warmup + active, first=wait)
        yield profiler
    if not written:
        warnings.warn(
            f"no profile was written to {directory}: the program ran {profiler.step_num} steps, but"
            f" recording begins after {wait + warmup}. Call step() on the profiler at the end of"
            " each step, or lower wait and warmup.",
            stacklevel=3,
        )


def continuous(
    logdir: str | os.PathLike[str], *, model: nn.Module | None = None, **settings: Any
) -> ContinuousProfiler:
    """Record a few steps now and then, for as long as the program trains.

    Call `step()` on the result at the end of each training step. Any loop of PyTorch will do: your
    own, Accelerate's, torchtitan's. Between recordings, a step costs microseconds.

    Args:
        logdir: A run's directory below TensorBoard's log directory.
        model: A model whose modules to label in rich recordings; see `annotate`.
        **settings: `every`, `steps`, `first`, `slower_than`, `rich_every`, `ranks`, `keep_last`,
            `keep_slowest` and `advise` of `instrument.continuous.settings.make_profiler`.

    Raises:
        UsageError: If the settings contradict each other, or the directory is a URL.
    """
    label = None if model is None else partial(annotate, model)
    profiler = make_profiler(logdir, TorchRecorder(label), rank_of_torch(), **settings)
    profiler.parts = _PARTS
    profiler.samples.step_path = _PARTS.step_path
    profiler.examiner = Examiner()
    return profiler


def trainer_callback(base: Any, profiler: Any, step: str, others: Iterable[str]) -> Any:
    """A trainer's callback whose hook `step` ends a step, and `others` what is part of none."""
    calls = {step: profiler.step, "on_train_end": profiler.close}
    calls |= dict.fromkeys(others, profiler.skip)
    hooks = {name: lambda *_, call=call, **__: call() for name, call in calls.items()}
    return type("Continuous", (base,), {**hooks, "profiler": profiler})()


def _tell_steps(profiler: Any, facts: ProfileFacts, *, period: int, first: int) -> None:
    """Tell of each step of a profiler, and of the first of each cycle that it sees."""
    step = profiler.step
    if not first:
        facts.began()

    @wraps(step)
    def told() -> None:
        # The step that ends may write a profile, which then has it.
        with suppress(Exception):
            facts.step()
        step()
        if profiler.step_num % period == first:
            facts.began()

    profiler.step = told


def _model_labels(
    module: nn.Module, path: str, seen: set[int], compiled: list[str]
) -> Iterator[list[_Label]]:
    """The labels of the model, or of each model in a container that is not callable itself."""
    if not _is_callable(module):
        for name, child in module.named_children():
            yield from _model_labels(child, f"{path}.{name}" if path else name, seen, compiled)
    else:
        yield list(_labels(module, path, seen, compiled))


def _labels(module: nn.Module, path: str, seen: set[int], compiled: list[str]) -> Iterator[_Label]:
    """Labels of a module and its descendants; a shared module gets its first name."""
    if id(module) in seen:
        return
    seen.add(id(module))
    kind = _class_name(type(module))
    name = f"{path} ({kind})" if path else kind
    if _is_callable(module):
        yield _Label(module, name)
    if _is_compiled(module):
        compiled.append(name)
        return
    for child_name, child in module.named_children():
        inner = f"{path}.{child_name}" if path else child_name
        is_wrapped = _WRAPPED_AS.get(kind) == child_name
        yield from _labels(child, path if is_wrapped else inner, seen, compiled)


def _class_name(kind: type) -> str:
    """The name of the user's class; `fully_shard` replaces the class by a derived one."""
    bases = [base.__name__ for base in kind.__bases__]
    return bases[-1] if bases[0] == "FSDPModule" else kind.__name__


def _is_callable(module: nn.Module) -> bool:
    """Whether a module computes something, unlike lists and dictionaries of modules."""
    import torch

    return type(module).forward is not torch.nn.Module.forward or _is_compiled(module)


def _is_compiled(module: nn.Module) -> bool:
    import torch

    has_own_code = getattr(module, "_compiled_call_impl", None) is not None
    is_wrapper = type(module).__name__ == "OptimizedModule"
    return has_own_code or is_wrapper or isinstance(module, torch.jit.ScriptModule)


class _LabeledModel:
    """A model that labels its modules when it is called under a profiler."""

    def __init__(self, labels: list[_Label]) -> None:
        import torch

        self._is_compiling = torch.compiler.is_compiling
        self._is_profiling = torch.autograd._profiler_enabled
        self._is_labeled = False
        self._lock = threading.Lock()  # replicas call the model from several threads
        self._handles: list[Any] = []
        self._label, *self._inner_labels = labels
        self._model_handles = self._label.attach(self._before)

    def remove(self) -> None:
        self._switch(on=False)
        for handle in self._model_handles:
            handle.remove()

    def _before(self, module: nn.Module, inputs: Any) -> None:
        if self._is_compiling():
            return
        is_profiling = self._is_profiling()
        if is_profiling != self._is_labeled:
            self._switch(on=is_profiling)
        if is_profiling:
            self._label.before(module, inputs)

    def _switch(self, *, on: bool) -> None:
        with self._lock:
            while self._handles:
                self._handles.pop().remove()
            if on:
                self._handles += [
                    h for label in self._inner_labels for h in label.attach(label.before)
                ]
            self._is_labeled = on


class _Label:
    """The label of one module, and its open ranges in each thread."""

    def __init__(self, module: nn.Module, name: str) -> None:
        import torch
        from torch.autograd import profiler

        # The compiler evaluates this check to skip the hooks in compiled code.
        self._is_compiling = torch.compiler.is_compiling
        self._module = module
        self._forward = f"{_FORWARD}{name}"
        self._begins, self._ends = f"{_BACKWARD_BEGINS}{name}", f"{_BACKWARD_ENDS}{name}"
        self._open = threading.local()
        self._range = profiler.record_function

    def attach(self, before: Callable[[nn.Module, Any], None]) -> tuple[Any, Any]:
        """Add hooks to the module and return their handles."""
        return (
            self._module.register_forward_pre_hook(before),
            # always_call: the range must end even if the forward pass raises.
            self._module.register_forward_hook(self._after, always_call=True),
        )

    def before(self, module: nn.Module, inputs: Any) -> None:
        """Begin the range of a call."""
        if self._is_compiling():
            return
        opened = self._range(self._forward)
        opened.__enter__()
        # A stack, because a module may call itself.
        self._open.__dict__.setdefault("ranges", []).append(opened)

    def _after(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._is_compiling():
            return
        ranges = self._open.__dict__.get("ranges")
        if not ranges:
            return
        ranges.pop().__exit__(None, None, None)
        for tensor in tensors_in(output):
            self._mark(tensor, self._begins)
        for tensor in tensors_in(inputs):
            self._mark(tensor, self._ends)

    def _mark(self, tensor: Tensor, name: str) -> None:
        """Mark the time when autograd runs the node that produced a tensor."""
        node = getattr(tensor, "grad_fn", None)  # not all that looks like a tensor has one
        if node is None:
            return
        range_of = self._range

        def mark(gradients: Any) -> None:
            with range_of(name):
                pass

        node.register_prehook(mark)
