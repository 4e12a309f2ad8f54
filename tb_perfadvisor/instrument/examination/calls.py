"""Sees each operator of a step, with what matters about its inputs and outputs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tag, Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tb_perfadvisor.instrument.examination.clocks import DeviceClock, HostClock
from tb_perfadvisor.instrument.examination.content import (
    digest,
    sample,
    share_of_subnormals,
    share_of_zeros,
)
from tb_perfadvisor.instrument.examination.lookups import lines_read
from tb_perfadvisor.instrument.examination.same_rows import copies_of_data
from tb_perfadvisor.instrument.examination.waves import wave_lengths
from tb_perfadvisor.instrument.user_code import is_user_file, shown_path

MOST_CALLS: Final = 200_000
"""Of all steps that are looked at. What follows is not seen."""
_MOST_DIGESTED_BYTES: Final = 4 << 30
_MOST_DIGESTED_BYTES_ON_DEVICE: Final = 64 << 30
"""Digests run at about the speed of memory: reading so much takes a second or less."""
_MOST_COPIED_BYTES: Final = 256 << 20
"""Of a tensor with gaps, whose digest needs a copy on the device."""
_MOST_IDS: Final = 1 << 20
_OPTIMIZERS: Final = tuple(
    f"{os.sep}{Path(*folders)}{os.sep}"
    for folders in (
        ("torch", "optim"),
        ("keras", "src", "optimizers"),
        ("keras", "src", "backend", "torch", "optimizers"),
    )
)
_RECURRENT: Final = str(Path("torch", "nn", "modules", "rnn.py"))
_LOADERS: Final = f"{os.sep}torch{os.sep}utils{os.sep}data{os.sep}"
PRODUCTS: Final = frozenset({"mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "mv", "addmv"})
MASKING: Final = frozenset({"mul", "mul_", "masked_fill", "masked_fill_", "where"})
"""Operators that may drop elements, by what another input holds."""
_CONVOLUTIONS: Final = frozenset({"convolution", "mkldnn_convolution", "_slow_conv2d_forward"})
_LEAST_SAMPLED: Final = dict.fromkeys(PRODUCTS | _CONVOLUTIONS, 10_000) | dict.fromkeys(MASKING, 16)
"""Smaller inputs are not worth looking for zeros: their products take microseconds."""
_CALLING_NOTHING: Final = frozenset({"AddBackward0", "CloneBackward0", "AliasBackward0"})
"""Nodes of the backward pass that hand on a gradient as it is, so that no operator shows them."""
LOSSES: Final = frozenset({"nll_loss_forward", "nll_loss2d_forward"})

Place = tuple[str, int, str]
"""Path, line and function of the user's code."""


class Operand(Struct, frozen=True):
    """A tensor that an operator reads or writes."""

    storage: int
    """Where its memory begins; free memory is used again."""
    shape: tuple[int, ...]
    has_gradient: bool
    digest: int | None = None
    """Of its content; None if that was not read."""
    zeros: float | None = None
    """The share of zeros in a sample, where a product or a mask reads it."""
    subnormals: float = 0.0
    """The share of numbers too small for the usual form in a sample, where a product or a
    convolution on the CPU reads it."""
    distinct: int | None = None
    """How many of its elements are no repetition by `expand`; None if all."""
    waves: tuple[int, ...] = ()
    """The lengths of its columns and rows, where these are evenly spaced waves."""

    @property
    def size(self) -> int:
        """How many elements it has."""
        size = 1
        for each in self.shape:
            size *= each
        return size


class Call(Struct, frozen=True):
    """One operator that was called."""

    name: str
    """Without namespace and overload: `addmm`."""
    ns: int
    """On the host, or, once it is known that the device limits the steps, on the device."""
    place: Place | None
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    scalars: str
    """Its other arguments, as text."""
    kind: str
    """`update` by an optimizer, `input` by a loader, `backward`, or `forward`."""
    tracks_gradients: bool
    is_view: bool
    is_random: bool
    mutates: bool
    sequence: int
    """The number of the autograd node that it runs in, or that was made for it last."""
    leads_to: tuple[tuple[str, int], ...] = ()
    """In the backward pass, what its node leads to: `node` and a number, or `leaf` and the
    parameter's memory."""
    leaf: int | None = None
    """The parameter whose gradient is accumulated."""
    ids: NDArray[np.int64] | None = None
    """The rows of a table that an embedding reads or whose gradient it makes."""
    in_recurrent_layer: bool = False
    """Whether a layer of PyTorch calls it for each place of a sequence, and not the program."""
    is_reverse: bool = False
    """Whether a recurrent layer runs from the end of its sequence."""
    device_ns: int = 0
    """The time of what it gave to a device."""
    is_pointwise: bool = False
    """Whether each element of the result needs one element of each input."""
    made: int = -1
    """The number of the autograd node that was made for it, or of one before."""
    counted: float | None = None
    """The share of targets that a loss does not ignore."""
    copies: int = 1
    """How many times a product or a layer gets the same rows."""
    lines: tuple[int, int] | None = None
    """Of a lookup by numbers in a large table: the cache lines that it reads, and those that it
    would read if what belongs to a number lay together."""


def has_node(call: Call) -> bool:
    """Whether an autograd node was made for a forward call."""
    return call.tracks_gradients and any(each.has_gradient for each in call.inputs)


class Watching(TorchDispatchMode):  # type: ignore[misc,unused-ignore]
    """While it is on the stack of modes, remembers every operator of its thread."""

    def __init__(self) -> None:
        """Nothing is seen yet."""
        super().__init__()
        self.calls: list[Call] = []
        self.is_on = True
        self._digested_bytes = 0
        self._waves: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}
        self._chance = np.random.default_rng(0)
        self._has_device = torch.cuda.is_initialized()
        self._clock = DeviceClock() if self._has_device else HostClock()
        self._most_bytes = (
            _MOST_DIGESTED_BYTES_ON_DEVICE if self._has_device else _MOST_DIGESTED_BYTES
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operator, and remember it."""
        given = kwargs or {}
        if not self.is_on or len(self.calls) >= MOST_CALLS or func.namespace != "aten":
            return func(*args, **given)
        if self._has_device and torch.cuda.is_current_stream_capturing():
            self.is_on = False  # a graph that is captured must not wait for anything
            return func(*args, **given)
        seen = None
        try:
            seen = self._before(func, args, given)
            self._clock.begin()
        except Exception:
            self.is_on = False  # the program must run as without it
        result = func(*args, **given)
        if self.is_on and seen is not None:
            try:
                self._after(seen, result)
            except Exception:
                self.is_on = False
        return result

    def _before(self, func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
        name = func.overloadpacket.__name__
        node = torch._C._current_autograd_node()
        place, kind, in_layer = _place(sys._getframe(2))
        is_view = bool(func.is_view)
        tensors = [*_tensors(args), *_tensors(tuple(kwargs.values()))]
        # A backward pass that tracks gradients is computed with, like a forward pass.
        is_forward = kind == "forward" and (node is None or torch.is_grad_enabled())
        reads = is_forward and not is_view
        leaf: int | None = None
        leads_to: tuple[tuple[str, int], ...] = ()
        made = torch._C._autograd._get_sequence_nr() - 1
        if node is not None:
            kind = "backward"
            variable = getattr(node, "variable", None)
            leaf = _storage(variable) if variable is not None else None
            sequence = _number(node)
            leads_to = () if leaf is not None else _next(node)
        else:
            sequence = made
        return {
            "name": name,
            "place": place,
            "kind": kind,
            "inputs": tuple(self._operand(each, reads, name, kind) for each in tensors),
            "scalars": _scalars(args, kwargs) if reads else "",
            "tracks_gradients": torch.is_grad_enabled(),
            "is_view": is_view,
            "is_random": Tag.nondeterministic_seeded in func.tags,
            "mutates": bool(func._schema.is_mutable),
            "sequence": sequence,
            "leads_to": leads_to,
            "leaf": leaf,
            "ids": _ids(name, tensors),
            "in_recurrent_layer": in_layer,
            "is_pointwise": Tag.pointwise in func.tags,
            "made": made,
            "counted": _counted(name, args),
            "copies": copies_of_data(name, args) if is_forward and not is_view else 1,
            "lines": lines_read(name, args) if reads else None,
            "on_device": any(each.is_cuda for each in tensors),
            "is_reverse": name == "mkldnn_rnn_layer" and len(args) > 7 and args[7] is True,
        }

    def _after(self, seen: dict[str, Any], result: Any) -> None:
        took = self._clock.end()
        outputs = tuple(
            Operand(_storage(each), tuple(each.shape), each.requires_grad)
            for each in _tensors((result,))
        )
        on_device = seen.pop("on_device") or any(each.is_cuda for each in _tensors((result,)))
        device_ns = took.device_ns if on_device else 0
        self.calls.append(Call(ns=took.host_ns, outputs=outputs, device_ns=device_ns, **seen))

    def _operand(self, tensor: Tensor, reads: bool, name: str, kind: str) -> Operand:
        zeros, number, distinct, subnormals = None, None, None, 0.0
        waves: tuple[int, ...] = ()
        if reads and tensor.layout is torch.strided:
            plain, size = tensor.detach(), tensor.numel() * tensor.element_size()
            least = _LEAST_SAMPLED.get(name)
            drawn = (
                sample(plain, self._chance)
                if least is not None and tensor.numel() >= least
                else None
            )
            if drawn is not None and not tensor.is_cuda and name not in MASKING:
                subnormals = share_of_subnormals(drawn)
            if not tensor.requires_grad:
                zeros = share_of_zeros(drawn) if drawn is not None else None
                is_weight = name in PRODUCTS or name in ("convolution", "conv1d")
                waves = self._wave_lengths(plain) if is_weight and kind == "forward" else ()
            is_copied = tensor.is_cuda and not tensor.is_contiguous()
            self._digested_bytes += size
            if self._digested_bytes <= self._most_bytes and not (
                is_copied and size > _MOST_COPIED_BYTES
            ):
                number = digest(plain)
            distinct = _distinct(tensor)
        storage, shape = _storage(tensor), tuple(tensor.shape)
        return Operand(
            *(storage, shape, tensor.requires_grad, number, zeros, subnormals, distinct, waves)
        )

    def _wave_lengths(self, tensor: Tensor) -> tuple[int, ...]:
        key = _storage(tensor), tuple(tensor.shape)
        if key not in self._waves:
            self._waves[key] = wave_lengths(tensor)
        return self._waves[key]


_shown = cache(shown_path)


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _scalars(args: Any, kwargs: Any) -> str:
    others = [each for each in args if not isinstance(each, Tensor | list | tuple)]
    lists = [
        each
        for each in args
        if isinstance(each, list | tuple) and not any(isinstance(e, Tensor) for e in each)
    ]
    named = {key: value for key, value in kwargs.items() if not isinstance(value, Tensor)}
    return repr((others, lists, named))[:200]


def _storage(tensor: Tensor) -> int:
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):  # a sparse tensor has none
        return 0


def _distinct(tensor: Tensor) -> int | None:
    """How many elements it has in memory, if `expand` repeats them; else None."""
    sizes = tuple(zip(tensor.shape, tensor.stride(), strict=True))
    if all(stride or size <= 1 for size, stride in sizes):
        return None
    count = 1
    for size, stride in sizes:
        count *= size if stride else 1
    return count


def _counted(name: str, args: Any) -> float | None:
    """The share of targets that count in a loss, if it is one."""
    if name not in LOSSES or len(args) < 5 or not args[1].numel():
        return None
    return float((args[1] != args[4]).double().mean())


def _number(node: Any) -> int:
    number = getattr(node, "_sequence_nr", None)
    return int(number()) if number is not None else -1


def _next(node: Any) -> tuple[tuple[str, int], ...]:
    found: list[tuple[str, int]] = []
    for following, _ in node.next_functions:
        variable = getattr(following, "variable", None)
        if variable is not None:
            found.append(("leaf", _storage(variable)))
        elif following is not None and following.name() in _CALLING_NOTHING:
            found += _next(following)
        elif following is not None:
            found.append(("node", _number(following)))
    return tuple(dict.fromkeys(found))


def _ids(name: str, tensors: list[Tensor]) -> NDArray[np.int64] | None:
    if name not in ("embedding", "embedding_dense_backward") or len(tensors) < 2:
        return None
    ids = tensors[1]
    if ids.is_floating_point() or ids.numel() > _MOST_IDS:
        return None
    rows: NDArray[np.int64] = ids.detach().cpu().numpy().astype(np.int64, copy=True)
    return rows


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
            function = "" if code.co_name == "<module>" else code.co_name
            return (_shown(name), frame.f_lineno or 1, function), kind, in_layer
        frame = frame.f_back
    return None, kind, in_layer
