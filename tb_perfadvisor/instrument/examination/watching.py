"""Sees each operator of a step, with what matters about its inputs and outputs."""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import torch
import torch._dynamo  # which the first operator under a mode would import, in a step
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tag, Tensor
from torch.nn.modules import module
from torch.utils._python_dispatch import TorchDispatchMode

from tb_perfadvisor.instrument.examination.calls import (
    LOSSES,
    MASKING,
    PRODUCTS,
    Call,
    Operand,
    Place,
)
from tb_perfadvisor.instrument.examination.clocks import DeviceClock, HostClock, thread_faults
from tb_perfadvisor.instrument.examination.provenance import Provenance, Source, checksum, row_sums
from tb_perfadvisor.instrument.user_code import is_user_file, place_of
from tb_perfadvisor.machine.facts import FailedLook, Look

MOST_CALLS: Final = 200_000
"""Of all steps that are looked at. What follows is not seen."""
_MOST_READ_BYTES: Final = 4 << 30
_MOST_READ_BYTES_ON_DEVICE: Final = 64 << 30
"""Checksums run at about the speed of memory: reading so much takes a second or less."""
_MOST_TOKENS: Final = 1 << 20
_LEAST_SAMPLED: Final = dict.fromkeys(PRODUCTS, 10_000) | dict.fromkeys(MASKING, 16)
"""Smaller inputs are not worth looking for zeros: their products take microseconds."""
_SAMPLE: Final = 4096
"""Elements that tell a share to about a hundredth."""
_OPTIMIZERS: Final = tuple(
    f"{os.sep}{Path(*folders)}{os.sep}"
    for folders in (
        ("torch", "optim"),
        ("keras", "src", "optimizers"),
        ("keras", "src", "backend", "torch", "optimizers"),
    )
)
_LOADERS: Final = f"{os.sep}torch{os.sep}utils{os.sep}data{os.sep}"
_RECURRENT: Final = str(Path("torch", "nn", "modules", "rnn.py"))
_CHECKPOINTS: Final = str(Path("torch", "utils", "checkpoint.py"))
_NORMALIZING: Final = frozenset({"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"})
"""In training, they write to running statistics without telling, and do not read them."""
_CALLING_NOTHING: Final = frozenset({"AddBackward0", "CloneBackward0", "AliasBackward0"})
"""Nodes of the backward pass that hand on a gradient as it is, so that no operator shows them."""

_T = TypeVar("_T")


class Watching(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
    """While it is on the stack of modes, remembers every operator of its thread."""

    def __init__(self, *, has_requests: bool = False) -> None:
        """Nothing is seen yet."""
        super().__init__()
        self.calls: list[Call] = []
        self.is_on = True
        self.guards = 0
        """Guards of `torch.inference_mode` that the program has entered since."""
        self.failed: dict[Look, FailedLook] = {}
        """What cannot be looked for, and why. The rest goes on."""
        self.provenance = Provenance(has_requests=has_requests)
        self._thread = threading.get_ident()
        self._depth = 0
        """How many modules are being called, one inside another."""
        self._model_calls = 0
        """How many calls no other module has made."""
        self.models_called_at: dict[int, Place | None] = {}
        """The lines that make these calls, by number."""
        self.inputs: set[int] = set()
        """The storages of what they are given."""
        self._chance = np.random.default_rng(0)
        self._has_device = torch.cuda.is_initialized()
        self._clock = DeviceClock() if self._has_device else HostClock()
        self._bytes_left = _MOST_READ_BYTES_ON_DEVICE if self._has_device else _MOST_READ_BYTES

    def __enter__(self) -> Any:
        """See operators, and calls of modules, from now on."""
        self._hooks = (
            module.register_module_forward_pre_hook(self._begin_module),
            module.register_module_forward_hook(self._end_module, always_call=True),
        )
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        """See no more."""
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operator, and remember it."""
        given = kwargs or {}
        if not self.is_on or len(self.calls) >= MOST_CALLS or func.namespace == "profiler":
            return func(*args, **given)
        if self._has_device and torch.cuda.is_current_stream_capturing():
            # A graph that is captured must not wait for anything.
            self._stop("the program captured a CUDA graph")
            return func(*args, **given)
        seen = None
        try:
            seen = self._before(func, args, given)
            self._clock.begin()
        except Exception as error:  # the program must run as without it
            self._stop(error)
        result = func(*args, **given)
        if self.is_on and seen is not None:
            try:
                self._after(seen, result)
            except Exception as error:
                self._stop(error)
        return result

    def attempt(self, look: Look, find: Callable[[], _T], otherwise: _T) -> _T:
        """What is found for a look; if it fails, other looks go on without it."""
        if look not in self.failed:
            try:
                return find()
            except Exception as error:
                self.failed[look] = FailedLook.of(look, error)
        return otherwise

    def _begin_module(self, _: Any, given: Any) -> None:
        if threading.get_ident() == self._thread:
            if not self._depth:
                self.inputs |= set(map(self.provenance.storage, _tensors(given)))
                self._model_calls += 1
                self.models_called_at[self._model_calls] = _place(sys._getframe(1))[0]
            self._depth += 1

    def _end_module(self, *_: Any) -> None:
        if threading.get_ident() == self._thread:
            self._depth = max(self._depth - 1, 0)  # it may have begun before

    def _stop(self, why: Exception | str) -> None:
        self.is_on = False
        self.failed["operators"] = FailedLook.of("operators", why)

    def _before(self, func: Any, args: Any, kwargs: Any) -> _Begun:
        operator = _operator(func)
        node = torch._C._current_autograd_node()
        place, kind, in_layer = _place(sys._getframe(2))
        tensors = [*_tensors(args), *_tensors(tuple(kwargs.values()))]
        storages = [self.provenance.storage(each) for each in tensors]
        # A backward pass that tracks gradients is computed with, like a forward pass.
        is_forward = kind == "forward" and (node is None or torch.is_grad_enabled())
        reads = is_forward and not operator.is_view
        leaf: int | None = None
        leads_to: tuple[tuple[str, int], ...] = ()
        made = torch._C._autograd._get_sequence_nr() - 1
        if node is not None:
            kind = "backward"
            variable = getattr(node, "variable", None)
            leaf = self.provenance.storage(variable) if variable is not None else None
            leads_to = () if leaf is not None else self._next(node)
        name = operator.name
        facts = {
            "name": name,
            "place": place,
            "inputs": tuple(
                self._operand(tensor, storage, reads, name)
                for tensor, storage in zip(tensors, storages, strict=True)
            ),
            "writes": frozenset(map(self.provenance.storage, operator.written(args, kwargs))),
            "numbers": tuple(each for each in args if not any(True for _ in _tensors((each,)))),
            "kind": kind,
            "tracks_gradients": torch.is_grad_enabled(),
            "is_view": operator.is_view,
            "is_random": operator.is_random(args, kwargs),
            "sequence": made if node is None else _number(node),
            "made": made,
            "leads_to": leads_to,
            "leaf": leaf,
            "tokens": self.attempt("padding", lambda: _tokens(name, tensors), None),
            "in_recurrent_layer": in_layer,
            "hands_out": name == "detach" and not self._is_saved(tensors[0], storages[0]),
            "is_recomputed": node is not None and reads and _is_recomputed(sys._getframe(2)),
            "is_pointwise": operator.is_pointwise,
            "model_call": self._model_calls if self._depth else 0,
            "counted": self.attempt("unread results", lambda: _counted(name, args), None),
        }
        sources: tuple[Source, ...] = ()
        statistics = args[3:5] if name in _NORMALIZING and args[5] else ()
        read = len(tensors) - sum(each is not None for each in statistics)
        if not operator.is_view:
            sources = self.attempt(
                "repeated results",
                lambda: tuple(map(self.provenance.source, tensors[:read], storages)),
                sources,
            )
        on_device = any(each.is_cuda for each in tensors)
        facts["faults"] = thread_faults()
        return _Begun(facts, (func, _form((args, kwargs))), sources, reads, on_device)

    def _after(self, begun: _Begun, result: Any) -> None:
        took, facts, results = self._clock.end(), begun.facts, [*_tensors((result,))]
        # An operator may also read new pages of a file.
        most_faults = sum(each.nbytes for each in results) // mmap.PAGESIZE
        facts["faults"] = min(thread_faults() - facts["faults"], most_faults)
        tracks = facts["tracks_gradients"] and any(each.has_gradient for each in facts["inputs"])
        outputs = tuple(
            Operand(
                self.provenance.storage(each),
                tuple(each.shape),
                tracks and (each.is_floating_point() or each.is_complex()),
            )
            for each in results
        )
        source, total, rows = _UNKNOWN, None, None
        if not facts["is_view"]:
            # A result in the memory of an input is that input.
            read = {each.storage for each in facts["inputs"]}
            new = [each.storage for each in outputs if each.storage not in read]
            source = self.attempt(
                "repeated results",
                lambda: self.provenance.made(
                    begun.operator,
                    begun.sources,
                    (*sorted(facts["writes"]), *new),
                    is_random=facts["is_random"],
                ),
                _UNKNOWN,
            )
            if begun.reads and new and not (facts["writes"] or facts["is_random"]):
                total = self.attempt("repeated results", lambda: self._checksum(results), None)
                if begun.sources and not facts["tracks_gradients"]:
                    rows = self.attempt("repeated results", lambda: row_sums(results[0]), None)
        on_device = begun.on_device or any(each.is_cuda for each in results)
        self.calls.append(
            Call(
                ns=took.host_ns,
                device_ns=took.device_ns if on_device else 0,
                outputs=outputs,
                content=source.number,
                origins=source.origins,
                checksum=total,
                rows=rows,
                **facts,
            )
        )

    def _checksum(self, results: Sequence[Tensor]) -> int | None:
        self._bytes_left -= sum(each.numel() * each.element_size() for each in results)
        if self._bytes_left < 0 or not results:
            return None
        sums = [checksum(each) for each in results]
        return None if None in sums else hash(tuple(sums))

    def _operand(self, tensor: Tensor, storage: int, reads: bool, name: str) -> Operand:
        zeros = None
        least = _LEAST_SAMPLED.get(name)
        is_sampled = reads and least is not None and tensor.numel() >= least
        if is_sampled and not tensor.requires_grad and tensor.layout is torch.strided:
            zeros = self.attempt("zeros", lambda: self._share_of_zeros(tensor), None)
        begins_at = tensor.storage_offset() if tensor.layout is torch.strided else 0
        return Operand(storage, tuple(tensor.shape), tensor.requires_grad, zeros, begins_at)

    def _is_saved(self, tensor: Tensor, storage: int) -> bool:
        """Whether `detach` is autograd's, which keeps a result for the backward pass.

        It does so as soon as there is one, and once.
        """
        for call in reversed(self.calls):
            if call.name != "detach":
                is_result = any(each.storage == storage for each in call.outputs)
                return is_result and any(
                    name.startswith(("_saved_result", "_saved_output"))
                    for name in dir(tensor.grad_fn)
                )
            if call.inputs[0].storage == storage:
                return False
        return False

    def _share_of_zeros(self, tensor: Tensor) -> float:
        places = [self._chance.integers(0, size, _SAMPLE) for size in tensor.shape]
        drawn = tensor.detach()[tuple(torch.from_numpy(p).to(tensor.device) for p in places)]
        return float((drawn == 0).double().mean())

    def _next(self, node: Any) -> tuple[tuple[str, int], ...]:
        """The nodes and parameters that a node of the backward pass hands gradients on to."""
        found: list[tuple[str, int]] = []
        for following, _ in node.next_functions:
            variable = getattr(following, "variable", None)
            if variable is not None:
                found.append(("leaf", self.provenance.storage(variable)))
            elif following is not None and following.name() in _CALLING_NOTHING:
                found += self._next(following)
            elif following is not None:
                found.append(("node", _number(following)))
        return tuple(dict.fromkeys(found))


class _Begun(NamedTuple):
    """A call before it returns."""

    facts: dict[str, Any]
    operator: tuple[object, object]
    sources: tuple[Source, ...]
    reads: bool
    on_device: bool


_UNKNOWN: Final = Source(0, None)


class _Operator(Struct, frozen=True):
    """What an operator tells of itself and of its arguments."""

    name: str
    is_view: bool
    is_pointwise: bool
    names: tuple[str, ...]
    """Of its arguments."""
    writes: frozenset[str]
    is_seeded: bool

    def written(self, args: Any, kwargs: Any) -> list[Tensor]:
        """The tensors that it changes."""
        if not self.writes:
            return []
        given = (*zip(self.names, args, strict=False), *kwargs.items())
        return [*_tensors(tuple(value for name, value in given if name in self.writes))]

    def is_random(self, args: Any, kwargs: Any) -> bool:
        """Whether it draws random numbers. Attention does if it drops some of them."""
        if not self.is_seeded or "dropout_p" not in self.names:
            return self.is_seeded
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        return bool(given.get("dropout_p"))


@cache
def _operator(func: Any) -> _Operator:
    name = func.overloadpacket.__name__
    arguments = func._schema.arguments
    return _Operator(
        name=name if func.namespace == "aten" else f"{func.namespace}::{name}",
        is_view=bool(func.is_view),
        is_pointwise=Tag.pointwise in func.tags,
        names=tuple(each.name for each in arguments),
        writes=frozenset(e.name for e in arguments if e.alias_info and e.alias_info.is_write),
        is_seeded=Tag.nondeterministic_seeded in func.tags,
    )


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _form(value: Any) -> object:
    """Arguments as text, with the places of tensors."""
    if isinstance(value, Tensor):
        return "tensor"
    if isinstance(value, list | tuple):
        return tuple(_form(each) for each in value)
    if isinstance(value, dict):
        return tuple((name, _form(each)) for name, each in value.items())
    return repr(value)


def _counted(name: str, args: Any) -> float | None:
    """The share of targets that count in a loss."""
    if name not in LOSSES or len(args) < 5 or not args[1].numel():
        return None
    return float((args[1] != args[4]).double().mean())


def _tokens(name: str, tensors: list[Tensor]) -> NDArray[np.int64] | None:
    """What an embedding looks up, if it is of sequences."""
    if name != "embedding":
        return None
    tokens = tensors[1]
    if tokens.is_floating_point() or tokens.dim() != 2 or tokens.numel() > _MOST_TOKENS:
        return None
    rows: NDArray[np.int64] = tokens.detach().cpu().numpy().astype(np.int64, copy=True)
    return rows


def _number(node: Any) -> int:
    number = getattr(node, "_sequence_nr", None)
    return int(number()) if number is not None else -1


def _place(frame: Any) -> tuple[Place | None, str, bool]:
    """The user's line that is under way, whose work it is, and whether a recurrent layer's."""
    kind, in_layer = "forward", False
    while frame is not None:
        code = frame.f_code
        name = code.co_filename
        if kind == "forward" and any(folder in name for folder in _OPTIMIZERS):
            kind = "update"
        elif kind == "forward" and _LOADERS in name:
            kind = "input"
        if name.endswith(_RECURRENT) and code.co_name == "forward":
            in_layer |= not type(frame.f_locals.get("self")).__name__.endswith("Cell")
        if is_user_file(name):
            return place_of(frame), kind, in_layer
        frame = frame.f_back
    return None, kind, in_layer


def _is_recomputed(frame: Any) -> bool:
    """Whether checkpointing asked for a call of the backward pass."""
    while frame is not None:
        if frame.f_code.co_filename.endswith(_CHECKPOINTS):
            return True
        frame = frame.f_back
    return False
