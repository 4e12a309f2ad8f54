"""What fused operators read and write.

Run one by one, each operator reads its inputs from memory and writes its result to it. A compiler
puts operators that hand tensors to one another into one kernel, which reads each input once and
writes only what others need:

- An operator joins the kernel of those whose results it reads, until a matrix product or another
  operator outside reads a result of that kernel. Products between them that read nothing of it, as
  in a gated layer, do not matter.
- A result that is read in the kernel alone is never written. One that is needed later, by a
  product, a residual connection or the backward pass, is written once.

Which tensor an operator reads is not recorded. Take the latest of its size that nothing has read
yet, since results are computed to be read; else one that the kernel already has. *Strict* traffic
assumes the opposite of the latter: that every further input is another tensor, read from memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import log

import numpy as np
from msgspec import Struct

from tb_perfadvisor.signals.work.operator_work import Extent, Operands
from tb_perfadvisor.trace.tables import Float64, Int64

_LARGEST_KERNEL = 64
"""Operators in one kernel, as limited by TorchInductor's `max_fusion_size`."""
_MOST_SLICES = 8
"""Parts that a tensor is read in: heads of rotary embeddings, gates, queries, keys and values."""
_MOST_OPEN = 16
"""Kernels that may still grow. Results that nothing reads would keep theirs open."""
_SAME_SIZE = 1.25
"""Sizes that are estimated from times are equal up to this factor: achieved bandwidths differ."""


class FusedTraffic(Struct, frozen=True):
    """Fused kernels; columns of shape (operators,) or (kernels,)."""

    kernel: Int64
    """The kernel of each operator; -1 for operators that are not fused."""
    now_bytes: Float64
    """What each operator moves by itself."""
    fused_bytes: Float64
    """What each kernel moves; shape (kernels,)."""
    strict_bytes: Float64
    """What it moves if it reads no tensor of a size twice; shape (kernels,)."""
    launches: Int64
    """How many kernels the compiler makes of it: one more after each sum over all rows; shape
    (kernels,)."""


class _Tensor:
    """A tensor in memory, or a result inside a kernel."""

    __slots__ = ("extent", "is_copy", "is_read", "kernel", "key")

    def __init__(
        self,
        extent: Extent,
        key: tuple[int, int],
        kernel: _Kernel | None,
        *,
        is_read: bool,
        is_copy: bool = False,
    ) -> None:
        self.extent = extent
        self.key = key
        """Of its size; see `_Fusion`."""
        self.is_copy = is_copy
        self.kernel = kernel
        """The kernel that computes it; None if it is in memory."""
        self.is_read = is_read


class _Kernel:
    """Operators that are fused."""

    __slots__ = ("fused", "into", "launches", "operators", "strict", "tensors")

    def __init__(self) -> None:
        self.into: _Kernel | None = None
        """The kernel that this one has become a part of."""
        self.operators = 0
        self.fused = 0.0
        self.strict = 0.0
        self.launches = 1
        self.tensors: list[_Tensor] = []
        """Its inputs and results, until it is complete."""

    def root(self) -> _Kernel:
        kernel = self
        while kernel.into is not None:
            kernel = kernel.into
        return kernel

    def absorb(self, other: _Kernel) -> None:
        other.into = self
        self.operators += other.operators
        self.fused += other.fused
        self.strict += other.strict
        self.launches = max(self.launches, other.launches)
        self.tensors += other.tensors
        other.tensors = []

    def move(self, size_bytes: int) -> None:
        """Count a tensor that is read or written for certain."""
        self.fused += size_bytes
        self.strict += size_bytes


def fused_traffic(sequence: Iterable[Operands | None], *, estimated: bool = False) -> FusedTraffic:
    """What operators move one by one, and fused.

    Operators are in the order in which the device runs them; None stands for those that may read
    anything. If sizes are `estimated`, equal tensors differ a little.
    """
    fusion = _Fusion(estimated)
    kernels: list[_Kernel | None] = []
    now: list[float] = []
    for operands in sequence:
        kernel = None
        if operands is None:
            fusion.close_all()
        elif operands.fusible:
            operands = fusion.typed(operands)
            kernel = fusion.fuse(operands)
        else:
            fusion.leave_out(operands)
        kernels.append(kernel)
        now.append(operands.traffic_bytes if operands is not None else 0.0)
    fusion.close_all()
    number: dict[int, int] = {}
    roots = [None if kernel is None else kernel.root() for kernel in kernels]
    kinds = [-1 if root is None else number.setdefault(id(root), len(number)) for root in roots]
    distinct = list({id(root): root for root in roots if root is not None}.values())
    return FusedTraffic(
        np.array(kinds, dtype=np.int64),
        np.array(now, dtype=np.float64),
        np.array([root.fused for root in distinct], dtype=np.float64),
        np.array([root.strict for root in distinct], dtype=np.float64),
        np.array([root.launches for root in distinct], dtype=np.int64),
    )


class _Fusion:
    """What is known after some operators."""

    def __init__(self, estimated: bool) -> None:
        self._estimated = estimated
        self._open: list[_Kernel] = []
        self._unread: dict[tuple[int, int], list[_Tensor]] = {}
        """Tensors in memory that nothing has read."""
        self._hidden: dict[tuple[int, int], list[_Tensor]] = {}
        """Results that complete kernels had no need to write."""
        self._passed: set[tuple[int, int]] = set()
        """Sizes of what the latest products read, which products beside them read, too."""
        self._item_bytes = 2

    def fuse(self, operands: Operands) -> _Kernel:
        """Make an operator part of a kernel, old or new."""
        kernel = _Kernel()
        self._open.append(kernel)
        taken: list[_Tensor] = []
        is_copy = operands.copies and len(operands.reads) == 1
        for extent in operands.reads:
            kernel = self._read(kernel, extent, taken, copies=is_copy)
        for extent in operands.stored:
            self._load(kernel, extent, taken)
        kernel.operators += 1
        if operands.passes > 1:
            again = (operands.passes - 1) * sum(tensor.extent.size_bytes for tensor in taken)
            kernel.move(again)
            kernel.launches += 1
        for extent in operands.writes:
            result = _Tensor(
                extent, self._key(extent), kernel, is_read=False, is_copy=operands.copies
            )
            kernel.tensors.append(result)
            self._item_bytes = extent.item_bytes or self._item_bytes
        if operands.complete or kernel.operators >= _LARGEST_KERNEL:
            self._close(kernel)
        elif len(self._open) > _MOST_OPEN:
            self._close(self._open[0])
        return kernel

    def leave_out(self, operands: Operands) -> None:
        """Run an operator that is a kernel of its own: what it reads is in memory."""
        taken: list[_Tensor] = []
        for extent in (*operands.reads, *operands.stored):
            found = self._find_open(extent, taken)
            if found is not None:
                taken.append(found)
                if found.kernel is not None:
                    found.is_read = False  # to be written
                    self._close(found.kernel.root())
            if self._key(extent) not in self._passed:
                self._pop(self._unread, extent)
        self._passed.update(map(self._key, operands.reads))
        for extent in operands.writes:
            self._put(self._unread, _Tensor(extent, self._key(extent), None, is_read=False))

    def close_all(self) -> None:
        """Complete all kernels: what follows may read anything that was not read yet."""
        for kernel in tuple(self._open):
            self._close(kernel)

    def typed(self, operands: Operands) -> Operands:
        """Give the members of lists a type: that of tensors of their sizes."""
        extents = (*operands.reads, *operands.writes)
        if all(extent.item_bytes for extent in extents):
            return operands
        known = {
            tensor.extent.elements: tensor.extent.item_bytes
            for kernel in self._open
            for tensor in kernel.tensors
        }
        width = next((known[e.elements] for e in extents if e.elements in known), self._item_bytes)
        return operands._replace(
            reads=tuple(extent._replace(item_bytes=width) for extent in operands.reads),
            writes=tuple(extent._replace(item_bytes=width) for extent in operands.writes),
        )

    # --- one input ---------------------------------------------------------------------------

    def _read(
        self, kernel: _Kernel, extent: Extent, taken: list[_Tensor], *, copies: bool
    ) -> _Kernel:
        """Read a tensor that the kernel may already have."""
        tensor = self._find_open(extent, taken, copies=copies)
        if tensor is None or tensor.is_read:
            unread = self._pop(self._unread, extent)
            if unread is not None:
                self._add_input(kernel, unread, taken)
                return kernel
        whole = self._find_whole(extent) if tensor is None and not copies else None
        if tensor is None and whole is None:
            self._load(kernel, extent, taken)
            return kernel
        owner = next(other for other in self._open if (tensor or whole) in other.tensors)
        if owner is not kernel:
            owner.absorb(kernel)
            self._open.remove(kernel)
        if tensor is None or tensor.is_read:
            owner.strict += extent.size_bytes
        if tensor is not None:
            tensor.is_read = True
            taken.append(tensor)
        return owner

    def _load(self, kernel: _Kernel, extent: Extent, taken: list[_Tensor]) -> None:
        """Read a tensor from memory. If a complete kernel has computed it, that wrote it."""
        hidden = self._pop(self._hidden, extent)
        if hidden is not None and hidden.kernel is not None:
            hidden.kernel.root().move(hidden.extent.size_bytes)
        self._add_input(kernel, _Tensor(extent, self._key(extent), None, is_read=True), taken)

    @staticmethod
    def _add_input(kernel: _Kernel, tensor: _Tensor, taken: list[_Tensor]) -> None:
        tensor.is_read = True
        taken.append(tensor)
        kernel.tensors.append(tensor)
        kernel.move(tensor.extent.size_bytes)

    def _close(self, kernel: _Kernel) -> None:
        """Complete a kernel: it writes what it does not read itself."""
        if kernel not in self._open:
            return
        self._open.remove(kernel)
        for tensor in kernel.tensors:
            if tensor.kernel is None:
                continue
            if tensor.is_read:
                self._put(self._hidden, tensor)
            else:
                kernel.move(tensor.extent.size_bytes)
                self._put(self._unread, _Tensor(tensor.extent, tensor.key, None, is_read=False))
                self._passed.discard(tensor.key)
        kernel.tensors = []

    # --- tensors by size ---------------------------------------------------------------------

    def _find_open(
        self, extent: Extent, taken: list[_Tensor], *, copies: bool = False
    ) -> _Tensor | None:
        """The latest tensor of this size in an open kernel, best one that nothing has read."""
        keys = self._keys(extent)
        read = None
        for kernel in reversed(self._open):
            for tensor in reversed(kernel.tensors):
                if tensor.key not in keys or tensor in taken:
                    continue
                if copies and (tensor.is_copy or tensor.is_read):
                    continue
                if not tensor.is_read:
                    return tensor
                read = read or tensor
        return read

    def _find_whole(self, extent: Extent) -> _Tensor | None:
        """The latest tensor in an open kernel that this may be a slice of."""
        part = max(extent.elements, 1)
        wholes = {(part * parts, extent.item_bytes) for parts in range(2, _MOST_SLICES + 1)}
        for kernel in reversed(self._open):
            for tensor in reversed(kernel.tensors):
                if tensor.extent in wholes:
                    return tensor
        return None

    def _put(self, tensors: dict[tuple[int, int], list[_Tensor]], tensor: _Tensor) -> None:
        tensors.setdefault(tensor.key, []).append(tensor)

    def _pop(self, tensors: dict[tuple[int, int], list[_Tensor]], extent: Extent) -> _Tensor | None:
        for key in self._keys(extent):
            found = tensors.get(key)
            if found:
                return found.pop()
        return None

    def _key(self, extent: Extent) -> tuple[int, int]:
        if self._estimated:
            return _rounded(extent.size_bytes), 1
        return extent

    def _keys(self, extent: Extent) -> tuple[tuple[int, int], ...]:
        """Keys of the sizes that count as equal, the best first."""
        size, item_bytes = key = self._key(extent)
        if self._estimated:
            return key, (size - 1, item_bytes), (size + 1, item_bytes)
        return (key,)


@lru_cache(maxsize=4096)
def _rounded(size_bytes: int) -> int:
    """The logarithm of a size, equal for sizes that are about equal."""
    return round(log(max(size_bytes, 1)) / log(_SAME_SIZE))
