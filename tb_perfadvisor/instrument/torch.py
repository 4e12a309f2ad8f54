"""Labels on a PyTorch model's modules, and a profile with options known to be good.

    from tb_perfadvisor.instrument.torch import profile

    with profile("runs/baseline", model=model) as profiler:
        for batch in loader:
            train_step(batch)
            profiler.step()

Stacks tell which module an operator belongs to, but recording them slows the host by up to half.
Labels cost a range for each call of a module while a profiler runs, and nothing to speak of when
none does. In the forward pass a label is a range around the module's operators; a backward
operator is joined to its forward operator, and so to the label, by autograd's sequence number.
In the backward pass marks show where each module's part begins and ends.

The marks hang on autograd nodes, not on `register_full_backward_hook`: that one puts nodes of its
own around every module, which costs time in every step and forbids in-place operators on a
module's outputs.
"""

from __future__ import annotations

import os
import socket
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tb_perfadvisor.errors import UsageError

if TYPE_CHECKING:
    import torch.profiler
    from torch import Tensor, nn

# What tb_perfadvisor.signals.host.modules looks for.
_FORWARD = "nn.Module: "
_BACKWARD_BEGINS = "nn.Module backward: "
_BACKWARD_ENDS = "nn.Module backward done: "

# Wrappers name what they wrap; in the names of its modules they would only be noise.
_WRAPPED_AS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}


class Annotation:
    """Labels on a model's modules until they are removed; a context manager that removes them."""

    def __init__(self, models: Iterable[_Labeled]) -> None:
        """Take what was labeled."""
        self._models = list(models)

    def remove(self) -> None:
        """Take all labels off. A second time does nothing."""
        while self._models:
            self._models.pop().remove()

    def __enter__(self) -> Annotation:
        """Itself; it labels since it was made."""
        return self

    def __exit__(self, *_: object) -> None:
        """Take the labels off."""
        self.remove()


def annotate(model: nn.Module) -> Annotation:
    """Label every named module of a model in the profiles that are recorded from now on.

    A label is a module's full name and its class, `blocks.3.attn (Attention)`: it tells instances
    of one class apart. Wrappers for data parallelism, sharding, checkpointing and compilation may
    be on the model already, and their own part of the names is left out.

    What `torch.compile` or TorchScript has compiled runs as one piece: it has one label, and a
    warning says so. A model that is compiled after it was annotated has no labels inside.

    While no profiler runs, only the model itself has a hook, which puts the labels on its modules
    when it is called under a profiler, and takes them off again. So modules that the program
    calls by themselves, and not through the model, are labeled only if they are annotated too.

    Args:
        model: The model. Its hooks change, nothing else.

    Returns:
        What takes the labels off again.
    """
    compiled: list[str] = []
    found = [_Labeled(labels) for labels in _callables(model, "", set(), compiled) if labels]
    if compiled:
        warnings.warn(
            f"{', '.join(compiled)}: compiled code runs as one piece, so the modules inside have"
            " no labels. Profile the model before it is compiled to see them.",
            stacklevel=2,
        )
    return Annotation(found)


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
    """Record some steps, once the program has warmed up, where TensorBoard finds them.

    Call `step()` on what this yields at the end of each training step. All ranks of a distributed
    program may write to the same directory: the files are named by rank.

    Args:
        logdir: TensorBoard's log directory, or one of a run in it.
        model: Label its modules while this lasts; see `annotate`.
        wait: Steps left alone: compilation, autotuning, growing memory pools.
        warmup: Steps in which the profiler runs and nothing is kept.
        active: Steps that are kept.
        repeat: How often to do so; 0 for as long as the program runs.
        record_shapes: Shapes and types of the operators' inputs, without which there is no
            advice on precision, shapes and kernels' efficiency.
        profile_memory: Allocations, for advice on memory.
        with_stack: Python frames: source lines for every operator, and a slower host.
        worker_name: In place of the rank, or of host and process.
        **options: Any other of `torch.profiler.profile`.

    Raises:
        UsageError: When the log directory is a URL, which PyTorch cannot write to.
    """
    import torch.profiler

    directory = os.fspath(logdir)
    if "://" in directory:
        raise UsageError(
            "PyTorch writes profiles to local directories only.",
            where=directory,
            hint="Record to a local directory and copy it there.",
        )
    written: list[str] = []
    write = torch.profiler.tensorboard_trace_handler(
        str(Path(directory).expanduser()), worker_name or _worker_name(), use_gzip=True
    )

    def write_trace(recorder: torch.profiler.profile) -> None:
        write(recorder)
        written.append(directory)

    with ExitStack() as stack:
        if model is not None:
            stack.enter_context(annotate(model))
        profiler = stack.enter_context(
            torch.profiler.profile(
                schedule=torch.profiler.schedule(
                    wait=wait, warmup=warmup, active=active, repeat=repeat
                ),
                on_trace_ready=write_trace,
                record_shapes=record_shapes,
                profile_memory=profile_memory,
                with_stack=with_stack,
                **options,
            )
        )
        yield profiler
    if not written:
        warnings.warn(
            f"no profile was written to {directory}: the program took {profiler.step_num} steps,"
            f" and recording begins after {wait + warmup}. Call step() on the profiler at the end"
            " of each step, or lower wait and warmup.",
            stacklevel=3,
        )


def _worker_name() -> str:
    """`rank3` of several processes, `host_4711` of a single one."""
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return f"rank{torch.distributed.get_rank()}"
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:
        return f"rank{os.environ['RANK']}"
    return f"{socket.gethostname()}_{os.getpid()}"


def _callables(
    module: nn.Module, path: str, seen: set[int], compiled: list[str]
) -> Iterator[list[_Label]]:
    """The labels of each model that can be called: of one, or of those in a mere container."""
    if not _is_callable(module):
        for name, child in module.named_children():
            yield from _callables(child, f"{path}.{name}" if path else name, seen, compiled)
    else:
        yield list(_labels(module, path, seen, compiled))


def _labels(module: nn.Module, path: str, seen: set[int], compiled: list[str]) -> Iterator[_Label]:
    """A label for a module and each of those in it; a shared module has its first name."""
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
    """The class that the user wrote; `fully_shard` puts one made of it in its place."""
    bases = [base.__name__ for base in kind.__bases__]
    return bases[-1] if bases[0] == "FSDPModule" else kind.__name__


def _is_callable(module: nn.Module) -> bool:
    """Whether it computes something itself, other than lists and dictionaries of modules."""
    import torch

    return type(module).forward is not torch.nn.Module.forward or _is_compiled(module)


def _is_compiled(module: nn.Module) -> bool:
    import torch

    has_own_code = getattr(module, "_compiled_call_impl", None) is not None
    is_wrapper = type(module).__name__ == "OptimizedModule"
    return has_own_code or is_wrapper or isinstance(module, torch.jit.ScriptModule)


class _Labeled:
    """A model that labels its modules when it is called under a profiler."""

    def __init__(self, labels: list[_Label]) -> None:
        import torch

        self._is_compiling = torch.compiler.is_compiling
        self._is_profiling = torch.autograd._profiler_enabled
        self._is_labeled = False
        self._switching = threading.Lock()  # replicas call it from several threads
        self._handles: list[Any] = []
        self._own, *self._inner = labels
        self._own_handles = self._own.attach(self._before)

    def remove(self) -> None:
        self._switch(on=False)
        for handle in self._own_handles:
            handle.remove()

    def _before(self, module: nn.Module, inputs: Any) -> None:
        if self._is_compiling():
            return
        is_profiling = self._is_profiling()
        if is_profiling != self._is_labeled:
            self._switch(on=is_profiling)
        if is_profiling:
            self._own.before(module, inputs)

    def _switch(self, *, on: bool) -> None:
        with self._switching:
            while self._handles:
                self._handles.pop().remove()
            if on:
                self._handles += [h for label in self._inner for h in label.attach(label.before)]
            self._is_labeled = on


class _Label:
    """One module's label, and the ranges that are open under it, by thread."""

    def __init__(self, module: nn.Module, name: str) -> None:
        import torch
        from torch.autograd import profiler

        # Compiled code has no hooks: the compiler sees this, and leaves the rest out.
        self._is_compiling = torch.compiler.is_compiling
        self._module = module
        self._forward = f"{_FORWARD}{name}"
        self._begins, self._ends = f"{_BACKWARD_BEGINS}{name}", f"{_BACKWARD_ENDS}{name}"
        self._open = threading.local()
        self._range = profiler.record_function

    def attach(self, before: Callable[[nn.Module, Any], None]) -> tuple[Any, Any]:
        """Hook into the module; returns the hooks' handles."""
        return (
            self._module.register_forward_pre_hook(before),
            # Of a forward pass that raises, too: its range must end.
            self._module.register_forward_hook(self._after, always_call=True),
        )

    def before(self, module: nn.Module, inputs: Any) -> None:
        """Open the range of a call."""
        if self._is_compiling():
            return
        opened = self._range(self._forward)
        opened.__enter__()
        # A module may call itself.
        self._open.__dict__.setdefault("ranges", []).append(opened)

    def _after(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._is_compiling():
            return
        ranges = self._open.__dict__.get("ranges")
        if not ranges:
            return
        ranges.pop().__exit__(None, None, None)
        for tensor in _tensors(output):
            self._mark(tensor, self._begins)
        for tensor in _tensors(inputs):
            self._mark(tensor, self._ends)

    def _mark(self, tensor: Tensor, name: str) -> None:
        """Leave a mark in the profile when autograd comes to the node that made a tensor."""
        node = tensor.grad_fn
        if node is None:
            return
        range_of = self._range

        def mark(gradients: Any) -> None:
            with range_of(name):
                pass

        node.register_prehook(mark)


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in what a module takes or returns."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
