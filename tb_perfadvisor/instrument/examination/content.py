"""Checksums of what tensors hold, and of how much of it is zero."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
import torch
from isal import isal_zlib
from torch import Tensor

_AT_ONCE: Final = 1 << 20
"""Words of a tensor on a device that are summed at once: its copies take 16 MB."""
_SAMPLE: Final = 4096
"""Elements that tell a share to about a hundredth."""


def digest(tensor: Tensor) -> int:
    """A number that differs if the content, the shape, or the type does."""
    content = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    content = content.as_strided(content.shape, (1,))  # a single number may have another stride
    content = content.view(torch.uint8) if content.numel() else content
    number = _sums(content) if tensor.is_cuda else isal_zlib.crc32(content.numpy())
    return hash((number, tuple(tensor.shape), str(tensor.dtype)))


def sample(tensor: Tensor, chance: np.random.Generator) -> Tensor:
    """Some thousand elements, drawn at random."""
    places = [chance.integers(0, size, _SAMPLE) for size in tensor.shape]
    return tensor[tuple(torch.from_numpy(each).to(tensor.device) for each in places)]


def share_of_zeros(elements: Tensor) -> float:
    """Of a sample."""
    return float((elements == 0).double().mean())


def share_of_subnormals(elements: Tensor) -> float:
    """Of a sample: floating-point numbers too small for the usual form, which are not zero."""
    if not elements.is_floating_point():
        return 0.0
    sizes = elements.abs()
    return float(((sizes > 0) & (sizes < torch.finfo(elements.dtype).tiny)).double().mean())


def _sums(content: Tensor) -> tuple[int, ...]:
    """Sums of the bytes, each times a number of its place; computed where the bytes are."""
    is_whole = content.numel() % 8 == 0 and content.data_ptr() % 8 == 0
    words = content.view(torch.int64) if is_whole else content
    sums = [
        (part.to(torch.int64) * _factors(content.device)[: part.numel()]).sum()
        for part in words.split(_AT_ONCE)
    ]
    return tuple(torch.stack(sums).tolist()) if sums else ()


@cache
def _factors(device: Any) -> Tensor:
    """Odd numbers that look random: products with them lose nothing, and sums tell places apart."""
    numbers = np.random.default_rng(0).integers(0, 1 << 62, _AT_ONCE) * 2 + 1
    return torch.from_numpy(numbers).to(device)
