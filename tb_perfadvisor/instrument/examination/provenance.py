"""Where the content of tensors comes from: which operators made it, of which parameters and inputs.

Content gets a number. Two tensors with the same number hold the same, because the same operators
made them of the same; what they hold is not compared, for a program may get equal batches by
chance, or while it is tested. What comes from outside goes by its storage, if its content stays.
Nothing tells what operators draw at random. What they make of numbers alone is constant, unless the
program answers requests, which bring numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

_MOST_COPIED_BYTES: Final = 256 << 20
"""Of a tensor with gaps, which has to be copied to add it up."""

_MOST_IN_ROWS: Final = 1 << 24
_READ_BYTES: Final = 1 << 20
"""Of a tensor from outside, each time that it is read: memory delivers that in 100 us."""


class Source(NamedTuple):
    """What the content of a tensor follows from."""

    number: int
    """Equal for equal content."""
    origins: frozenset[int] | None
    """The storages from outside that it depends on, besides constants; None if it also depends on
    random numbers, or if that is unknown."""


class Provenance:
    """Follows storages and their content from operator to operator."""

    def __init__(self, *, has_requests: bool = False) -> None:
        """Nothing is computed yet."""
        self._has_requests = has_requests
        self._numbers: dict[int, int] = {}
        self._references: list[StorageWeakRef] = []
        self._sources: dict[int, Source] = {}
        self._unknown = count(1)

    def storage(self, tensor: Tensor) -> int:
        """A number for the memory that a tensor shares with its views.

        Memory that is freed and used again gets another number. Tensors without a storage, such as
        sparse ones, get a negative number each time.
        """
        try:
            storage = tensor.untyped_storage()
        except (RuntimeError, NotImplementedError, ValueError):
            return -next(self._unknown)
        # While it is referred to, no other storage gets the same address.
        address = int(storage._cdata)
        if address not in self._numbers:
            self._numbers[address] = len(self._references)
            self._references.append(StorageWeakRef(storage))
        return self._numbers[address]

    def freed(self) -> frozenset[int]:
        """The storages that the program does not hold any longer."""
        return frozenset(n for n, each in enumerate(self._references) if each.expired())

    def source(self, tensor: Tensor, storage: int) -> Source:
        """What the present content of a tensor follows from; it lies in a storage."""
        known = self._sources.get(storage)
        if known is None:
            is_fixed = storage < 0 or isinstance(tensor, nn.Parameter)
            version = 0 if is_fixed or tensor.is_inference() else tensor._version
            content = None if is_fixed else (version, _fingerprint(tensor))
            known = Source(hash(("outside", storage, content)), frozenset({storage}))
        if storage < 0:
            return known
        part = tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype
        return Source(hash((known.number, part)), known.origins)

    def made(
        self,
        operator: object,
        inputs: Sequence[Source],
        storages: Iterable[int],
        *,
        is_random: bool,
    ) -> Source:
        """Note what an operator has computed."""
        origins = None if self._has_requests and not inputs else frozenset[int]()
        for each in inputs:
            origins = None if origins is None or each.origins is None else origins | each.origins
        number = hash((operator, tuple(each.number for each in inputs)))
        if is_random:
            number, origins = hash(("random", next(self._unknown))), None
        for place, storage in enumerate(storages):
            self._sources[storage] = Source(hash((number, place)), origins)
        return Source(number, origins)


def _fingerprint(tensor: Tensor) -> int | None:
    """A sum of some rows, which NumPy or a kernel of the program's own may have changed."""
    rows = -(-tensor.numel() * tensor.element_size() // _READ_BYTES)
    return checksum(tensor[::rows] if tensor.dim() and rows > 1 else tensor)


def checksum(tensor: Tensor) -> int | None:
    """A sum of what a tensor holds, for what its provenance cannot tell; None if that costs much.

    Kernels of the program's own and NumPy may write to memory without an operator.
    """
    plain = tensor.detach().resolve_conj().resolve_neg()
    if not plain.is_contiguous() and plain.numel() * plain.element_size() > _MOST_COPIED_BYTES:
        return None
    content = plain.contiguous().reshape(-1)
    content = content.as_strided(content.shape, (1,))  # a single number may have another stride
    content = content.view(torch.uint8)
    is_whole = content.numel() % 8 == 0 and content.data_ptr() % 8 == 0
    return int((content.view(torch.int64) if is_whole else content).sum(dtype=torch.int64))


def row_sums(tensor: Tensor) -> NDArray[Any] | None:
    """A sum for each row, those of several tables together; None if there are none, or many."""
    is_table = tensor.dim() > 1 and tensor.is_floating_point() and tensor.layout is torch.strided
    if not is_table or not 0 < tensor.numel() <= _MOST_IN_ROWS:
        return None
    # Without weights, rows of probabilities would all be alike.
    weights = torch.arange(tensor.shape[-1], dtype=torch.float32, device=tensor.device).cos()
    sums = tensor.detach().float() @ weights
    return np.asarray(sums.reshape(-1, tensor.shape[-2]).sum(0).cpu())
